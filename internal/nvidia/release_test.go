package nvidia

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryReleaseHasWholeImages(t *testing.T) {
	for _, r := range Releases() {
		for _, field := range []string{"driver", "toolkit", "devicePlugin", "dcgm", "dcgmExporter", "migManager"} {
			image := r.Images[field]
			require.True(t, strings.HasPrefix(image.Repository, Vendor), "%s %s", r.Name, field)
			require.NotEmpty(t, image.Image, "%s %s", r.Name, field)
			require.NotEmpty(t, image.Version, "%s %s", r.Name, field)
		}
	}
	require.True(t, slices.IsSortedFunc(Releases(), func(a, b Release) int { return compare(a.Name, b.Name) }), "from the oldest")
}

// compare compares releases: v1.11.1 is older than v22.9.0.
func compare(a, b string) int {
	pad := func(name string) (all string) {
		for part := range strings.SplitSeq(strings.TrimPrefix(name, "v"), ".") {
			all += strings.Repeat("0", 4-len(part)) + part
		}
		return all
	}
	return strings.Compare(pad(a), pad(b))
}

func TestFindRelease(t *testing.T) {
	newest := Releases()[len(Releases())-1]
	for name, want := range map[string]string{"": newest.Name, "v24.3.0": "v24.3.0", "24.3.0": "v24.3.0", "24.3": "v24.3.0", "v1.11": "v1.11.1", "1": "v1.11.1"} {
		r, err := FindRelease(name)
		require.NoError(t, err, name)
		require.Equal(t, want, r.Name, name)
	}
	_, err := FindRelease("24.31")
	require.ErrorContains(t, err, `"24.31" is no known release of NVIDIA's GPU Operator: use one of v1.8.1, `)
}

func TestAMirrorReplacesTheRegistry(t *testing.T) {
	r, err := FindRelease("24.3")
	require.NoError(t, err)
	require.Equal(t, Image{"nvcr.io/nvidia/k8s", "dcgm-exporter", "3.3.5-3.4.1-ubuntu22.04"}, r.At("")["dcgmExporter"])
	require.Equal(t, Image{"registry.example:5000/mirror/nvidia/k8s", "dcgm-exporter", "3.3.5-3.4.1-ubuntu22.04"}, r.At("registry.example:5000/mirror/")["dcgmExporter"])
}
