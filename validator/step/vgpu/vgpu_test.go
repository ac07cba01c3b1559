package vgpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step/kernel"
	"github.com/gpuready/gpuready/validator/step/kernel/kerneltest"
)

func TestTheManagerIsLoadedAndThereAreDevices(t *testing.T) {
	m := kerneltest.New(t)
	look := func() check.Outcome { return Check(t.Context(), m.Node, check.Driver{}) }
	require.Equal(t, check.Absent, look().Kind, "a node without a GPU")
	m.PCI("0000:3b:00.0", kernel.NVIDIA, "0x030200", "nvidia")
	kerneltest.Refused(t, look(), "VGPUManagerNotLoaded", "no nvidia, nvidia_vgpu_vfio")
	m.Load("nvidia")
	m.Load("nvidia_vgpu_vfio")
	m.PCI("0000:3b:00.4", kernel.NVIDIA, "0x030200", "nvidia")
	m.Link("/sys/bus/pci/devices/0000:3b:00.4/physfn", "../0000:3b:00.0")
	m.File("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "0\n")
	m.Link("/sys/bus/mdev/devices/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001/mdev_type", "../mdev_supported_types/i915-GVTg_V5_4")
	kerneltest.Refused(t, look(), "VGPUDevicesMissing", "there is no vGPU")
	m.File("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "1155\n")
	m.Link("/sys/bus/mdev/devices/83b8f4f2-509f-382f-3c1e-e6bfe0fa1002/mdev_type", "../mdev_supported_types/nvidia-35")
	kerneltest.Proven(t, look(), "2 vGPU devices: 1 mediated, 1 virtual functions")
}
