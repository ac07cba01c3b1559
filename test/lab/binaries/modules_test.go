package binaries

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tools returns the tools that a go.mod names.
func tools(mod string) []string {
	var names []string
	block := false
	for line := range strings.Lines(mod) {
		line = strings.TrimSpace(line)
		tool, single := strings.CutPrefix(line, "tool ")
		switch {
		case line == "tool (":
			block = true
		case single:
			names = append(names, tool)
		case line == ")":
			block = false
		case block:
			names = append(names, line)
		}
	}
	return names
}

func TestEachModuleNamesItsToolsAndVersion(t *testing.T) {
	source, err := findSource()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, m := range slices.Concat([]module{docker, nfd, olm, autoscaler}, nvidia, modules) {
		e, err := m.entry(source, "/cache", "go1.99")
		require.NoError(t, err)
		require.Regexp(t, `^/cache/`+m.name+`-v\d+\.\d+\.\d+(-beta\.\d+|-(0\.)?\d{14}-[0-9a-f]{12})?-[0-9a-f]{16}$`, e.path)
		mod, err := os.ReadFile(filepath.Join(source, m.name, "go.mod"))
		require.NoError(t, err)
		// The modules keep the names of their first place: a name is part of the key of a cache entry.
		require.Contains(t, string(mod), "module github.com/gpuready/gpuready/test/cluster/binaries/"+m.name+"\n")
		var built []string
		for _, b := range m.binaries {
			require.False(t, seen[b.name], "%s is built twice", b.name)
			seen[b.name] = true
			built = append(built, b.tool)
			require.NotContains(t, strings.Join(e.arguments(b, b.name), " "), "{")
			require.Positive(t, b.about)
		}
		require.ElementsMatch(t, tools(string(mod)), built, m.name)
	}
}

// TestKubernetesIsOneVersionThroughout checks Kubernetes' staging modules, which its go.mod
// takes from its own tree: they have the same version with a different first number.
func TestKubernetesIsOneVersionThroughout(t *testing.T) {
	mod, err := os.ReadFile("kubernetes/go.mod")
	require.NoError(t, err)
	version := required(string(mod), "k8s.io/kubernetes")
	staging := "v0." + strings.TrimPrefix(version, "v1.")
	replaced := regexp.MustCompile(`(?m)^\t(k8s\.io/\S+) => (k8s\.io/\S+) (\S+)$`).FindAllStringSubmatch(string(mod), -1)
	require.Greater(t, len(replaced), 25)
	for _, r := range replaced {
		require.Equal(t, r[1], r[2])
		require.Equal(t, staging, r[3], r[1])
	}
}

// TestOlderKubernetesVersionsAreComplete checks the folders of the other minor versions. A module of
// Kubernetes' own tree may be of another patch release: not each was published for each.
func TestOlderKubernetesVersionsAreComplete(t *testing.T) {
	source, err := findSource()
	require.NoError(t, err)
	for _, minor := range kubernetesVersions {
		m, err := kubernetesAt(minor, source)
		require.NoError(t, err)
		e, err := m.entry(source, "/cache", "go1.99")
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(e.version, "v"+minor+"."), "%s pins %s", m.name, e.version)
		mod, err := os.ReadFile(filepath.Join(source, m.name, "go.mod"))
		require.NoError(t, err)
		require.Contains(t, string(mod), "module github.com/gpuready/gpuready/test/cluster/binaries/"+m.name+"\n")
		var built []string
		for _, b := range m.binaries {
			built = append(built, b.tool)
		}
		require.ElementsMatch(t, tools(string(mod)), built, m.name)
		staging := regexp.MustCompile(`(?m)^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.(\d+)\.\d+$`).FindAllStringSubmatch(string(mod), -1)
		require.Greater(t, len(staging), 25, m.name)
		for _, s := range staging {
			require.Equal(t, minor, "1."+s[1], "%s: %s", m.name, s[0])
		}
	}
	newest, err := kubernetesAt("", source)
	require.NoError(t, err)
	require.Equal(t, "kubernetes", newest.name)
	_, err = Ensure(t.Context(), Options{Kubernetes: "1.8", Cache: t.TempDir()})
	require.ErrorContains(t, err, "Kubernetes 1.8: there are 1.30, 1.32, ")
}

func TestAnEstimateScalesWithTheCores(t *testing.T) {
	for _, c := range []struct {
		cores int
		about time.Duration
		want  string
	}{
		{2, 10 * time.Minute, "about 10 minutes"},
		{8, 10 * time.Minute, "about 3 minutes"},
		{16, 10 * time.Minute, "about a minute"},
		{1, 10 * time.Minute, "about 20 minutes"},
		{2, 20 * time.Second, "less than a minute"},
		{2, time.Minute, "about a minute"},
	} {
		require.Equal(t, c.want, (&screen{cores: c.cores}).estimate(c.about), "%v", c)
	}
}

func TestALiveLineFitsTheTerminal(t *testing.T) {
	const name, about = "kubelet v1.37.1", "about 5 minutes"
	require.Equal(t, "  ◌ kubelet v1.37.1                  2:05, about 5 minutes",
		line(name, about, "", 125*time.Second, 100))
	require.Equal(t, "  ◌ kubelet v1.37.1                  2:05, about 5 minutes  k8s.io/kuber",
		line(name, about, "k8s.io/kubernetes/pkg/kubelet", 125*time.Second, 73))
	require.Equal(t, "  ◌", line(name, about, "", 0, 4))
}

func TestALiveLineIsReplacedByHowItEnded(t *testing.T) {
	var out strings.Builder
	s := newScreen(&out)
	s.width = func() int { return 80 }
	b := s.begin("kubelet v1.37.1", time.Minute)
	b.setStep("k8s.io/kubernetes/pkg/kubelet")
	b.end(nil, 72_000_000)
	lines := strings.Split(out.String(), "\r\033[K")
	require.Equal(t, "  \033[32m✓\033[0m kubelet v1.37.1                  built in 0s, 72 MB\n", lines[len(lines)-1])
	s.begin("kubectl v1.37.1", time.Minute).end(os.ErrNotExist, 0)
	require.Contains(t, out.String(), "kubectl v1.37.1                  not built, after 0s\n")
}

func TestPackagesAreProgressAndOtherLinesAreKept(t *testing.T) {
	var told []string
	o := &output{heard: func(s string) { told = append(told, s) }}
	for _, part := range []string{"go: downloading example.com/a v1.0.0\nexample", ".com/a\n# example.com/b\nb.go:1:2: undef", "ined: x\nthe last"} {
		n, err := o.Write([]byte(part))
		require.NoError(t, err)
		require.Len(t, part, n)
	}
	require.Equal(t, []string{"downloading example.com/a v1.0.0", "example.com/a"}, told)
	require.Equal(t, "# example.com/b\nb.go:1:2: undefined: x\nthe last", o.tail())
}
