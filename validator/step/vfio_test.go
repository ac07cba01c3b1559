package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/validator/check"
)

func TestEveryGPUIsBound(t *testing.T) {
	m := newMachine(t)
	look := func() check.Outcome { return checkVFIO(t.Context(), m.Node, check.Driver{}) }
	require.Equal(t, check.Absent, look().Kind, "a node without a GPU")
	m.PCI("0000:3b:00.0", vendorNVIDIA, "0x030200", "vfio-pci")
	m.PCI("0000:5e:00.0", vendorNVIDIA, "0x030200", "nvgrace_gpu_vfio_pci")
	requireRefused(t, look(), "VFIODriverMissing", "no driver vfio-pci")
	m.File("/sys/bus/pci/drivers/vfio-pci/bind", "")
	requireProven(t, look(), "2 of 2 GPUs are bound to vfio-pci")
	m.PCI("0000:86:00.0", vendorNVIDIA, "0x030200", "nvidia")
	m.PCI("0000:87:00.0", vendorNVIDIA, "0x030000", "")
	requireRefused(t, look(), "GPUNotBoundToVFIO", "2 of 4 GPUs are not set aside: the GPU at 0000:86:00.0 is bound to nvidia; the GPU at 0000:87:00.0 has no driver")
}
