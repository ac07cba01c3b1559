package request

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for value, want := range map[string]Capabilities{
		"":                   defaultCapabilities,
		" , ":                defaultCapabilities,
		"utility":            utility,
		"video,compute":      video | compute,
		"compute, utility ,": compute | utility,
		"all":                allCapabilities,
		"all,compute":        allCapabilities,
		"compat32,graphics,display,ngx,video,utility,compute": allCapabilities,
	} {
		got, err := parseCapabilities(value)
		require.NoError(t, err, value)
		require.Equal(t, want, got, value)
	}
	_, err := parseCapabilities("compute,grafics")
	require.EqualError(t, err, `"grafics" is no driver capability; there are compute, compat32, graphics, utility, video, display, ngx and all`)
}

func TestEachCapabilityIncludesItsOwnFiles(t *testing.T) {
	const lib = "/usr/lib/x86_64-linux-gnu/"
	for _, c := range []struct {
		path string
		to   string // the capabilities of which one is enough
	}{
		{lib + "libcuda.so.580.95.05", "compute"},
		{lib + "libcudadebugger.so.1", "compute"},
		{lib + "libnvidia-ptxjitcompiler.so.580.95.05", "compute"},
		{lib + "libnvidia-something-new.so.1", "compute"},
		{lib + "libnvidia-ml.so.580.95.05", "utility"},
		{"/usr/bin/nvidia-smi", "utility"},
		{"/usr/bin/nvidia-cuda-mps-control", "compute"},
		{"/usr/bin/nvidia-xconfig", "display"},
		{"/usr/local/nvidia/bin/nvidia-smi", "utility"},
		{"/etc/OpenCL/vendors/nvidia.icd", "compute"},
		{lib + "libnvcuvid.so.1", "video"},
		{lib + "libnvidia-encode.so", "video"},
		{lib + "libnvidia-ngx.so.580.95.05", "ngx"},
		{lib + "libGLX_nvidia.so.0", "graphics,display"},
		{lib + "libEGL_nvidia.so.0", "graphics,display"},
		{lib + "libnvidia-glcore.so.580.95.05", "graphics,display"},
		{lib + "libnvidia-gpucomp.so.580.95.05", "compute,graphics"},
		{lib + "nvidia/xorg/nvidia_drv.so", "graphics,display"},
		{"/usr/share/vulkan/icd.d/nvidia_icd.json", "graphics,display"},
		{"/usr/share/glvnd/egl_vendor.d/10_nvidia.json", "graphics,display"},
		{"/dev/nvidia-modeset", "graphics,display"},
		{"/dev/dri/card0", "graphics,display"},
		{"/dev/nvidia0", "compute,graphics,utility,video,display,ngx"},
		{"/dev/nvidiactl", "compute,graphics,utility,video,display,ngx"},
		{"/lib/firmware/nvidia/580.95.05/gsp_ga10x.bin", "compute,graphics,utility,video,display,ngx"},
		{"/usr/local/nvidia/firmware/nvidia/580.95.05/ucodes.bin", "compute,graphics,utility,video,display,ngx"},
		{"/run/nvidia-persistenced/socket", "compute,graphics,utility,video,display,ngx"},
	} {
		for _, n := range capabilityNames[:len(capabilityNames)-1] {
			if n.set == compat32 {
				continue
			}
			require.Equal(t, strings.Contains(","+c.to+",", ","+n.name+","), n.set.covers(c.path), "%s by %s", c.path, n.name)
		}
		require.True(t, allCapabilities.covers(c.path), c.path)
	}
	for _, p := range []string{"/usr/lib/i386-linux-gnu/libcuda.so.1", "/usr/lib32/libcuda.so.1"} {
		require.False(t, compute.covers(p), p)
		require.False(t, compat32.covers(p), p)
		require.True(t, (compute | compat32).covers(p), p)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("compute,utility")
	f.Add("all,,none")
	f.Fuzz(func(t *testing.T, value string) {
		set, err := parseCapabilities(value)
		if err != nil {
			return
		}
		again, err := parseCapabilities(set.String())
		if err != nil || again != set || set == noCapability {
			t.Fatalf("%q: %v, again %v: %v", value, set, again, err)
		}
	})
}
