// Package runtimetest imitates the container runtimes of a host for tests: their CRI service,
// their side of NRI, and the systemd that restarts them. It also checks planners of their
// configuration against golden files, each with a node's whole configuration before and
// after.
package runtimetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// Planner computes the changes to a container runtime's configuration.
type Planner func(runtime.Files, runtime.Place, runtime.Want) (runtime.Plan, error)

// Case is one golden file: a description in one line, a line of JSON with Place and Want, then sections
// "-- in PATH --" for files and "-- link PATH --" for links. The results follow:
// "-- out PATH --" for files and links that are new or change, "-- removed PATH --", "-- edits --", "-- error --".
type Case struct {
	Name  string
	Place runtime.Place
	Want  runtime.Want
	Text  string // a one-line description
	in    []section
	file  string
}

type section struct{ name, data string }

// Cases reads all golden files of testdata.
func Cases(t *testing.T) []Case {
	t.Helper()
	names, err := filepath.Glob("testdata/*.golden")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	var cases []Case
	for _, name := range names {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		cases = append(cases, parse(t, name, string(data)))
	}
	return cases
}

func parse(t *testing.T, name, data string) Case {
	t.Helper()
	c := Case{Name: strings.TrimSuffix(filepath.Base(name), ".golden"), file: name}
	lines := strings.SplitAfter(data, "\n")
	c.Text = strings.TrimSpace(lines[0])
	var spec struct {
		runtime.Place
		runtime.Want
	}
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &spec), name)
	c.Place, c.Want = spec.Place, spec.Want
	var all []section
	for _, line := range lines[2:] {
		if title, ok := strings.CutPrefix(line, "-- "); ok {
			all = append(all, section{name: strings.TrimSuffix(title, " --\n")})
		} else if line != "" {
			require.NotEmpty(t, all, "%s: %q", name, line)
			all[len(all)-1].data += line
		}
	}
	for _, s := range all {
		if strings.HasPrefix(s.name, "in ") || strings.HasPrefix(s.name, "link ") {
			c.in = append(c.in, s)
		}
	}
	return c
}

// Host returns a temporary folder that stands for a host's file system, with the case's files.
func (c Case) Host(t *testing.T) *host.Root {
	t.Helper()
	dir := t.TempDir()
	for _, s := range c.in {
		kind, name, _ := strings.Cut(s.name, " ")
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		if kind == "link" {
			require.NoError(t, os.Symlink(strings.TrimSpace(s.data), at))
			continue
		}
		require.NoError(t, os.WriteFile(at, []byte(s.content()), 0o640))
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

// content restores Windows line ends, which a section cannot hold.
func (s section) content() string { return strings.ReplaceAll(s.data, "<CR>\n", "\r\n") }

// Check compares a plan with the golden file, or with update rewrites the file, and checks that a second
// plan changes nothing.
func (c Case) Check(t *testing.T, plan Planner, update bool) {
	t.Helper()
	root := c.Host(t)
	before := Tree(t, root)
	made, err := plan(root, c.Place, c.Want)
	require.Equal(t, before, Tree(t, root), "planning changed something")
	var out strings.Builder
	if err != nil {
		_, ok := errors.AsType[*runtime.Refusal](err)
		require.True(t, ok, "not a refusal: %v", err)
		fmt.Fprintf(&out, "-- error --\n%v\n", err)
	} else {
		ApplyPlan(t, root, made)
		after := Tree(t, root)
		for _, name := range slices.Sorted(maps.Keys(after)) {
			if after[name] != before[name] {
				fmt.Fprintf(&out, "-- out %s --\n%s", name, strings.ReplaceAll(after[name], "\r\n", "<CR>\n"))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if _, ok := after[name]; !ok {
				fmt.Fprintf(&out, "-- removed %s --\n", name)
			}
		}
		out.WriteString("-- edits --\n")
		for _, e := range made.Edits {
			fmt.Fprintln(&out, e)
		}
		c.checkAgain(t, plan, root, made)
	}
	c.compare(t, out.String(), update)
}

func (c Case) checkAgain(t *testing.T, plan Planner, root *host.Root, made runtime.Plan) {
	t.Helper()
	again, err := plan(root, c.Place, c.Want)
	require.NoError(t, err)
	require.Empty(t, again.Edits)
	changes, err := apply.Plan(root, again.Items)
	require.NoError(t, err)
	require.Empty(t, changes)
	for _, item := range made.Items {
		has := func(i apply.Item) bool { return i.Path == item.Path }
		require.True(t, item.Absent || slices.ContainsFunc(again.Items, has), "%s is not wanted any more", item.Path)
	}
}

func (c Case) compare(t *testing.T, got string, update bool) {
	t.Helper()
	data, err := os.ReadFile(c.file)
	require.NoError(t, err)
	input := string(data)
	for _, s := range []string{"\n-- out ", "\n-- removed ", "\n-- edits ", "\n-- error "} {
		if at := strings.Index(input, s); at >= 0 {
			input = input[:at+1]
		}
	}
	if update {
		require.NoError(t, os.WriteFile(c.file, []byte(input+got), 0o644))
		return
	}
	require.Equal(t, string(data), input+got)
}

// ApplyPlan applies a plan's changes to the host.
func ApplyPlan(t *testing.T, root *host.Root, made runtime.Plan) {
	t.Helper()
	changes, err := apply.Plan(root, made.Items)
	require.NoError(t, err)
	_, err = apply.Write(root, changes)
	require.NoError(t, err)
}

// Tree returns the content of all files of a host and the targets of its links.
func Tree(t *testing.T, root *host.Root) map[string]string {
	t.Helper()
	tree := map[string]string{}
	require.NoError(t, filepath.Walk(root.Dir(), func(at string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		name, _ := root.Host(at)
		if info.Mode()&os.ModeSymlink != 0 {
			tree[name], err = os.Readlink(at)
			return err
		}
		data, err := os.ReadFile(at)
		tree[name] = string(data)
		return err
	}))
	return tree
}

// Mem implements runtime.Files in memory, for fuzzing.
type Mem map[string]string

// ReadFile implements runtime.Files.
func (m Mem) ReadFile(name string, _ int64) ([]byte, error) {
	if data, ok := m[name]; ok {
		return []byte(data), nil
	}
	return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
}

// Glob implements runtime.Files.
func (m Mem) Glob(dir, pattern string) ([]string, error) {
	var found []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		ok, err := filepath.Match(pattern, filepath.Base(name))
		if err != nil {
			return nil, err
		}
		if ok && filepath.Dir(name) == dir {
			found = append(found, name)
		}
	}
	return found, nil
}

// Check plans, and then plans again with the files of the first plan: the second plan changes
// nothing. An error, of files that cannot be read or are refused, ends the check.
func (m Mem) Check(t *testing.T, plan Planner, place runtime.Place, want runtime.Want) {
	t.Helper()
	made, err := plan(m, place, want)
	if err != nil {
		return
	}
	after := maps.Clone(m)
	for _, item := range made.Items {
		_, err := tomledit.Parse(item.File.Data)
		require.NoError(t, err)
		after[item.Path] = string(item.File.Data)
	}
	again, err := plan(after, place, want)
	require.NoError(t, err)
	require.Empty(t, again.Edits)
	for _, item := range again.Items {
		require.False(t, item.Absent)
		require.Equal(t, after[item.Path], string(item.File.Data))
	}
}
