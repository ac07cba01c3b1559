package kernel

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
)

const nouveauGPU = "0000:01:00.0"

// newRivalNode returns a node whose GPU is held by a driver of a module, with a frame buffer's console on it, and the
// GPUs on its bus.
func newRivalNode(t *testing.T, driver, module string) (System, []host.PCIGPU, string) {
	t.Helper()
	dir := t.TempDir()
	gpu := "sys/bus/pci/devices/" + nouveauGPU + "/"
	for name, text := range map[string]string{
		gpu + "vendor": "0x10de\n", gpu + "class": "0x030000\n", gpu + "device": "0x2330\n",
		gpu + "drm/card0/dev": "195:254\n", gpu + "graphics/fb0/dev": "29:0\n",
		"sys/bus/pci/drivers/" + driver + "/unbind": "", "sys/bus/pci/drivers_probe": "",
		"sys/class/vtconsole/vtcon0/name": "(S) VGA+\n", "sys/class/vtconsole/vtcon0/bind": "0\n",
		"sys/class/vtconsole/vtcon1/name": "(M) frame buffer device\n", "sys/class/vtconsole/vtcon1/bind": "1\n",
		"proc/modules":               module + " 1000 0 - Live 0x0\n",
		"proc/1/root/etc/os-release": "ID=ubuntu\nID_LIKE=debian\n", "proc/1/stat": "1 (init) S 0 1 1 0",
	} {
		writeFile(t, dir, name, []byte(text))
	}
	require.NoError(t, os.Symlink("../../drivers/"+driver, filepath.Join(dir, gpu, "driver")))
	require.NoError(t, os.Symlink("../../../../module/"+module, filepath.Join(dir, "sys/bus/pci/drivers", driver, "module")))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/self/ns"), 0o755))
	require.NoError(t, os.Symlink(firstNamespace, filepath.Join(dir, "proc/self/ns/pid")))
	return System{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys")}, open(t, dir).GPUs("/sys/bus/pci/devices"), dir
}

func TestAnIdleGPUIsTakenFromNouveau(t *testing.T) {
	s, gpus, dir := newRivalNode(t, "nouveau", "nouveau")
	rivals := s.FindRivals(gpus)
	require.Equal(t, []Rival{{Address: nouveauGPU, Driver: "nouveau", Module: "nouveau", Consoles: []string{filepath.Join(dir, "sys/class/vtconsole/vtcon1")}}}, rivals)
	require.NoError(t, s.Unbind(t.Context(), rivals[0], slog.New(slog.DiscardHandler)))
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(data)
	}
	require.Equal(t, nouveauGPU, read("sys/bus/pci/drivers/nouveau/unbind"))
	require.Equal(t, "0\n", read("sys/class/vtconsole/vtcon0/bind"))
	require.Equal(t, "0\n", read("sys/class/vtconsole/vtcon1/bind")) // the kernel's file has no old content
	require.NoError(t, s.Probe(t.Context(), nouveauGPU))
	require.Empty(t, read("sys/bus/pci/drivers_probe"), "another driver has it")
	require.NoError(t, os.Remove(filepath.Join(dir, "sys/bus/pci/devices", nouveauGPU, "driver")))
	require.NoError(t, s.Probe(t.Context(), nouveauGPU))
	require.Equal(t, nouveauGPU, read("sys/bus/pci/drivers_probe"))
}

