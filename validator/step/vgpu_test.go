package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/validator/check"
)

func TestTheManagerIsLoadedAndThereAreDevices(t *testing.T) {
	m := newMachine(t)
	look := func() check.Outcome { return checkVGPU(t.Context(), m.Node, check.Driver{}) }
	require.Equal(t, check.Absent, look().Kind, "a node without a GPU")
	m.PCI("0000:3b:00.0", vendorNVIDIA, "0x030200", "nvidia")
	requireRefused(t, look(), "VGPUManagerNotLoaded", "no nvidia, nvidia_vgpu_vfio")
	m.Load("nvidia")
	m.Load("nvidia_vgpu_vfio")
	m.PCI("0000:3b:00.4", vendorNVIDIA, "0x030200", "nvidia")
	m.Link("/sys/bus/pci/devices/0000:3b:00.4/physfn", "../0000:3b:00.0")
	m.File("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "0\n")
	m.Link("/sys/bus/mdev/devices/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001/mdev_type", "../mdev_supported_types/i915-GVTg_V5_4")
	requireRefused(t, look(), "VGPUDevicesMissing", "there is no vGPU")
	m.File("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "1155\n")
	m.Link("/sys/bus/mdev/devices/83b8f4f2-509f-382f-3c1e-e6bfe0fa1002/mdev_type", "../mdev_supported_types/nvidia-35")
	requireProven(t, look(), "2 vGPU devices: 1 mediated, 1 virtual functions")
}
