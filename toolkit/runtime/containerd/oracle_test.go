package containerd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// binaries returns real containerd binaries by the release they report: those in
// GPUREADY_CONTAINERDS, the one on the path, and those that tests have built.
func binaries(t *testing.T) map[release]string {
	t.Helper()
	paths := filepath.SplitList(os.Getenv("GPUREADY_CONTAINERDS"))
	if onPath, err := exec.LookPath("containerd"); err == nil {
		paths = append(paths, onPath)
	}
	if cache, err := os.UserCacheDir(); err == nil {
		made, _ := filepath.Glob(filepath.Join(cache, "gpuready/binaries/containerd-*/containerd"))
		paths = append(paths, made...)
	}
	found := map[release]string{}
	for _, at := range paths {
		out, err := exec.CommandContext(t.Context(), at, "--version").Output()
		require.NoError(t, err, at)
		m := regexp.MustCompile(`\sv?(\d+\.\d+\.\d+\S*)`).FindSubmatch(out)
		require.NotNil(t, m, "%s", out)
		r, known := runtime.ParseRelease(string(m[1]))
		require.True(t, known)
		found[release{r}] = at
	}
	return found
}

// TestRealContainerdReadsThePlannedConfiguration lets real containerds read each golden
// case after its plan, made for that containerd, and compares the result.
func TestRealContainerdReadsThePlannedConfiguration(t *testing.T) {
	found := binaries(t)
	for name, minors := range map[string][]int{"1.6": {6}, "1.7": {7}, "2.0 to 2.2": {0, 1, 2}, "2.3 or later": {3, 4, 5, 6}} {
		t.Run(name, func(t *testing.T) {
			for _, minor := range minors {
				r := release{runtime.Release{Major: int(name[0] - '0'), Minor: minor}}
				if found[r] != "" {
					compareAll(t, r, found[r])
					return
				}
			}
			t.Skipf("no containerd %s here; name binaries in GPUREADY_CONTAINERDS", name)
		})
	}
}

func compareAll(t *testing.T, r release, binary string) {
	compared := 0
	for _, c := range runtimetest.Cases(t) {
		place := c.Place
		if filepath.Ext(place.Config) == ".tmpl" {
			continue
		}
		c.Want.CDI = c.Want.CDI && r.hasCDI()
		place.Version = strings.Join([]string{string(rune('0' + r.Major)), string(rune('0' + r.Minor)), "0"}, ".")
		root := c.Host(t)
		made, err := Plan(root, place, c.Want)
		if err != nil {
			continue
		}
		runtimetest.ApplyPlan(t, root, made)
		data, err := root.ReadFile(place.Config, runtime.MaxFile)
		if err != nil {
			continue // nothing to do, and nothing there
		}
		compared++
		t.Run(c.Name, func(t *testing.T) { compare(t, r, binary, root.Dir(), place, c.Want, data) })
	}
	require.Greater(t, compared, 10)
}

func compare(t *testing.T, r release, binary, dir string, place runtime.Place, want runtime.Want, data []byte) {
	// The binary reads the node's files where they are, so absolute imports are rewritten.
	data = bytes.ReplaceAll(data, []byte(`"/etc/`), []byte(`"`+dir+`/etc/`))
	at := filepath.Join(dir, "etc/containerd/oracle.toml")
	require.NoError(t, os.WriteFile(at, data, 0o644))
	show := "dump"
	if r.mergesByKey() && !r.convertsEachFile() {
		show = "migrate" // the daemon converts these after merging, and dump does not
	}
	cmd := exec.CommandContext(t.Context(), binary, "--config", at, "config", show)
	var stderr bytes.Buffer
	cmd.Stderr, cmd.Dir = &stderr, dir
	out, err := cmd.Output()
	require.NoError(t, err, "%s", stderr.String())
	doc, err := tomledit.Parse(out)
	require.NoError(t, err)
	dumped, _ := doc.Get("version")
	table, _ := doc.Get("plugins", criTable(int(dumped.(int64))))
	have := &config{release: r, files: []file{{File: tomledit.File{Path: "dump", Doc: doc}}}, cri: table.(map[string]any)}
	rest, err := have.missing(want)
	require.NoError(t, err)
	require.Empty(t, rest, "containerd does not have what is wanted:\n%s", out)

	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	data, err = root.ReadFile(place.Config, runtime.MaxFile)
	require.NoError(t, err)
	main, err := parse(place.Config, data)
	require.NoError(t, err)
	believed, err := loader{files: root, place: place, release: r}.load(main)
	require.NoError(t, err)
	runtimes, err := believed.table("containerd", "runtimes")
	require.NoError(t, err)
	for _, s := range tomledit.Leaves(runtimes, "containerd", "runtimes") {
		is, ok := have.get(s.Path...)
		require.True(t, ok && tomledit.Equal(is, s.Value), "%s is %v in containerd, not %v", tomledit.Key(s.Path...), is, s.Value)
	}
	dumpedRuntimes, err := have.table("containerd", "runtimes")
	require.NoError(t, err)
	require.Contains(t, dumpedRuntimes, "runc", "the handler that was there is lost")
}
