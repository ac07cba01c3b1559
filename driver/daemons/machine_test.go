package daemons

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/daemons/supervisor"
	"github.com/gpuready/gpuready/internal/host"
)

// image is a driver image in a folder.
type image struct {
	t    *testing.T
	dir  string
	root *host.Root
}

func newImage(t *testing.T) image {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, host.PCIDevices), 0o755))
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return image{t, dir, root}
}

func (i image) write(name, text string, mode os.FileMode) {
	i.t.Helper()
	path := filepath.Join(i.dir, name)
	require.NoError(i.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(i.t, os.WriteFile(path, []byte(text), mode))
}

// pci adds a device; driver "" means that it is not bound.
func (i image) pci(address, vendor, class, driver string) string {
	i.t.Helper()
	dir := host.PCIDevices + "/" + address
	i.write(dir+"/vendor", vendor+"\n", 0o444)
	i.write(dir+"/class", class+"\n", 0o444)
	if driver != "" {
		require.NoError(i.t, os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(i.dir, dir, "driver")))
	}
	return dir
}

// bridge adds a function that leads to NVSwitches.
func (i image) bridge(address, device, mask, gid string) {
	i.t.Helper()
	dir := i.pci(address, "0x15b3", "0x020700", "mlx5_core")
	i.write(dir+"/vpd", "\x82\x10\x00ConnectX-7\x90V0\x06SMDL=SW_MNG\x78", 0o400)
	if device != "" {
		port := dir + "/infiniband/" + device + "/ports/1"
		i.write(port+"/cap_mask", mask+"\n", 0o444)
		i.write(port+"/gids/0", gid+"\n", 0o444)
	}
}

func (i image) survey(env ...string) Machine {
	i.t.Helper()
	m, err := ReadMachine(i.root, i.root, env)
	require.NoError(i.t, err)
	return m
}

func TestSurveyCountsUsableDevices(t *testing.T) {
	i := newImage(t)
	i.pci("0000:00:00.0", "0x8086", "0x060000", "")
	i.pci("0000:01:00.0", "0x10de", "0x030200", "nvidia")
	i.pci("0000:02:00.0", "0x10de", "0x030000", "")
	i.pci("0000:03:00.0", "0x10de", "0x030200", "vfio-pci")
	i.pci("0000:03:00.1", "0x10de", "0x040300", "snd_hda_intel")
	i.pci("0000:04:00.0", "0x10de", "0x068000", "nvidia-nvswitch")
	i.pci("0000:05:00.0", "0x10de", "0x068000", "")
	i.pci("0000:06:00.0", "0x10de", "0x068000", "vfio-pci")
	i.pci("0000:07:00.0", "0x10de", "0x068000", "forcedeth")
	i.pci("0000:08:00.0", "0x8086", "0x068000", "")
	m := i.survey()
	require.Equal(t, []int{2, 2, 0}, []int{m.GPUs, m.NVSwitches, m.Bridges})
}

func TestSurveyFindsTheBridgesOfNVLink5(t *testing.T) {
	i := newImage(t)
	card := i.pci("0000:01:00.0", "0x15b3", "0x020700", "mlx5_core")
	i.write(card+"/vpd", "ConnectX-7 NIC", 0o400)
	i.write(card+"/infiniband/mlx5_9/ports/1/cap_mask", "0xa751e848\n", 0o444)
	i.write(card+"/infiniband/mlx5_9/ports/1/gids/0", "fe80:0000:0000:0000:1111:1111:1111:1111\n", 0o444)
	i.pci("0000:02:00.0", "0x15b3", "0x020700", "mlx5_core") // without VPD
	i.bridge("0000:03:00.0", "", "", "")
	m := i.survey()
	require.Equal(t, 1, m.Bridges)
	require.Empty(t, m.PortGUID, "its module is not loaded")
	require.False(t, m.UserMAD)

	i.bridge("0000:04:00.0", "mlx5_0", "0xa751ec48", "fe80:0000:0000:0000:e09d:7303:003f:3bf6") // IsSMDisabled
	i.bridge("0000:05:00.0", "mlx5_1", "0xa751e848", "0000:0000:0000:0000:0000:0000:0000:0000")
	i.bridge("0000:06:00.0", "mlx5_2", "0xa751e848", "fe80:0000:0000:0000:e09d:7303:003f:3bf8")
	i.bridge("0000:07:00.0", "mlx5_3", "0xa751e848", "fe80:0000:0000:0000:e09d:7303:003f:3bf9")
	i.write("/sys/class/infiniband_mad/abi_version", "5\n", 0o444)
	m = i.survey()
	require.Equal(t, 5, m.Bridges)
	require.Equal(t, "0xe09d7303003f3bf8", m.PortGUID)
	require.True(t, m.UserMAD)
}

func TestSurveyReadsTheImage(t *testing.T) {
	i := newImage(t)
	m := i.survey("DRIVER_TYPE=passthrough")
	require.Equal(t, Machine{Programs: map[string]string{}, Env: []string{"DRIVER_TYPE=passthrough"}}, m)

	i.write("/usr/bin/nvidia-persistenced", "", 0o755)
	i.write("/usr/sbin/nvidia-persistenced", "", 0o755)
	i.write("/usr/bin/nv-fabricmanager", "", 0o644) // is no program
	i.write("/opt/nvidia/nvlsm/sbin/nvlsm", "", 0o755)
	i.write(fabricConf, fabricFile, 0o644)
	i.write(imexConf, "SERVER_PORT=50000\n", 0o644)
	i.write(imexNodes, "# nodes\n\n", 0o644)
	i.write(licenseFrom, "FeatureType=1\n", 0o644)
	i.write(tokensFrom+"/..data/x", "", 0o644)
	i.write(tokensFrom+"/token.tok", "SECRET", 0o600)
	i.write("/usr/lib64/nvidia/gridd/libFlxCore64.so", "", 0o755)
	i.write(topologyConf, "", 0o644)
	m = i.survey("DRIVER_TYPE=vgpu")
	require.Equal(t, Machine{
		Programs:     map[string]string{persistenced: "/usr/bin/nvidia-persistenced", nvlsm: "/opt/nvidia/nvlsm/sbin/nvlsm"},
		FabricConfig: []byte(fabricFile), VGPU: true, GriddLibs: "/usr/lib64/nvidia/gridd", Topology: true,
		License:    []supervisor.File{{Path: licenseTo, Data: []byte("FeatureType=1\n")}, {Path: tokensTo + "/token.tok", Data: []byte("SECRET")}},
		IMEXConfig: []byte("SERVER_PORT=50000\n"), Env: []string{"DRIVER_TYPE=vgpu"}}, m)

	i.write(imexNodes, "# nodes\n10.0.0.1\n", 0o644)
	require.True(t, i.survey().IMEXNodes)
}

func TestUnreadableInputsFailTheSurvey(t *testing.T) {
	i := newImage(t)
	i.write(fabricConf, strings.Repeat("#", maxFile+1), 0o644)
	_, err := ReadMachine(i.root, i.root, nil)
	require.ErrorIs(t, err, host.ErrTooLarge)
	require.NoError(t, os.RemoveAll(filepath.Join(i.dir, "sys")))
	_, err = ReadMachine(i.root, i.root, nil)
	require.ErrorContains(t, err, "mount /sys")
}

func FuzzGID(f *testing.F) {
	f.Add("fe80:0000:0000:0000:e09d:7303:003f:3bf8")
	f.Fuzz(func(t *testing.T, gid string) {
		if guid := parseGID(gid); guid != "" {
			require.Regexp(t, "^0x[0-9a-f]{16}$", guid)
		}
	})
}
