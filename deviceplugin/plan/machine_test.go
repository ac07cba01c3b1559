package plan_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
)

func writeFile(t *testing.T, root, path, text string) {
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// readMachine returns what ReadMachine finds below a directory.
func readMachine(t *testing.T, dir, text string, s gpu.Snapshot) plan.Machine {
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	c, _, err := config.Parse([]byte(text), "c.yaml", config.Options{})
	require.NoError(t, err)
	return plan.ReadMachine(root, c, s)
}

func TestMachineIsReadBelowTheRoot(t *testing.T) {
	dir, s := t.TempDir(), gputest.Node("t4", 4)
	writeFile(t, dir, "sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n")
	writeFile(t, dir, "etc/machine", "DGX\x00 \x1b[2J-2H ")
	for i, class := range []string{"0x030200\n", "0x030000\n", "VGA\n"} {
		writeFile(t, dir, filepath.Join(host.PCIDevices, string(s.Devices[i].PCI), "class"), class)
	}
	h := readMachine(t, dir, "version: v1", s)
	require.Equal(t, map[gpu.PCIAddress]uint32{s.Devices[0].PCI: 0x030200, s.Devices[1].PCI: 0x030000}, h.Classes)
	require.Equal(t, "Standard PC (Q35 + ICH9, 2009)", h.ProductName)

	machine := func(text string) string {
		n := labelInput(t, text, s)
		n.Machine = readMachine(t, dir, text, s)
		l := plan.Labels(n)
		valid(t, l)
		return l["nvidia.com/gpu.machine"]
	}
	require.Equal(t, "Standard-PC-Q35-ICH9-2009", machine("version: v1"))
	require.Equal(t, "DGX-2J-2H", machine("flags: {gfd: {machineTypeFile: /etc/machine}}"))
	require.Equal(t, "unknown", machine("flags: {gfd: {machineTypeFile: /etc/none}}"))
	require.Equal(t, "unknown", machine("flags: {gfd: {machineTypeFile: ''}}"))
	require.Equal(t, "unknown", machine("flags: {gfd: {machineTypeFile: /etc}}"), "a directory")
}

func TestAHugeFileIsNotRead(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, host.PCIDevices), 0o755))
	writeFile(t, dir, "sys/class/dmi/id/product_name", strings.Repeat("x", 1<<20))
	require.Empty(t, readMachine(t, dir, "version: v1", gputest.Node("t4", 1)).ProductName)
}
