package verify

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
	admission "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func digest(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func example() contents.Release {
	return contents.Release{Version: "v0.2.0", Artifacts: []contents.Artifact{
		{Name: "operator", Kind: contents.Image, Digest: digest("b"), Platforms: []contents.Platform{{Digest: digest("a")}}},
		{Name: "toolkit", Kind: contents.Image, Digest: digest("c"), Platforms: []contents.Platform{{Digest: digest("a")}}},
		{Name: "charts/gpuready", Kind: contents.Chart, Digest: digest("d")},
	}, Files: []contents.Blob{{Name: "one", SHA256: strings.Repeat("1", 64)}, {Name: "two", SHA256: strings.Repeat("2", 64)}}}
}

func TestPolicyAllowsTheImagesOfARelease(t *testing.T) {
	data, err := Policy(example(), "gpuready")
	require.NoError(t, err)
	golden.Require(t, "testdata/policy.yaml", data)
	policy, binding, ok := strings.Cut(string(data), "---\n")
	require.True(t, ok)
	require.NoError(t, yaml.UnmarshalStrict([]byte(policy), &admission.ValidatingAdmissionPolicy{}))
	require.NoError(t, yaml.UnmarshalStrict([]byte(binding), &admission.ValidatingAdmissionPolicyBinding{}))
	_, err = Policy(contents.Release{}, "gpuready")
	require.ErrorContains(t, err, "no images")
}

func TestARefusalIsOneLineWithoutControls(t *testing.T) {
	e := &RefusedError{Check{Subject: "operator", Name: Tag, Expected: "a", Found: "b\r\x1b[2Kok\nREFUSED", Next: "do not use it"}}
	require.Equal(t, "operator: tag: expected a; found b\uFFFD\uFFFD[2Kok\uFFFDREFUSED; do not use it", e.Error())
}

func TestDifferencesBetweenAnSBOMAndAnImageAreListed(t *testing.T) {
	require.Empty(t, compareLists("file", map[string]string{"a": "1"}, map[string]string{"a": "1"}))
	require.Equal(t, []string{
		"file a is listed with 1 and is 2 in the image", "file b is listed and not in the image", "file c is in the image and not listed",
	}, compareLists("file", map[string]string{"a": "1", "b": "1"}, map[string]string{"a": "2", "c": "1"}))
	_, err := readSBOM([]byte("{}"))
	require.ErrorContains(t, err, "SPDX")
}

func TestFilesThatTheListDoesNotHaveAreRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, contents.Files), 0o755))
	sums := filepath.Join(dir, contents.Files, contents.Sums)
	layer := func(c string) v1.Descriptor {
		return v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat(c, 64)}}
	}
	layers := func(more map[string]v1.Descriptor) map[string]v1.Descriptor {
		all := map[string]v1.Descriptor{
			"release.json": layer("0"), "files/SHA256SUMS": layer("0"), "files/one": layer("1"), "files/two": layer("2"),
			"signatures/release.json.signature.sigstore.json": layer("0"), "signatures/SHA256SUMS.signature.sigstore.json": layer("0"), "signatures/files.provenance.sigstore.json": layer("0"),
		}
		maps.Copy(all, more)
		return all
	}
	line := func(c, name string) string { return strings.Repeat(c, 64) + "  " + name + "\n" }
	good := line("1", "one") + line("2", "two")
	for name, c := range map[string]struct {
		sums   string
		layers map[string]v1.Descriptor
		want   string
	}{
		"nothing":            {sums: good},
		"a sum is missing":   {sums: line("1", "one"), want: "SHA256SUMS: two has SHA-256 none"},
		"a sum too many":     {sums: good + line("3", "three"), want: "SHA256SUMS: three has SHA-256 3333"},
		"another sum":        {sums: line("1", "one") + line("3", "two"), want: "SHA256SUMS: two has SHA-256 3333"},
		"no sum":             {sums: good + "text\n", want: "SHA256SUMS:3"},
		"a file too many":    {sums: good, layers: map[string]v1.Descriptor{"files/three": layer("3")}, want: "the artifact: three"},
		"another file":       {sums: good, layers: map[string]v1.Descriptor{"files/two": layer("3")}, want: "the artifact: two has SHA-256 3333"},
		"something unlisted": {sums: good, layers: map[string]v1.Descriptor{"other": layer("3")}, want: "other is not expected"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(sums, []byte(c.sums), 0o644))
			differences := compareFiles(example(), dir, layers(c.layers))
			if c.want == "" {
				require.Empty(t, differences)
				return
			}
			require.Len(t, differences, 1)
			require.Contains(t, differences[0], c.want)
		})
	}
}
