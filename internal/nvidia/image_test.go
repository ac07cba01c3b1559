package nvidia

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDriverTag(t *testing.T) {
	for kernel, want := range map[string]string{
		"4.18.0-372.51.1.el8_6.x86_64": "525.105.17-4.18.0-372.51.1.el8_6.x86_64-rhcos4.12",
		"6.12.95+deb12-cloud-amd64":    "525.105.17-6.12.95_deb12-cloud-amd64-rhcos4.12",
		"6.8.0+":                       "525.105.17-6.8.0-rhcos4.12",
		"6.8.0-1015-NVIDIA":            "525.105.17-6.8.0-1015-NVIDIA-rhcos4.12",
	} {
		tag, err := DriverTag("525.105.17", kernel, "rhcos4.12")
		require.NoError(t, err)
		require.Equal(t, want, tag)
	}
	for _, kernel := range []string{"", "+", "a/b", strings.Repeat("1", 130)} {
		_, err := DriverTag("1", kernel, "os")
		require.Error(t, err)
	}
}

func TestNVIDIAsCounterpartsAreRecognised(t *testing.T) {
	for _, image := range []Image{
		{Version: "v1.17.5-ubuntu20.04"}, {Version: "1.6.0-ubuntu18.04"}, {Version: "v0.17.2"}, {Version: "v0.9.0-ubi8"}, {Version: "v25.3.0"}, {Version: "v1.11.1"}, {Version: "1.17"},
		{Repository: "nvcr.io/nvidia/k8s"}, {Repository: "nvcr.io/nvidia/k8s", Version: "v0.1.0"},
		{Repository: "registry.example/mirror", Image: "container-toolkit", Version: "v1.17.5"}, {Image: "nvcr.io/nvidia/cloud-native/gpu-operator-validator@sha256:0"},
		{Image: "registry.example:5000/nvidia-k8s-device-plugin"}, {Image: "container-toolkit-ubi8", Version: "sha256:0"},
		{Repository: "registry.example/mirror", Version: "v0.17.2"},
	} {
		require.True(t, IsCounterpart(image, "v0.1.0"), "%+v", image)
	}
	for _, image := range []Image{
		{}, {Version: "v0.1.0"}, {Version: "v0.1.7"}, {Version: "main"}, {Version: "latest"}, {Repository: "registry.example/mirror"},
		{Repository: "registry.example", Image: "toolkit", Version: "v1.17.5"}, {Image: "registry.example/device-plugin:v2.0.0"}, {Version: "sha256:" + strings.Repeat("0", 64)},
	} {
		require.False(t, IsCounterpart(image, "v0.1.0"), "%+v", image)
	}
	for own, versions := range map[string]map[string]bool{
		"v0.2.0":     {"v0.2.7": false, "v0.1.0": false, "v0.3.0": true, "v0.0.1": true, "v1.1.0": true, "v0.1.0-rc1": false, "v0.2": false, "0": false},
		"v1.0.0":     {"v1.0.3": false, "v0.9.0": true, "v1.1.0": true},
		"v1.3.0-rc1": {"v1.2.9": false, "v1.3.0": false, "v1.1.0": true},
		"main":       {"v0.1.0": true, "main": false},
	} {
		for version, want := range versions {
			require.Equal(t, want, IsCounterpart(Image{Version: version}, own), "%s with %s", version, own)
		}
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
