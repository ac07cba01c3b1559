package serve

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
)

func TestNoDriverIsLoadedOnAPlatformThatIsNotServed(t *testing.T) {
	for name, c := range map[string]struct {
		files      map[string]string
		withoutGPU bool
		served     bool
	}{
		"WSL2":   {files: map[string]string{"dev/dxg": ""}},
		"Jetson": {files: map[string]string{"sys/devices/soc0/family": "Tegra\n"}},
		"a vGPU host": {withoutGPU: true, files: map[string]string{
			"sys/bus/pci/devices/0000:10:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:10:00.0/class": "0x030200\n", "sys/module/nvidia_vgpu_vfio/initstate": "live\n"}},
		"WSL2, asked to do without a GPU": {withoutGPU: true, served: true, files: map[string]string{"dev/dxg": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, host.PCIDevices), 0o755))
			for at, text := range c.files {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, at)), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, at), []byte(text), 0o644))
			}
			root, err := host.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			err = Survey{System: kernel.System{Sys: "/sys"}, Host: root, WithoutGPU: c.withoutGPU}.CheckGPU()
			if c.served {
				require.NoError(t, err)
				return
			}
			e, is := errors.AsType[*kernel.Error](err)
			require.True(t, is, "%v", err)
			require.Equal(t, kernel.ReasonPlatform, e.Reason)
			require.NotErrorIs(t, err, ErrNoGPU)
		})
	}
}
