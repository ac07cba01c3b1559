package plan_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/golden"
)

const corpus = "../config/testdata/corpus"

// A file of the corpus has the keys and values of a published configuration. The file
// itself is ours: one line for each top-level key, or, if the case is a mistake in
// writing, a file with that mistake. Its first lines name the source, the nodes to try
// it on, and the reason for any difference from the reference. The golden file has what
// both advertise.
func TestCorpusMatchesTheReference(t *testing.T) {
	files, err := filepath.Glob(corpus + "/*.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 50)
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Len(t, header(data, "source"), 1, "where is it from?")
			require.NotEmpty(t, header(data, "node"))
			var lines strings.Builder
			same := true
			c := parseConfig(data, &lines)
			for _, text := range header(data, "node") {
				s := nodeOf(t, text)
				theirs, theirErr := reference(data, s)
				fmt.Fprintf(&lines, "%s\n  reference  %s\n", text, outcome(theirs, theirErr))
				if c == nil {
					require.Error(t, theirErr, "refused by ours alone")
					continue
				}
				p := plan.Compute(c, s, health.New(gpu.Fault{}).ApplySnapshot(s, now))
				fmt.Fprintf(&lines, "  ours       %s\n", outcome(counts(p), nil))
				for _, reason := range slices.Sorted(maps.Keys(reasons(p))) {
					fmt.Fprintf(&lines, "  left out   %d: %s\n", reasons(p)[reason], reason)
				}
				if theirErr == nil {
					same = same && maps.Equal(theirs, counts(p))
				} else {
					require.NotEmpty(t, p.LeftOut, "the reference ends with an error: ours must leave something out")
				}
			}
			require.Equal(t, len(header(data, "differs")) == 0, same, "\n%s", lines.String())
			golden.Require(t, strings.TrimSuffix(path, ".yaml")+".golden", lines.String())
		})
	}
}

// parseConfig returns the configuration, or nil if it is refused even without strict
// keys.
func parseConfig(data []byte, lines *strings.Builder) *config.Config {
	if _, _, err := config.Parse(data, "file", config.Options{}); err != nil {
		fmt.Fprintf(lines, "refused: %s\n", strings.ReplaceAll(err.Error(), "\n", "\nrefused: "))
	}
	c, ignored, err := config.Parse(data, "file", config.Options{UnknownKeys: config.Warn})
	if len(ignored) > 0 && err == nil {
		fmt.Fprintf(lines, "with --unknown-keys=warn:\n")
	}
	if err != nil {
		return nil
	}
	return c
}

// outcome describes a plugin's result in one line.
func outcome(counts map[string]int, err error) string {
	if err != nil {
		return "ends: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", name, counts[name]))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// header returns the values of the comments "# key: value" before the configuration.
func header(data []byte, key string) []string {
	var values []string
	for line := range strings.SplitSeq(string(data), "\n") {
		if value, is := strings.CutPrefix(line, "# "+key+": "); is {
			values = append(values, value)
		}
	}
	return values
}

// nodeOf returns a node as the corpus describes it: a profile of gputest and the number
// of GPUs, or the MIG devices of each GPU, "3g.40gb*2,1g.10gb; whole; empty".
func nodeOf(t *testing.T, text string) gpu.Snapshot {
	profile, rest, _ := strings.Cut(text, " ")
	if n, err := strconv.Atoi(rest); err == nil {
		return gputest.Node(profile, n)
	}
	gpus := strings.Split(rest, "; ")
	s := gputest.Node(profile, len(gpus))
	for i, layout := range gpus {
		if layout == "whole" {
			continue
		}
		var parts []string
		for part := range strings.SplitSeq(layout, ",") {
			name, times, many := strings.Cut(part, "*")
			n := 1
			if many {
				var err error
				n, err = strconv.Atoi(times)
				require.NoError(t, err, text)
			}
			if name != "empty" {
				parts = append(parts, slices.Repeat([]string{name}, n)...)
			}
		}
		s.Devices[i] = gputest.WithMIG(s.Devices[i], parts...)
	}
	return s
}
