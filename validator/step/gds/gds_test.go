package gds

import (
	"testing"

	"github.com/gpuready/gpuready/validator/step/kernel/kerneltest"
)

func TestModuleAndDevicesAreThere(t *testing.T) {
	m := kerneltest.New(t)
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "GDSModuleNotLoaded", "nvidia_fs is not loaded")
	m.Load("nvidia_fs")
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "GDSDeviceMissing", "/proc/devices does not list nvidia-fs")
	m.Majors("509 nvidia-fs")
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "GDSDeviceMissing", "/dev/nvidia-fs0 is not there")
	m.Device("nvidia-fs0", 509, 0)
	kerneltest.Proven(t, Check(t.Context(), m.Node, kerneltest.Driver()), "nvidia_fs is loaded and has its devices, of unknown version")
}
