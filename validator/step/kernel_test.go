package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/validator/check"
)

func TestADriverRootsOwnFilesComeFirst(t *testing.T) {
	m := newMachine(t, "nvidia")
	m.DriverRoot = check.ContainerRoot
	m.File("/proc/version", "of the host\n")
	m.File(check.ContainerRoot+"/proc/version", "of the driver\n")
	m.File(check.ContainerRoot+"/sys/module/nvidia_fs/initstate", "live\n")
	k := openKernel(m.Node)
	require.Equal(t, "of the driver", k.Read("/proc/version"))
	require.Equal(t, []string{"gdrdrv"}, k.Missing("nvidia", "nvidia_fs", "gdrdrv"))
	require.Empty(t, k.Read("/proc/none"))
}

func TestADeviceIsTheOneThatTheKernelLists(t *testing.T) {
	m := newMachine(t)
	k := openKernel(m.Node)
	require.Equal(t, "/proc/devices does not list gdrdrv", k.Device("gdrdrv", "gdrdrv"))
	m.Majors("234 gdrdrv")
	require.Equal(t, "the device node /dev/gdrdrv is not there", k.Device("gdrdrv", "gdrdrv"))
	m.Device("gdrdrv", 235, 0)
	require.Equal(t, "/dev/gdrdrv is no character device of major 234, which is that of gdrdrv", k.Device("gdrdrv", "gdrdrv"))
	m.Device("gdrdrv0", 234, 0)
	require.Empty(t, k.Device("gdrdrv0", "gdrdrv"))
}

func TestVirtualFunctionsAreNotListedAsGPUs(t *testing.T) {
	m := newMachine(t)
	m.PCI("0000:3b:00.0", vendorNVIDIA, "0x030200", "nvidia")
	m.PCI("0000:3b:00.4", vendorNVIDIA, "0x030200", "nvidia")
	m.Link("/sys/bus/pci/devices/0000:3b:00.4/physfn", "../0000:3b:00.0")
	m.PCI("0000:3c:00.0", vendorNVIDIA, "0x068000", "")
	m.PCI("0000:00:02.0", "0x8086", "0x030000", "i915")
	k := openKernel(m.Node)
	require.Equal(t, []pciDevice{{Address: "0000:3b:00.0", Class: "030200", Driver: "nvidia"}}, k.GPUs())
	require.Len(t, k.PCI(vendorNVIDIA), 3)
}
