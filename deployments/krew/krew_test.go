package krew

import (
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// plugin has the fields of krew's v1alpha2
// (https://github.com/kubernetes-sigs/krew/blob/master/pkg/index/types.go).
type plugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string     `json:"version"`
		Homepage         string     `json:"homepage"`
		ShortDescription string     `json:"shortDescription"`
		Description      string     `json:"description"`
		Caveats          string     `json:"caveats"`
		Platforms        []platform `json:"platforms"`
	} `json:"spec"`
}

type platform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
	Files  []struct {
		From string `json:"from"`
		To   string `json:"to"`
	} `json:"files"`
}

func TestTheManifestIsKrewsAndFitsTheArchives(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, p), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, p, "kubectl-gpu"), []byte("the program for "+p), 0o755))
	}
	out, err := exec.Command("./archive.sh", "v1.2.3", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)

	text, err := os.ReadFile(filepath.Join(dir, "gpu.yaml"))
	require.NoError(t, err)
	var m plugin
	require.NoError(t, yaml.UnmarshalStrict(text, &m))
	require.Equal(t, "krew.googlecontainertools.github.com/v1alpha2", m.APIVersion)
	require.Equal(t, "Plugin", m.Kind)
	require.Equal(t, "gpu", m.Metadata.Name, "the program is kubectl-gpu")
	require.Equal(t, "v1.2.3", m.Spec.Version)
	require.NotEmpty(t, m.Spec.Description)
	require.NotEmpty(t, m.Spec.ShortDescription)
	require.LessOrEqual(t, len(m.Spec.ShortDescription), 50)
	_, err = url.ParseRequestURI(m.Spec.Homepage)
	require.NoError(t, err)
	require.Len(t, m.Spec.Platforms, 4)
	for _, p := range m.Spec.Platforms {
		name := p.Selector.MatchLabels["os"] + "-" + p.Selector.MatchLabels["arch"]
		require.Len(t, p.Selector.MatchLabels, 2, name)
		archive := "kubectl-gpu-v1.2.3-" + name + ".tar.gz"
		require.Equal(t, "https://github.com/gpuready/gpuready/releases/download/v1.2.3/"+archive, p.URI)
		data, err := os.ReadFile(filepath.Join(dir, archive))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(data)), p.SHA256, name)
		require.Regexp(t, regexp.MustCompile(`^[0-9a-f]{64}$`), p.SHA256)
		list, err := exec.Command("tar", "-tzf", filepath.Join(dir, archive)).Output()
		require.NoError(t, err)
		var moved []string
		for _, f := range p.Files {
			moved = append(moved, f.From)
			require.Equal(t, ".", f.To)
		}
		require.ElementsMatch(t, strings.Fields(string(list)), moved, name)
		require.Contains(t, moved, p.Bin)
	}

	out, err = exec.Command("./archive.sh", "v1.2.3", dir, "https://example.com/files/").CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err = os.ReadFile(filepath.Join(dir, "gpu.yaml"))
	require.NoError(t, err)
	require.Contains(t, string(text), "uri: https://example.com/files/kubectl-gpu-v1.2.3-darwin-arm64.tar.gz\n")
	require.NotContains(t, string(text), "SHA256-")

	out, err = exec.Command("./archive.sh", "abc1234", dir).CombinedOutput()
	require.Error(t, err, "krew wants semantic versions")
	require.Contains(t, string(out), "set VERSION")
}
