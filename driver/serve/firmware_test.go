package serve

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
)

const gsp = "nvidia/580.95.05/gsp_ga10x.bin"

// newFirmwareNode returns a Driver with an image that has firmware, on a node whose root is in the returned folder. The
// kernel's firmware path is a folder of that root; "": none.
func newFirmwareNode(t *testing.T, path string) (d *Driver, dir string, steps []kernel.Step) {
	t.Helper()
	d, dir = newServed(t, "")
	for name, text := range map[string]string{"image/lib/firmware/" + gsp: "the firmware", "sys/" + firmwarePath: path + "\n"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	// The container's view of the node is the node's own.
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/self/ns"), 0o755))
	require.NoError(t, os.Symlink("pid:[4026531836]", filepath.Join(dir, "proc/self/ns/pid")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "proc/1"), 0o755))
	require.NoError(t, os.Symlink("/", filepath.Join(dir, "proc/1/root")))
	image, err := host.Open(filepath.Join(dir, "image"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = image.Close() })
	d.Image = image
	return d, dir, []kernel.Step{{Ours: true, Module: kernel.Module{Info: kernel.Info{Name: "nvidia", Firmware: []string{gsp, "nvidia/580.95.05/gsp_tu10x.bin"}}}}}
}

// readPath returns the kernel's firmware path.
func readPath(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "sys", firmwarePath))
	require.NoError(t, err)
	return string(data)
}

func TestFirmwareLiesOnDisk(t *testing.T) {
	d, dir, steps := newFirmwareNode(t, "")
	require.NoError(t, d.copyFirmware(steps))
	require.Equal(t, d.dir()+"/firmware", readPath(t, dir), "without a cache")

	d.Sources.Cache = "/dev/shm"
	require.NoError(t, d.copyFirmware(steps))
	require.Equal(t, d.dir()+"/firmware", readPath(t, dir), "the cache is in memory")

	d.Sources.Cache = filepath.Join(dir, "cache")
	require.NoError(t, os.Mkdir(d.Sources.Cache, 0o755))
	if !d.isOnDisk(d.Sources.Cache) {
		t.Skip("the folder of tests is in memory")
	}
	require.NoError(t, d.copyFirmware(steps))
	require.Equal(t, d.Sources.Cache+"/firmware", readPath(t, dir))
	require.FileExists(t, filepath.Join(d.Sources.Cache, "firmware", gsp))
	require.NoError(t, d.removeFirmware())
	require.NoDirExists(t, filepath.Join(d.Sources.Cache, "firmware"))
	require.NoDirExists(t, filepath.Join(d.dir(), "firmware"))

	// The node has another folder at this path.
	require.NoError(t, os.Remove(filepath.Join(dir, "proc/1/root")))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/1/root", d.Sources.Cache), 0o755))
	require.NoError(t, d.copyFirmware(steps))
	require.Equal(t, d.dir()+"/firmware", readPath(t, dir))
}

func TestTheAdministratorsFirmwarePathIsKept(t *testing.T) {
	d, dir, steps := newFirmwareNode(t, "")
	firmware := filepath.Join(dir, "vendor")
	parameter := filepath.Join(dir, "sys", firmwarePath)
	require.NoError(t, os.MkdirAll(filepath.Join(firmware, "nvidia"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(firmware, "mellanox.bin"), []byte("theirs"), 0o644))
	require.NoError(t, os.WriteFile(parameter, []byte(firmware+"\n"), 0o644))
	require.NoError(t, d.copyFirmware(steps))
	require.Equal(t, firmware+"\n", readPath(t, dir), "it was not written")
	require.FileExists(t, filepath.Join(firmware, gsp))
	require.NoError(t, d.removeFirmware())
	require.Equal(t, firmware+"\n", readPath(t, dir))
	require.NoFileExists(t, filepath.Join(firmware, gsp))
	require.FileExists(t, filepath.Join(firmware, "mellanox.bin"))

	// It has the firmware: that is used, and stays.
	require.NoError(t, os.MkdirAll(filepath.Join(firmware, filepath.Dir(gsp)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(firmware, gsp), []byte("THE firmware"), 0o644))
	require.NoError(t, d.copyFirmware(steps))
	require.NoError(t, d.removeFirmware())
	data, err := os.ReadFile(filepath.Join(firmware, gsp))
	require.NoError(t, err)
	require.Equal(t, "THE firmware", string(data))

	// It cannot be written: another path is set until the driver is unloaded.
	require.NoError(t, os.RemoveAll(firmware))
	require.NoError(t, os.WriteFile(firmware, nil, 0o644))
	require.NoError(t, d.copyFirmware(steps))
	require.Equal(t, d.dir()+"/firmware", readPath(t, dir))
	require.FileExists(t, filepath.Join(d.dir(), "firmware", gsp))
	require.NoError(t, d.removeFirmware())
	require.Equal(t, firmware, readPath(t, dir))
}

func TestFirmwareThatIsTurnedOffIsNotCopied(t *testing.T) {
	d, dir, steps := newFirmwareNode(t, "")
	for _, value := range []string{"0", "0x0"} {
		steps[0].Params = []kernel.Param{{Name: enableFirmware, Value: "1", HasValue: true}, {Name: enableFirmware, Value: value, HasValue: true}}
		require.NoError(t, d.copyFirmware(steps))
		require.Equal(t, "\n", readPath(t, dir))
		require.NoDirExists(t, filepath.Join(d.dir(), "firmware"))
	}
	steps[0].Params = append(steps[0].Params, kernel.Param{Name: "NVreg_EnableGpuFirmware", Value: "18", HasValue: true})
	require.NoError(t, d.copyFirmware(steps))
	require.FileExists(t, filepath.Join(d.dir(), "firmware", gsp))
}
