package host

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlatformsThatAreNotServedAreRecognised(t *testing.T) {
	const (
		display = PCIDevices + "/0000:01:00.0/class"
		vendor  = PCIDevices + "/0000:01:00.0/vendor"
	)
	gpu := map[string]string{display: "0x030200\n", vendor: "0x10de\n"}
	for name, c := range map[string]struct {
		files map[string]string
		gpu   bool
		want  Platform
	}{
		"a server without a GPU": {},
		"a server with a GPU":    {gpu: true},
		// Microsoft's basic render device is class 0302 there, vendor 1414.
		"WSL2":                              {files: map[string]string{"/dev/dxg": "", display: "0x030200\n", vendor: "0x1414\n"}, want: WSL},
		"WSL2, from a container":            {files: map[string]string{"/sys/class/misc/dxg/dev": "10:126\n"}, want: WSL},
		"Hyper-V with a GPU passed through": {files: map[string]string{"/dev/dxg": ""}, gpu: true},
		"Jetson, by its SoC":                {files: map[string]string{"/sys/devices/soc0/family": "Tegra\n"}, want: Tegra},
		"Jetson Orin, by its device tree": {files: map[string]string{
			"/sys/firmware/devicetree/base/compatible": "nvidia,p3737-0000+p3701-0000\x00nvidia,p3701-0000\x00nvidia,tegra234\x00"}, want: Tegra},
		"Jetson, by L4T": {files: map[string]string{
			"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"}, want: Tegra},
		"IGX Orin with an RTX A6000": {files: map[string]string{"/etc/nv_tegra_release": "# R36\n", "/sys/devices/soc0/family": "Tegra\n"}, gpu: true},
		"a board of another maker": {files: map[string]string{
			"/sys/devices/soc0/family": "Freescale i.MX\n", "/sys/firmware/devicetree/base/compatible": "fsl,imx8mn-evk\x00fsl,imx8mn\x00"}},
		"a vGPU host":                   {files: map[string]string{"/sys/module/nvidia_vgpu_vfio/initstate": "live\n"}, gpu: true, want: VGPUHost},
		"a vGPU host, by mdev":          {files: map[string]string{"/sys/class/mdev_bus/0000:01:00.0/x": ""}, gpu: true, want: VGPUHost},
		"mediated devices of Intel":     {files: map[string]string{"/sys/class/mdev_bus/0000:00:02.0/x": ""}, gpu: true},
		"a GPU for virtual machines":    {files: map[string]string{"/sys/module/vfio_pci/initstate": "live\n"}, gpu: true},
		"a virtual machine with a vGPU": {files: map[string]string{"/sys/module/nvidia/initstate": "live\n"}, gpu: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, PCIDevices), 0o755))
			write := func(files map[string]string) {
				for at, text := range files {
					require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, at)), 0o755))
					require.NoError(t, os.WriteFile(filepath.Join(dir, at), []byte(text), 0o644))
				}
			}
			write(c.files)
			if c.gpu {
				write(gpu)
			}
			root, err := Open(dir)
			require.NoError(t, err)
			defer root.Close()
			require.Equal(t, c.want, root.Platform())
		})
	}
}

func TestNoPlatformIsAdvisedToInstallADriver(t *testing.T) {
	for _, p := range []Platform{WSL, Tegra, VGPUHost} {
		message, action := p.Describe()
		require.Contains(t, message, "gpuready does not serve this machine: it is a ")
		require.NotContains(t, message+action, "install")
	}
}
