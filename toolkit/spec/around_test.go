package spec

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
)

// An RTX PRO 6000 has MIG profiles with graphics. The others have none, and get no graphics nodes.
func TestMIGDevicesWithGraphicsGetTheirNodes(t *testing.T) {
	dir := t.TempDir()
	s := gputest.Node("l40s", 3)
	s.Devices[0] = gputest.WithMIG(s.Devices[0], "1g.24gb+gfx", "1g.24gb", "2g.48gb+me,gfx-ofa")
	s.Devices[1] = gputest.WithMIG(s.Devices[1], "1g.24gb+me", "1g.24gb-gfx")
	nodesOf := [][]string{{"card0", "renderD128"}, {"card1", "renderD129"}, {"card2", "renderD130"}}
	require.NoError(t, os.MkdirAll(dir+"/dev/dri", 0o755))
	for i, names := range nodesOf {
		for k, name := range names {
			require.NoError(t, unix.Mknod(dir+"/dev/dri/"+name, unix.S_IFCHR|0o660, int(unix.Mkdev(226, uint32(i+128*k)))))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "sys/bus/pci/devices", string(s.Devices[i].PCI), "drm", name), 0o755))
		}
	}
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	around, err := FindPeripherals(root, "/", "/", s)
	require.NoError(t, err)
	out := Build(Input{Snapshot: s, Nodes: nodes(s), Around: around, Hook: "/hook"})
	require.Empty(t, out.Warnings)
	graphics := []string{"/dev/dri/card0", "/dev/dri/renderD128"}
	for name, want := range map[string][]string{
		string(s.Devices[0].MIG[0].UUID): graphics,
		string(s.Devices[0].MIG[1].UUID): nil,
		string(s.Devices[0].MIG[2].UUID): graphics,
		string(s.Devices[0].UUID):        graphics,
		string(s.Devices[1].MIG[0].UUID): nil,
		string(s.Devices[1].MIG[1].UUID): nil,
		string(s.Devices[1].UUID):        nil,
		string(s.Devices[2].UUID):        {"/dev/dri/card2", "/dev/dri/renderD130"},
	} {
		var got []string
		for _, p := range device(t, out, cdi.KindGPU, name) {
			if filepath.Dir(p) == "/dev/dri" {
				got = append(got, p)
			}
		}
		require.Equal(t, want, got, name)
	}
	devices := out.Spec(cdi.KindNVIDIA).Devices
	part := slices.IndexFunc(devices, func(d specs.Device) bool { return d.Name == "0:0" })
	require.Contains(t, devices[part].ContainerEdits.Hooks[0].Args, "../renderD128::/dev/dri/by-path/pci-"+string(s.Devices[0].PCI)+"-render")
}
