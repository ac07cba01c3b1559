package preflight

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
)

// structure returns a System Slots structure with the name as its second string.
func structure(segment uint16, bus, devfn byte, name string) []byte {
	data := make([]byte, 0x13)
	data[0], data[1], data[4] = 9, byte(len(data)), 2
	data[0x0d], data[0x0e], data[0x0f], data[0x10] = byte(segment), byte(segment>>8), bus, devfn
	return append(data, []byte("other\x00"+name+"\x00\x00")...)
}

func TestTheSlotOfAGPU(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) {
		require.NoError(t, os.MkdirAll(filepath.Dir(dir+name), 0o755))
		require.NoError(t, os.WriteFile(dir+name, data, 0o644))
	}
	write("/sys/bus/pci/slots/3/address", []byte("0000:3b:00\n"))
	write("/sys/bus/pci/slots/7/address", []byte("0000:5d:02\n"))
	write("/sys/firmware/dmi/entries/9-0/raw", structure(0, 0x3b, 0, "PCIe Slot 3"))
	write("/sys/firmware/dmi/entries/9-1/raw", structure(1, 0x81, 1<<3, "OAM\x1b[2J 1"))
	write("/sys/firmware/dmi/entries/9-2/raw", structure(0xffff, 0xff, 0xff, "nowhere"))
	write("/sys/firmware/dmi/entries/9-3/raw", []byte{9, 3})
	write("/sys/firmware/dmi/entries/9-4/raw", append(structure(0, 1, 0, "x")[:4], 200))
	require.NoError(t, os.MkdirAll(dir+"/sys/bus/pci/devices", 0o755))
	require.NoError(t, os.Symlink("../../../devices/pci0000:5d/0000:5d:02.0/0000:5e:00.0/0000:5f:10.0/0000:60:00.0", dir+"/sys/bus/pci/devices/0000:60:00.0"))
	root, err := host.Open(dir)
	require.NoError(t, err)
	defer root.Close()
	m := readSlots(root)
	require.Equal(t, "3 (PCIe Slot 3)", m.find("0000:3b:00.0"))
	require.Equal(t, "7", m.find("0000:60:00.0"), "a switch is in the slot, the GPU behind it")
	require.Equal(t, "OAM [2J 1", m.find("0001:81:01.0"))
	require.Empty(t, m.find("0000:01:00.0"))
}

func FuzzDesignation(f *testing.F) {
	f.Add(structure(0, 0x3b, 0, "PCIe Slot 3"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, name := parseSlotRecord(data); len(name) > maxSlotName {
			t.Errorf("a name of %d bytes", len(name))
		}
	})
}
