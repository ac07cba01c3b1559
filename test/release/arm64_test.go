package release

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/test/lab/node"
)

// rootsVariable names the folder with the file systems of the images, inside the private node.
const rootsVariable = "GPUREADY_RELEASE_ROOTS"

// emulator runs programs for arm64.
const emulator = "qemu-aarch64-static"

// TestARM64ImagesRun runs the programs of the images for arm64 in an emulator of that processor: each
// prints its version, the samples compute on the simulated driver for arm64, and the device plugin
// offers its GPUs to the in-process kubelet.
func TestARM64ImagesRun(t *testing.T) {
	if !node.Inside() {
		t.Setenv(rootsVariable, readVerified(t).extract(t, "linux/arm64"))
	}
	if !node.Enter(t) {
		return
	}
	roots, v := os.Getenv(rootsVariable), readVerified(t)
	images, err := os.ReadDir(roots)
	require.NoError(t, err)
	programs := 0
	for _, image := range images {
		for _, program := range findPrograms(t, filepath.Join(roots, image.Name())) {
			programs++
			t.Run(image.Name()+"/"+filepath.Base(program), func(t *testing.T) {
				flag := "--version"
				if filepath.Base(program) == "gpu-oci-runtime" {
					flag = "--help" // it passes --version on to the low-level runtime
				}
				out, err := emulate(t, filepath.Join(roots, image.Name()), program, flag)
				require.NoError(t, err, out)
				require.Contains(t, out, v.Version)
			})
		}
	}
	require.GreaterOrEqual(t, programs, len(images))

	simulator := filepath.Join(roots, "driver-simulator")
	out, err := emulate(t, simulator, "/usr/bin/gpusim", "up", "--profile", "h100-sxm")
	require.NoError(t, err, out)
	t.Run("ASampleComputes", func(t *testing.T) {
		libraries, err := filepath.Glob("/run/nvidia/driver/usr/lib*/*/libcuda.so.1")
		require.NoError(t, err)
		require.Len(t, libraries, 1)
		t.Setenv("QEMU_SET_ENV", "LD_LIBRARY_PATH="+filepath.Dir(libraries[0])) // of the emulated program alone
		out, err := emulate(t, filepath.Join(roots, "cuda-samples"), "/usr/bin/vectoradd")
		t.Log(out)
		require.NoError(t, err, out)
		require.Contains(t, out, "Test PASSED")
	})
	t.Run("TheDevicePluginOffersGPUs", func(t *testing.T) {
		k, err := kubelettest.Start(kubelettest.Config{Dir: "/var/lib/kubelet/device-plugins", PodResourcesDir: "/var/lib/kubelet/pod-resources"})
		require.NoError(t, err)
		t.Cleanup(k.Stop)
		cmd, output := command(t, filepath.Join(roots, "device-plugin"), "/usr/bin/gpu-device-plugin", "--device-list-strategy=envvar")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait(), output.String())
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		r, err := k.Wait(ctx, "nvidia.com/gpu", func(r kubelettest.Resource) bool { return r.Allocatable == 8 })
		require.NoErrorf(t, err, "%+v", r)
		a, err := k.Admit(ctx, kubelettest.Pod{Namespace: "default", Name: "one", Container: "c", Requests: map[string]int{"nvidia.com/gpu": 1}})
		require.NoError(t, err)
		require.NotEmpty(t, a.Envs["NVIDIA_VISIBLE_DEVICES"])
	})
}

// extract pulls the images of a release for a platform by their digests, and returns a folder with
// the file system of each.
func (v *verified) extract(t *testing.T, platform string) string {
	t.Helper()
	dir := t.TempDir()
	for _, a := range v.Artifacts {
		if a.Kind != contents.Image {
			continue
		}
		for _, p := range a.Platforms {
			if p.Platform != platform {
				continue
			}
			ref, err := name.NewDigest(v.registry + "/" + a.Name + "@" + p.Digest)
			require.NoError(t, err)
			image, err := remote.Image(ref)
			require.NoError(t, err)
			unpack(t, image, filepath.Join(dir, a.Name))
		}
	}
	return dir
}

// unpack writes the files, folders and links of an image into a folder.
func unpack(t *testing.T, image v1.Image, dir string) {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o755))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	files := mutate.Extract(image)
	defer files.Close()
	in := tar.NewReader(files)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Clean(strings.TrimPrefix(h.Name, "/"))
		require.NoError(t, root.MkdirAll(filepath.Dir(path), 0o755))
		switch h.Typeflag {
		case tar.TypeDir:
			require.NoError(t, root.MkdirAll(path, 0o755))
		case tar.TypeSymlink:
			require.NoError(t, root.Symlink(h.Linkname, path))
		case tar.TypeLink:
			require.NoError(t, root.Link(strings.TrimPrefix(h.Linkname, "/"), path))
		case tar.TypeReg:
			f, err := root.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, h.FileInfo().Mode().Perm())
			require.NoError(t, err)
			_, err = io.Copy(f, in)
			require.NoError(t, errors.Join(err, f.Close()))
		default:
			t.Fatalf("%s has the type %c", h.Name, h.Typeflag)
		}
	}
}

// findPrograms returns the programs of an image in /usr/bin.
func findPrograms(t *testing.T, root string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, "usr/bin"))
	require.NoError(t, err)
	var programs []string
	for _, e := range entries {
		path := filepath.Join("/usr/bin", e.Name())
		f, err := elf.Open(filepath.Join(root, path))
		if err != nil {
			continue // a link, or no program
		}
		require.Equal(t, elf.EM_AARCH64, f.Machine, path)
		require.NoError(t, f.Close())
		programs = append(programs, path)
	}
	return programs
}

// emulate runs a program of an image and returns its output. The loader and the libraries are those
// of the image; other paths are those of the node.
func emulate(t *testing.T, root, program string, args ...string) (string, error) {
	t.Helper()
	cmd, output := command(t, root, program, args...)
	err := cmd.Run()
	return output.String(), err
}

func command(t *testing.T, root, program string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, emulator, append([]string{"-L", root, filepath.Join(root, program)}, args...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	return cmd, &output
}
