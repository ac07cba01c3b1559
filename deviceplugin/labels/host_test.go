package labels_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/labels"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
)

func writeFile(t *testing.T, root, path, text string) {
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// readHost returns what ReadHost finds below a directory.
func readHost(t *testing.T, dir, text string, s gpu.Snapshot) labels.Host {
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	c, _, err := config.Parse([]byte(text), "c.yaml", config.Options{})
	require.NoError(t, err)
	return labels.ReadHost(root, c, s)
}

func TestMachineIsReadBelowTheRoot(t *testing.T) {
	dir, s := t.TempDir(), gputest.Node("t4", 4)
	writeFile(t, dir, "sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)\n")
	writeFile(t, dir, "etc/machine", "DGX\x00 \x1b[2J-2H ")
	for i, class := range []string{"0x030200\n", "0x030000\n", "VGA\n"} {
		writeFile(t, dir, filepath.Join(host.PCIDevices, string(s.Devices[i].PCI), "class"), class)
	}
	h := readHost(t, dir, "version: v1", s)
	require.Equal(t, map[gpu.PCIAddress]uint32{s.Devices[0].PCI: 0x030200, s.Devices[1].PCI: 0x030000}, h.Class)
	require.Equal(t, "Standard PC (Q35 + ICH9, 2009)", h.Machine)

	machine := func(text string) string {
		n := node(t, text, s)
		n.Host = readHost(t, dir, text, s)
		l := labels.Compute(n)
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
	require.Empty(t, readHost(t, dir, "version: v1", gputest.Node("t4", 1)).Machine)
}

func TestFeatureFileIsReplacedAtomically(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "features.d")
	l := labelsOf(t, "version: v1", gputest.Node("h100-sxm", 8))
	require.NoError(t, labels.Write(dir, l))
	path := filepath.Join(dir, labels.FileName)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, labels.Text(l), string(data))
	require.Contains(t, string(data), "\nnvidia.com/gpu.count=8\n")

	require.NoError(t, labels.Write(dir, map[string]string{"nvidia.com/gpu.count": "1"}))
	data, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "nvidia.com/gpu.count=1\n", string(data))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	long := map[string]string{}
	for len(labels.Text(long)) <= 64000 {
		long["nvidia.com/gpu."+strings.Repeat("x", len(long)/100)+string(rune('a'+len(long)%26))+strings.Repeat("y", len(long)%100)] = strings.Repeat("x", 63)
	}
	require.ErrorContains(t, labels.Write(dir, long), path)
	data, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "nvidia.com/gpu.count=1\n", string(data), "the old ones stay")
}
