package gdrcopy

import (
	"testing"

	"github.com/gpuready/gpuready/validator/step/kernel/kerneltest"
)

func TestModuleAndDeviceAreThere(t *testing.T) {
	m := kerneltest.New(t)
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "GDRCopyModuleNotLoaded", "gdrdrv is not loaded")
	m.Load("gdrdrv")
	m.Majors("234 gdrdrv")
	kerneltest.Refused(t, Check(t.Context(), m.Node, kerneltest.Driver()), "GDRCopyDeviceMissing", "/dev/gdrdrv is not there")
	m.Device("gdrdrv", 234, 0)
	m.File("/sys/module/gdrdrv/version", "2.5\n")
	kerneltest.Proven(t, Check(t.Context(), m.Node, kerneltest.Driver()), "gdrdrv is loaded and has its device, version 2.5")
}
