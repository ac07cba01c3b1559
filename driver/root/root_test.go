package root

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/test/lab/node"
)

// image creates a folder of an image with a driver's user space.
func image(t *testing.T, dir, version string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/lib"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "proc/secret"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "usr/lib/libcuda.so."+version), []byte(version), 0o644))
	return dir
}

func TestRootIsReadOnlyAndWithoutSubmounts(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	require.NoError(t, unix.Mount("", "/run", "", unix.MS_SHARED, ""))
	at := "/run/show/driver"
	one, two := image(t, "/run/image-1", "1"), image(t, "/run/image-2", "2")
	require.NoError(t, unix.Mount("tmpfs", filepath.Join(one, "proc"), "tmpfs", 0, ""))
	require.NoError(t, os.WriteFile(filepath.Join(one, "proc/token"), nil, 0o600))

	there, err := IsMounted(at)
	require.NoError(t, err)
	require.False(t, there)
	propagates, err := Mount(one, at)
	require.NoError(t, err)
	require.True(t, propagates)
	require.FileExists(t, filepath.Join(at, "usr/lib/libcuda.so.1"))
	require.NoFileExists(t, filepath.Join(at, "proc/token"), "what is mounted in the image's folder is not shown")
	require.ErrorIs(t, os.WriteFile(filepath.Join(at, "usr/lib/libcuda.so.1"), nil, 0o644), unix.EROFS)
	require.NoError(t, os.WriteFile(filepath.Join(one, "usr/lib/more"), nil, 0o644), "the image's folder itself stays writable")
	there, err = IsMounted(one)
	require.NoError(t, err)
	require.False(t, there, "nothing is left mounted on the image's folder")

	// A container that has mounted the old root sees the new one through it.
	held, err := os.Open(at)
	require.NoError(t, err)
	defer held.Close()
	_, err = Mount(two, at)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(at, "usr/lib/libcuda.so.2"))
	require.NoFileExists(t, filepath.Join(at, "usr/lib/libcuda.so.1"))

	require.NoError(t, Remove(at))
	there, err = IsMounted(at)
	require.NoError(t, err)
	require.False(t, there)
	require.NoError(t, Remove(at), "there is nothing to remove")
}

func TestDaemonRootIsPrivate(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	dir := image(t, "/run/image", "1")
	require.NoError(t, os.Symlink("usr/lib", filepath.Join(dir, "lib")))
	for range 2 { // a program that is started again
		at, err := Prepare(dir)
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(at, "lib/libcuda.so.1"))
		require.FileExists(t, filepath.Join(at, "proc/self/status"))
		require.NoError(t, os.WriteFile(filepath.Join(at, "run/pid"), nil, 0o644))
		require.FileExists(t, "/run/pid")
		for _, name := range []string{"dev", "sys", "run"} {
			require.NoDirExists(t, filepath.Join(dir, name), "nothing is made in the image")
		}
	}
	require.NoError(t, unmountAll(daemonsRoot))
}

func TestCoveredDriverRootsDoNotPileUp(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	dir := image(t, "/run/image", "1")
	for range 3 * maxLayers {
		_, err := Mount(dir, "/run/show")
		require.NoError(t, err)
		n, err := mount.Count("/run/show")
		require.NoError(t, err)
		require.LessOrEqual(t, n, maxLayers)
	}
	require.NoError(t, Remove("/run/show"))
}

func TestFailedMountIsReported(t *testing.T) {
	if !node.Enter(t) {
		return
	}
	_, err := Mount("/run/none", "/run/driver")
	require.ErrorContains(t, err, "/run/none")
	_, err = Mount(image(t, "/run/image", "1"), "/")
	require.ErrorContains(t, err, "it cannot cover /")
}
