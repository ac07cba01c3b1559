package spec

import (
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/host"
)

// TestNothingThatEverybodyCanReplaceIsMounted creates a driver root of links to
// directories, some of them world-writable. No file found lies in one of those.
func TestNothingThatEverybodyCanReplaceIsMounted(t *testing.T) {
	lib := "/usr/lib/" + map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	links := []string{
		"/usr/bin/nvidia-smi", "/usr/bin/nvidia-persistenced", "/usr/share/vulkan", "/etc/vulkan/icd.d", "/etc/vulkan/icd.d/nvidia_icd.json",
		"/run/nvidia-persistenced", "/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager", "/lib/firmware/nvidia/" + version,
		"/usr/share/nvidia", lib + "/libcuda.so." + version, lib + "/vdpau", "/tmp/nvidia-mps", "/run/udev", "/etc/cufile.json",
	}
	folders := []string{"/tmp", "/tmp/a", "/tmp/a/b", "/var/tmp", "/opt/driver", "/run", "/dev/shm", "/run/nvidia-persistenced"}
	names := []string{"nvidia-smi", "nvidia_icd.json", "icd.d/nvidia_icd.json", "socket", "gsp_ga10x.bin", "nvoptix.bin", "libcuda.so." + version, "libvdpau_nvidia.so." + version, "control"}
	found, refused := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		require.NoError(r, err)
		put := func(p string) {
			require.NoError(r, os.MkdirAll(filepath.Dir(dir+p), 0o755))
			if strings.HasSuffix(p, "/socket") {
				_ = unix.Mknod(dir+p, unix.S_IFSOCK|0o666, 0)
				return
			}
			_ = os.WriteFile(dir+p, []byte("x"), 0o755) // or a folder is there
		}
		put(lib + "/libnvidia-ml.so." + version)
		put("/usr/bin/nvidia-smi")
		put(lib + "/libcuda.so." + version)
		for _, f := range rapid.SliceOfDistinct(rapid.SampledFrom(folders), rapid.ID).Draw(r, "folders") {
			for _, n := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID).Draw(r, "names") {
				put(f + "/" + n)
			}
		}
		for _, l := range rapid.SliceOfDistinct(rapid.SampledFrom(links), rapid.ID).Draw(r, "links") {
			to := rapid.SampledFrom(folders).Draw(r, "to")
			if rapid.Bool().Draw(r, "file") {
				to += "/" + rapid.SampledFrom(names).Draw(r, "name")
			}
			if os.MkdirAll(filepath.Dir(dir+l), 0o755) == nil && os.RemoveAll(dir+l) == nil {
				_ = os.Symlink(to, dir+l)
			}
		}
		for _, f := range append(folders, "/usr/bin", lib, "/etc") {
			mode := rapid.SampledFrom([]os.FileMode{0o755, 0o755, 0o755, 0o775, 0o777, 0o777 | os.ModeSticky}).Draw(r, "mode")
			if info, err := os.Lstat(dir + f); err == nil && info.IsDir() {
				require.NoError(r, os.Chmod(dir+f, mode))
			}
		}
		root, err := host.Open(dir)
		require.NoError(r, err)
		defer root.Close()
		files, err := Find(root, "/", version)
		if err != nil {
			refused++
		}
		stored, _ := storage(root, "/")
		mounts := append(files.Mounts, stored...)
		for _, m := range mounts {
			found++
			require.True(r, slices.Contains(m.Options, "ro"), "%+v", m)
			for at := path.Dir(m.Host); ; at = path.Dir(at) {
				info, err := os.Lstat(dir + at)
				require.NoError(r, err)
				require.Zero(r, info.Mode()&0o002, "%s is mounted and everybody may write to %s", m.Host, at)
				if at == "/" {
					break
				}
			}
		}
	})
	require.Positive(t, found, "nothing was ever found")
	require.Positive(t, refused, "nothing was ever refused")
}
