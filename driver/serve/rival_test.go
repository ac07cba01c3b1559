package serve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

func TestAGPUThatNouveauKeepsIsANoteIfThereIsAnother(t *testing.T) {
	d, dir := newServed(t, "nouveau 1000 0 - Live 0x0\n")
	for _, address := range []string{"0000:01:00.0", "0000:02:00.0"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "sys/bus/pci/devices", address, "drm/card0"), 0o755))
	}
	unbind := filepath.Join(dir, "sys/bus/pci/drivers/nouveau/unbind")
	require.NoError(t, os.MkdirAll(filepath.Dir(unbind), 0o755))
	require.NoError(t, os.WriteFile(unbind, nil, 0o644))
	// It is not known who has the device of the first.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sys/bus/pci/devices/0000:01:00.0/drm/card0/dev"), []byte("?"), 0o644))
	held, free := host.PCIGPU{Address: "0000:01:00.0", Driver: "nouveau"}, host.PCIGPU{Address: "0000:02:00.0", Driver: "nouveau"}

	freed, err := d.takeGPUs(t.Context(), Snapshot{GPUs: []host.PCIGPU{held, free}})
	require.NoError(t, err)
	require.Equal(t, []string{"0000:02:00.0"}, freed)
	require.Empty(t, d.System.Calls.(*calls).recorded(), "the module has another GPU")
	require.NoError(t, d.publishReady(Snapshot{Version: "580.1"}))
	require.Contains(t, d.published.Message, "the kernel's driver nouveau has GPU 0000:01:00.0: it is not known who uses it")

	_, err = d.takeGPUs(t.Context(), Snapshot{GPUs: []host.PCIGPU{held}})
	require.Equal(t, kernel.ReasonNouveauInTheWay, ReasonOf(err))

	freed, err = d.takeGPUs(t.Context(), Snapshot{GPUs: []host.PCIGPU{free, {Address: gpu.PCIAddress("0000:03:00.0"), Driver: "nvidia"}}})
	require.NoError(t, err)
	require.Equal(t, []string{"0000:02:00.0"}, freed)
	require.Equal(t, []string{"unload nouveau"}, d.System.Calls.(*calls).recorded())
	require.Empty(t, d.notes)
}
