package nvidia

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
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

func TestFind(t *testing.T) {
	newest := Releases()[len(Releases())-1]
	for name, want := range map[string]string{"": newest.Name, "v24.3.0": "v24.3.0", "24.3.0": "v24.3.0", "24.3": "v24.3.0", "v1.11": "v1.11.1", "1": "v1.11.1"} {
		r, err := Find(name)
		require.NoError(t, err, name)
		require.Equal(t, want, r.Name, name)
	}
	_, err := Find("24.31")
	require.ErrorContains(t, err, `"24.31" is no known release of NVIDIA's GPU Operator: use one of v1.8.1, `)
}

func TestAMirrorReplacesTheRegistry(t *testing.T) {
	r, err := Find("24.3")
	require.NoError(t, err)
	require.Equal(t, "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.5-3.4.1-ubuntu22.04", r.At("")["dcgmExporter"].Ref(v1.ImageSpec{}))
	require.Equal(t, "registry.example:5000/mirror/nvidia/k8s/dcgm-exporter:3.3.5-3.4.1-ubuntu22.04", r.At("registry.example:5000/mirror/")["dcgmExporter"].Ref(v1.ImageSpec{}))
}

func TestNVIDIAsCounterpartsAreRecognised(t *testing.T) {
	for _, image := range []v1.ImageSpec{
		{Version: "v1.17.5-ubuntu20.04"}, {Version: "1.6.0-ubuntu18.04"}, {Version: "v0.17.2"}, {Version: "v0.9.0-ubi8"}, {Version: "v25.3.0"}, {Version: "v1.11.1"}, {Version: "1.17"},
		{Repository: "nvcr.io/nvidia/k8s"}, {Repository: "nvcr.io/nvidia/k8s", Version: "v0.1.0"},
		{Repository: "registry.example/mirror", Image: "container-toolkit", Version: "v1.17.5"}, {Image: "nvcr.io/nvidia/cloud-native/gpu-operator-validator@sha256:0"},
		{Image: "registry.example:5000/nvidia-k8s-device-plugin"}, {Image: "container-toolkit-ubi8", Version: "sha256:0"},
		{Repository: "registry.example/mirror", Version: "v0.17.2"},
	} {
		require.True(t, IsCounterpart(image, "v0.1.0"), "%+v", image)
	}
	for _, image := range []v1.ImageSpec{
		{}, {Version: "v0.1.0"}, {Version: "v0.1.7"}, {Version: "main"}, {Version: "latest"}, {Repository: "registry.example/mirror"},
		{Repository: "registry.example", Image: "toolkit", Version: "v1.17.5"}, {Image: "registry.example/device-plugin:v2.0.0"}, {Version: "sha256:" + strings.Repeat("0", 64)},
	} {
		require.False(t, IsCounterpart(image, "v0.1.0"), "%+v", image)
	}
}

func TestDriverSystem(t *testing.T) {
	for _, c := range []struct{ os, driver, want string }{
		{"ubuntu22.04", "580.105.08", "ubuntu22.04"}, {"ubuntu24.04", "595.91.07", "ubuntu24.04"},
		{"rhel9.4", "580.105.08", "rhel9.4"}, {"rhel9.4", "595.91.07", "rhel9"}, {"rhel9.4", "595.58.03", "rhel9.4"}, {"rhel9.4", "595", "rhel9"}, {"rhel8.10", "610", "rhel8"}, {"rhel10", "595.91.07", "rhel10"},
		{"rhcos4.18", "595.58.03", "rhcos4.18"}, {"sles15.7", "595.58.03", "sles15.7"}, {"rocky9", "580.105.08", "rocky9"}, {"ol9.4", "610.12.01", "ol9"},
	} {
		got, ok := DriverSystem(c.os, c.driver)
		require.True(t, ok, c)
		require.Equal(t, c.want, got, c)
	}
	for _, os := range []string{"", "debian12", "olive", "amzn2023", "flatcar3975.2.0", "azurelinux3.0", "sle-micro6.0", "rhel"} {
		_, ok := DriverSystem(os, "595.58.03")
		require.False(t, ok, os)
	}
	_, ok := DriverSystem("ol9.4", "580.105.08")
	require.False(t, ok)
}
