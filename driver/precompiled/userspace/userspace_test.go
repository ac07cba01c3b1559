package userspace

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const manifest = `NVIDIA Accelerated Graphics Driver for Linux-x86_64
580.95.05

nvidia nvidia-uvm nvidia-modeset nvidia-drm


./kernel/
./kernel/precompiled/
kernel/nvidia/nv-kernel.o_binary 0644 KERNEL_MODULE_SRC INHERIT_PATH_DEPTH:1 MODULE:resman
libcuda.so.580.95.05 0755 CUDA_LIB NATIVE / MODULE:gpgpu
libcuda.so.1 0000 CUDA_SYMLINK NATIVE / libcuda.so.580.95.05 MODULE:gpgpu
32/libcuda.so.580.95.05 0755 CUDA_LIB COMPAT32 / MODULE:gpgpu
libvdpau_nvidia.so.580.95.05 0755 VDPAU_LIB NATIVE vdpau/ MODULE:vdpau
libvdpau_nvidia.so 0000 VDPAU_SYMLINK NATIVE / vdpau/libvdpau_nvidia.so.580.95.05 MODULE:vdpau
libEGL.so.1 0000 EGL_CLIENT_SYMLINK NATIVE libEGL.so.1.1.0 GLVND MODULE:opengl
libEGL.so.580.95.05 0755 EGL_CLIENT_LIB NATIVE NON_GLVND MODULE:opengl
nvidia-smi 0755 UTILITY_BINARY MODULE:nvml
nvidia-modprobe 04755 NVIDIA_MODPROBE /usr/bin/ MODULE:installer
nvidia-installer 0755 INSTALLER_BINARY MODULE:installer
firmware/gsp_ga10x.bin 0644 FIRMWARE MODULE:resman
LICENSE 0444 DOCUMENTATION NVIDIA_GLX-1.0/ MODULE:installer
`

func TestInstall(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	write := func(name, text string) {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o755))
	}
	write(ManifestName, manifest)
	for line := range strings.Lines(manifest) {
		if name, _, found := strings.Cut(line, " 0"); found && !strings.Contains(line, "SYMLINK") {
			write(name, name)
		}
	}
	require.NoError(t, Layout{Libraries: "usr/lib64", Version: "580.95.05"}.Install(dir, to))
	var all []string
	require.NoError(t, filepath.WalkDir(to, func(file string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(to, file)
		if d.Type() == fs.ModeSymlink {
			link, err := os.Readlink(file)
			require.NoError(t, err)
			rel += " -> " + link
		}
		if !d.IsDir() {
			all = append(all, rel)
		}
		return err
	}))
	require.Equal(t, []string{
		"lib/firmware/nvidia/580.95.05/gsp_ga10x.bin",
		"usr/bin/nvidia-modprobe",
		"usr/bin/nvidia-smi",
		"usr/lib64/libEGL.so.1 -> libEGL.so.1.1.0",
		"usr/lib64/libcuda.so.1 -> libcuda.so.580.95.05",
		"usr/lib64/libcuda.so.580.95.05",
		"usr/lib64/libvdpau_nvidia.so -> libvdpau_nvidia.so.580.95.05",
		"usr/lib64/vdpau/libvdpau_nvidia.so.580.95.05",
		"usr/share/doc/NVIDIA_GLX-1.0/LICENSE",
	}, all)
	require.ErrorContains(t, Layout{Version: "580.1"}.Install(dir, to), "is of driver 580.95.05, not of 580.1")
	write(ManifestName, "x\n1\n../libcuda.so 0755 CUDA_LIB NATIVE / MODULE:gpgpu\n")
	require.ErrorContains(t, Layout{Version: "1"}.Install(dir, to), `.manifest, line 3: "../libcuda.so" is not a path below`)
	require.ErrorContains(t, Layout{}.Install(t.TempDir(), to), "has no .manifest")
}

// Packages have files in folders that the driver's programs do not search, and links to
// anywhere.
func TestCopy(t *testing.T) {
	dir, to, outside := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(outside, []byte("as it was"), 0o644))
	write := func(name, text string) {
		at := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
		require.NoError(t, os.WriteFile(at, []byte(text), 0o755))
	}
	write("usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1", "Debian's")
	write("usr/lib/x86_64-linux-gnu/nvidia/tesla-535/libnvcuvid.so.1", "Debian's, too")
	write("usr/lib64/libnvidia-ml.so.1", "RHEL's")
	write("usr/lib/firmware/nvidia/580/gsp.bin", "firmware")
	write("usr/lib/nvidia/current/nvidia-smi", "the program")
	write("usr/src/nvidia/nv.c", "sources")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "usr/bin/nvidia-smi")))
	require.NoError(t, Layout{Libraries: "usr/lib/x86_64-linux-gnu", Version: "580"}.Copy(dir, to))
	for name, want := range map[string]string{
		"usr/lib/x86_64-linux-gnu/libcuda.so.1": "Debian's", "usr/lib/x86_64-linux-gnu/libnvcuvid.so.1": "Debian's, too", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "RHEL's",
		"lib/firmware/nvidia/580/gsp.bin": "firmware", "usr/bin/nvidia-smi": "the program",
	} {
		text, err := os.ReadFile(filepath.Join(to, name))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	require.NoDirExists(t, filepath.Join(to, "usr/src"))
	text, err := os.ReadFile(outside)
	require.NoError(t, err)
	require.Equal(t, "as it was", string(text))
}
