package allocate

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func parse(t *testing.T, text string) *config.Config {
	t.Helper()
	c, _, err := config.Parse([]byte("version: v1\n"+text), "", config.Options{})
	require.NoError(t, err)
	return c
}

// host creates a host's root with these files.
func host(t *testing.T, files ...string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "a[0]*") // names that are no patterns
	for _, file := range files {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), nil, 0o644))
	}
	return root
}

func node() gpu.Snapshot {
	s := gputest.Node("a100-80gb", 2)
	s.Devices[1] = gputest.WithMIG(s.Devices[1], "1g.10gb", "3g.40gb")
	return s
}

func TestCDINamesNeedNoDeviceNodes(t *testing.T) {
	h, lacking := FindDeviceNodes(Roots{HostRoot: host(t, "/dev/nvidiactl", "/dev/gdrdrv"), DriverRoot: "/"}, parse(t, ""), node())
	require.Equal(t, DeviceNodes{DevRoot: "/"}, h)
	require.Empty(t, lacking)
}

func TestDriverRootIsPreferredForDeviceNodes(t *testing.T) {
	place := Roots{HostRoot: host(t, "/run/nvidia/driver/dev/nvidiactl", "/dev/nvidia-uvm"), DriverRoot: "/run/nvidia/driver"}
	h, _ := FindDeviceNodes(place, parse(t, "flags: {plugin: {passDeviceSpecs: true}}"), node())
	require.Equal(t, "/run/nvidia/driver", h.DevRoot)
	require.Equal(t, []string{"/dev/nvidiactl"}, h.Control)
	place.DriverRoot = "/elsewhere"
	h, _ = FindDeviceNodes(place, parse(t, "flags: {plugin: {passDeviceSpecs: true}}"), node())
	require.Equal(t, "/", h.DevRoot)
	require.Equal(t, []string{"/dev/nvidia-uvm"}, h.Control)
	h, _ = FindDeviceNodes(place, parse(t, "flags: {nvidiaDevRoot: /dev/root, plugin: {passDeviceSpecs: true}}"), node())
	require.Equal(t, "/dev/root", h.DevRoot)
}

func TestMIGDevicesHaveOnlyTheirCapabilities(t *testing.T) {
	s := node()
	a, b := s.Devices[1].MIG[0], s.Devices[1].MIG[1]
	minors := map[string]int{}
	for i, m := range []gpu.MIGDevice{a, b} {
		minors[instance(s.Devices[1], m)+"/access"] = 10 + i
		minors[instance(s.Devices[1], m)+"/ci0/access"] = 20 + i
	}
	all := deviceNodes(s, minors)
	require.Equal(t, []string{"/dev/nvidia0"}, all[s.Devices[0].UUID])
	require.Equal(t, []string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap10", "/dev/nvidia-caps/nvidia-cap20"}, all[a.UUID])
	require.Len(t, all[s.Devices[1].UUID], 5)

	delete(minors, instance(s.Devices[1], b)+"/access")
	require.NotContains(t, deviceNodes(s, minors), b.UUID, "it could not be used")
	s.Devices[0].Fault = gpu.Fault{Reason: gpu.ReasonUnreadable}
	require.NotContains(t, deviceNodes(s, minors), s.Devices[0].UUID, "its minor number may not be its own")
	s.Devices[0].Fault, s.Devices[0].Minor = gpu.Fault{}, -1
	require.NotContains(t, deviceNodes(s, minors), s.Devices[0].UUID, "it has none that is known")
}

func instance(d gpu.Device, m gpu.MIGDevice) string {
	return filepath.Join("gpu"+string(rune('0'+d.Minor)), "gi"+string(rune('0'+m.GPUInstance)))
}

func TestMissingDeviceNodesAreReported(t *testing.T) {
	text := "flags: {gdsEnabled: true, mofedEnabled: true, gdrcopyEnabled: true}\nimex: {channelIDs: [0]}"
	root := host(t, "/dev/nvidia-fs0", "/dev/nvidia-fs1", "/dev/infiniband/uverbs0")
	h, lacking := FindDeviceNodes(Roots{HostRoot: root, DriverRoot: "/"}, parse(t, text), node())
	require.Equal(t, []string{"/dev/nvidia-fs0", "/dev/nvidia-fs1"}, h.GDS)
	require.Equal(t, []string{"/dev/infiniband/uverbs0"}, h.MOFED)
	require.Equal(t, []string{"flags.gdrcopyEnabled: no /dev/gdrdrv", "imex.channelIDs: no /dev/nvidia-caps-imex-channels/channel0"}, lacking)

	root = host(t, "/dev/nvidia-caps-imex-channels/channel0")
	h, lacking = FindDeviceNodes(Roots{HostRoot: root}, parse(t, "flags: {gdsEnabled: true, plugin: {deviceListStrategy: envvar}}\nimex: {channelIDs: [0]}"), node())
	require.Equal(t, []int{0}, h.Imex)
	require.Empty(t, lacking, "the NVIDIA container runtime looks for itself")
}

func FuzzMinors(f *testing.F) {
	f.Add("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n")
	f.Add("gpu0/gi0/access -1\nx\n x 99999999999 \n")
	f.Fuzz(func(t *testing.T, text string) {
		for name, minor := range parseMinors(text) {
			require.NotEmpty(t, name)
			require.True(t, minor >= 0 && minor < 1<<20)
		}
	})
}
