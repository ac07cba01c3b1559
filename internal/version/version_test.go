package version

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	semantic "k8s.io/apimachinery/pkg/util/version"
)

const root = "../.."

func TestReleaseIsASemanticVersion(t *testing.T) {
	require.Regexp(t, `^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`, Release())
}

func TestLineNamesVersionAndBuild(t *testing.T) {
	info := Info{Program: "gpu-toolkit", Version: "v1.2.3", Go: "go1.26.0", Platform: "linux/amd64"}
	require.Equal(t, "gpu-toolkit v1.2.3 (go1.26.0, linux/amd64)", info.Line())
	info.Commit = "abc1234-dirty"
	require.Equal(t, "gpu-toolkit v1.2.3 (commit abc1234-dirty, go1.26.0, linux/amd64)", info.Line())
	info.Date = "2026-11-26"
	require.Equal(t, "gpu-toolkit v1.2.3 (commit abc1234-dirty of 2026-11-26, go1.26.0, linux/amd64)", info.Line())
}

// named are the forms in which a file names a release of ours: an image, the chart's archive, the
// service version of the Operator Lifecycle Manager.
var named = regexp.MustCompile(`gpuready(?:/[a-z,{}-]+:v|[-.]v?)(\d+\.\d+\.\d+(?:-[0-9A-Za-z.]*[0-9A-Za-z])?)`)

// past are texts about earlier releases: they keep what they name.
var past = []string{"CHANGELOG.md", "changelog", "docs/measurements", "docs/recordings", "docs/time-to-gpu.md", "docs/walkthroughs.md"}

func TestTheTreeNamesOnlyThisRelease(t *testing.T) {
	found := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case slices.Contains(past, name), entry.IsDir() && slices.Contains([]string{".git", "bin", "testdata"}, entry.Name()):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir(), !slices.Contains([]string{".md", ".yaml", ".tmpl", ".go", ".mk", ".sh"}, filepath.Ext(name)), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if "v"+m[1] != Release() {
				t.Errorf("%s: %s: this tree is %s; use make set-version to change the version", name, m[0], Release())
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, found, 50, "manifests and documentation name images")
}

func TestTheChartHasThisVersion(t *testing.T) {
	text, err := os.ReadFile(root + "/deployments/helm/gpuready/Chart.yaml")
	require.NoError(t, err)
	require.Contains(t, string(text), "\nversion: "+strings.TrimPrefix(Release(), "v")+"\n")
	require.Contains(t, string(text), "\nappVersion: "+Release()+"\n")
}

// What docs/support.md promises about two releases is shown with the newest one before this.
func TestTheReleaseBeforeIsTheOneThatIsTested(t *testing.T) {
	folders, err := os.ReadDir(root + "/changelog")
	require.NoError(t, err)
	this := semantic.MustParseSemantic(Release())
	before := semantic.MustParseSemantic("v0.0.0")
	for _, f := range folders {
		v, err := semantic.ParseSemantic(f.Name())
		if err == nil && v.LessThan(this) && before.LessThan(v) {
			before = v
		}
	}
	text, err := os.ReadFile(root + "/test/skew/skew.mk")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^PREVIOUS +:= v`+regexp.QuoteMeta(before.String())+`$`, string(text), "name the release before this one there, and its commit")
}

// The script is run in a small repository.
func TestSetVersionChangesWhatNamesThisRelease(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
	}
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	script, err := os.ReadFile("set.sh")
	require.NoError(t, err)
	const (
		before = "docker.io/gpuready/toolkit:v1.2.3 gpuready/toolkit:v1.2.3-rc1 gpuready/a:v1.2.30 bin/gpuready-1.2.3.tgz csv/gpuready.v1.2.3\n1.2.3 v1.2.3 example/other:v1.2.3 gpuready/x:v1.2.3"
		after  = "docker.io/gpuready/toolkit:v2.0.0-rc1 gpuready/toolkit:v1.2.3-rc1 gpuready/a:v1.2.30 bin/gpuready-2.0.0-rc1.tgz csv/gpuready.v2.0.0-rc1\n1.2.3 v1.2.3 example/other:v1.2.3 gpuready/x:v2.0.0-rc1"
	)
	files := map[string][2]string{
		"internal/version/VERSION":             {"v1.2.3\n", "v2.0.0-rc1\n"},
		"deployments/helm/gpuready/Chart.yaml": {"version: 1.2.3\nappVersion: v1.2.3\n  version: 1.2.3\n", "version: 2.0.0-rc1\nappVersion: v2.0.0-rc1\n  version: 1.2.3\n"},
		"docs/install.md":                      {before, after},
		"docs/measurements/a.json":             {before, before},
		"docs/walkthroughs.md":                 {`{"version":"v1.2.3-nxt"} gpuready/driver-simulator:v1.2.3-next v1.2.3`, `{"version":"v2.0.0-rc1-nxt"} gpuready/driver-simulator:v2.0.0-rc1-next v1.2.3`},
	}
	for name, texts := range files {
		write(name, texts[0])
	}
	write("internal/version/set.sh", string(script))
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}} {
		out, err := run("git", args...)
		require.NoError(t, err, out)
	}

	for _, wrong := range []string{"", "2.0.0", "v2.0", "v2.0.0/x", "v2.0.0-"} {
		out, err := run("internal/version/set.sh", wrong)
		require.Error(t, err, wrong)
		require.Contains(t, out, "a semantic version is required, as in make set-version VERSION=v1.2.3", wrong)
	}
	out, err := run("internal/version/set.sh", "v2.0.0-rc1")
	require.NoError(t, err, out)
	for name, texts := range files {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, texts[1], string(text), name)
	}
}
