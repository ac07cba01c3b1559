package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGPUsOnTheBusAreSeenWithoutADriver(t *testing.T) {
	dir := t.TempDir()
	root, err := Open(dir)
	require.NoError(t, err)
	defer root.Close()
	require.Empty(t, root.GPUs(PCIDevices), "no PCI bus")
	add := func(address, vendor, class string) string {
		t.Helper()
		at := filepath.Join(dir, PCIDevices, address)
		require.NoError(t, os.MkdirAll(at, 0o755))
		require.NoError(t, os.WriteFile(at+"/vendor", []byte(vendor+"\n"), 0o444))
		require.NoError(t, os.WriteFile(at+"/class", []byte(class+"\n"), 0o444))
		require.NoError(t, os.WriteFile(at+"/device", []byte("0x2330\n"), 0o444))
		return at
	}
	add("0000:00:01.0", "0x8086", "0x030000")
	add("0000:00:02.0", "0x10de", "0x040300") // the audio function of a GPU
	require.False(t, root.HasGPU())
	add("0000:00:04.0", "0x10de", "0x030200")
	at := add("0000:00:03.0", "0x10de", "0x030000")
	require.NoError(t, os.Symlink("../../../bus/pci/drivers/vfio-pci", at+"/driver"))
	require.True(t, root.HasGPU())
	require.Equal(t, []PCIGPU{{Address: "0000:00:03.0", Device: 0x2330, Driver: "vfio-pci"}, {Address: "0000:00:04.0", Device: 0x2330}}, root.GPUs(PCIDevices))
}