func TestAGPUStaysWithItsDriver(t *testing.T) {
	device := filepath.Join(t.TempDir(), "dev", "card0")
	require.NoError(t, os.Mkdir(filepath.Dir(device), 0o755))
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(195, 254))); err != nil {
		t.Skipf("device nodes cannot be made here: %v", err)
	}
	other := filepath.Join(filepath.Dir(device), "card1")
	require.NoError(t, unix.Mknod(other, unix.S_IFCHR|0o600, int(unix.Mkdev(195, 253))))
	const deny = `. To keep it away for good: printf 'blacklist nouveau\n' > /etc/modprobe.d/gpuready.conf; update-initramfs -u; reboot`
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string // "": it is taken
	}{
		"A display server": {func(t *testing.T, dir string) {
			writeFile(t, dir, "proc/77/comm", []byte("Xorg\n"))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "proc/77/fd"), 0o755))
			require.NoError(t, os.Symlink(device, filepath.Join(dir, "proc/77/fd/3")))
		}, "it is in use by pid 77 (Xorg) with " + device + deny},
		"Another GPU's": {func(t *testing.T, dir string) {
			writeFile(t, dir, "proc/77/comm", []byte("Xorg\n"))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "proc/77/fd"), 0o755))
			require.NoError(t, os.Symlink(other, filepath.Join(dir, "proc/77/fd/3")))
		}, ""},
		"Hidden processes": {func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "proc/self/ns/pid")))
		}, "it is not known who uses it; run this container with hostPID: true. " +
			"To keep it away for good: boot with modprobe.blacklist=nouveau on the kernel's command line"},
		"The console stays": {func(t *testing.T, dir string) {
			bind := filepath.Join(dir, "sys/class/vtconsole/vtcon1/bind")
			require.NoError(t, os.Remove(bind))
			require.NoError(t, os.WriteFile(bind, []byte("1\n"), 0o644))
			require.NoError(t, os.RemoveAll(filepath.Join(dir, "sys/bus/pci/drivers/nouveau/unbind")))
		}, "it does not let go of it: open "},
	} {
		t.Run(name, func(t *testing.T) {
			s, gpus, dir := newRivalNode(t, "nouveau", "nouveau")
			c.change(t, dir)
			err := s.Unbind(t.Context(), s.FindRivals(gpus)[0], slog.New(slog.DiscardHandler))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, ReasonNouveauInTheWay, reasonOf(t, err))
			require.ErrorContains(t, err, "the kernel's driver nouveau has GPU "+nouveauGPU+": "+c.want)
		})
	}
}

func TestOnlyDriversInTheWayAreRivals(t *testing.T) {
	for driver, want := range map[string]bool{
		"": false, "nvidia": false, "vfio-pci": false, "nvgrace-gpu-vfio-pci": false, "pci-stub": false, "nouveau": true, "NovaCore": true, "nvidiafb": true,
	} {
		require.Equal(t, want, isRival(driver), driver)
	}
	gpus := []host.PCIGPU{{Address: "0000:01:00.0", Driver: "nouveau"}, {Address: "0000:02:00.0", Driver: "vfio-pci"}}
	require.Equal(t, "0000:02:00.0 by vfio-pci", PassedOn(gpus))
}

func TestTheAdviceFitsTheDistribution(t *testing.T) {
	const file = `printf 'blacklist nova_core\nblacklist nova_drm\n' > /etc/modprobe.d/gpuready.conf; `
	for release, want := range map[string]string{
		"ID=debian\n":                         file + "update-initramfs -u; reboot",
		"ID=\"sles\"\nID_LIKE=\"suse\"\n":     file + "dracut -f; reboot",
		"ID='rocky'\nID_LIKE='rhel centos'\n": file + "dracut -f; reboot",
		"ID=rhcos\nID_LIKE=\"rhel fedora\"\nOSTREE_VERSION='418'\n": "rpm-ostree kargs --append=modprobe.blacklist=nova_core,nova_drm " +
			"--append=rd.driver.blacklist=nova_core,nova_drm (OpenShift: kernelArguments of a MachineConfig), then reboot",
		"ID=flatcar\n": "boot with modprobe.blacklist=nova_core,nova_drm on the kernel's command line",
	} {
		require.Equal(t, want, adviseDeny([]string{"nova_core", "nova_drm"}, parseOSRelease(release)), release)
	}
}

func TestTheErrorOfNoDeviceNamesWhatHasTheGPU(t *testing.T) {
	s, _, _ := newRivalNode(t, "nouveau", "nouveau")
	s.Calls = Running{}
	err := s.explainLoad(Module{Info: Info{Name: "nvidia", Version: "580.1"}}, unix.ENODEV, nil)
	require.EqualError(t, err, "load nvidia 580.1: it finds no device that it supports; on the PCI bus "+nouveauGPU+
		" is bound to nouveau; if another driver has a GPU, that is in the way, else choose a driver version and kernelModuleType that support it")
}
