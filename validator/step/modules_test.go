package step

import "testing"

func TestGDSHasItsModuleAndDevices(t *testing.T) {
	m := newMachine(t)
	requireRefused(t, gds.check(t.Context(), m.Node, provenDriver()), "GDSModuleNotLoaded", "nvidia_fs is not loaded")
	m.Load("nvidia_fs")
	requireRefused(t, gds.check(t.Context(), m.Node, provenDriver()), "GDSDeviceMissing", "/proc/devices does not list nvidia-fs")
	m.Majors("509 nvidia-fs")
	requireRefused(t, gds.check(t.Context(), m.Node, provenDriver()), "GDSDeviceMissing", "/dev/nvidia-fs0 is not there")
	m.Device("nvidia-fs0", 509, 0)
	requireProven(t, gds.check(t.Context(), m.Node, provenDriver()), "nvidia_fs is loaded and has its devices, of unknown version")
}

func TestGDRCopyHasItsModuleAndDevice(t *testing.T) {
	m := newMachine(t)
	requireRefused(t, gdrcopy.check(t.Context(), m.Node, provenDriver()), "GDRCopyModuleNotLoaded", "gdrdrv is not loaded")
	m.Load("gdrdrv")
	m.Majors("234 gdrdrv")
	requireRefused(t, gdrcopy.check(t.Context(), m.Node, provenDriver()), "GDRCopyDeviceMissing", "/dev/gdrdrv is not there")
	m.Device("gdrdrv", 234, 0)
	m.File("/sys/module/gdrdrv/version", "2.5\n")
	requireProven(t, gdrcopy.check(t.Context(), m.Node, provenDriver()), "gdrdrv is loaded and has its device, version 2.5")
}

func TestPeermemAndItsDependencyAreLoaded(t *testing.T) {
	m := newMachine(t)
	requireRefused(t, checkPeermem(t.Context(), m.Node, provenDriver()), "PeermemModuleNotLoaded", "not loaded: ib_core, nvidia_peermem")
	m.Load("ib_core")
	requireRefused(t, checkPeermem(t.Context(), m.Node, provenDriver()), "PeermemModuleNotLoaded", "not loaded: nvidia_peermem")
	m.Load("nvidia_peermem")
	m.File("/sys/module/nvidia_peermem/version", "580.95.05\n")
	requireProven(t, checkPeermem(t.Context(), m.Node, provenDriver()), "nvidia_peermem is loaded, version 580.95.05")
}
