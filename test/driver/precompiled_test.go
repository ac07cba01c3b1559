package driver

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/precompiled/runfile"
	"github.com/gpuready/gpuready/internal/nvidia"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/built"

	"github.com/gpuready/gpuready/test/lab/vm"
)

// installer writes a SIMULATED driver in the format of NVIDIA's installer: a script, and an archive
// with sources, objects, user space and a list of them.
func installer(t *testing.T, source string) string {
	t.Helper()
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	w := tar.NewWriter(z)
	add := func(name string, mode int64, text []byte) {
		require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}))
		_, err := w.Write(text)
		require.NoError(t, err)
	}
	add("./.manifest", 0o644, []byte(strings.ReplaceAll(`NVIDIA Accelerated Graphics Driver for Linux-x86_64
VERSION
libcuda.so.VERSION 0755 CUDA_LIB NATIVE / MODULE:gpgpu
libcuda.so.1 0000 CUDA_SYMLINK NATIVE / libcuda.so.VERSION MODULE:gpgpu
nvidia-smi 0755 UTILITY_BINARY MODULE:nvml
firmware/gsp_ga10x.bin 0644 FIRMWARE MODULE:resman
LICENSE 0444 DOCUMENTATION NVIDIA_GLX-1.0/ MODULE:installer
`, "VERSION", version)))
	add("./libcuda.so."+version, 0o755, []byte("the library"))
	add("./nvidia-smi", 0o755, []byte("a program"))
	add("./firmware/gsp_ga10x.bin", 0o644, []byte("the firmware"))
	add("./LICENSE", 0o444, []byte("the licence"))
	require.NoError(t, filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(source, path)
		require.NoError(t, err)
		text, err := os.ReadFile(path)
		add("./kernel-open/"+rel, 0o644, text)
		return err
	}))
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	script := fmt.Sprintf("#! /bin/sh\nCRCsum=1\nMD5=00000000000000000000000000000000\nskip=8\nversion_string=%s\nTARGET_OS=\"Linux\"\nTARGET_ARCH=\"x86_64\"\n", version)
	file := filepath.Join(t.TempDir(), "NVIDIA-Linux-x86_64-"+version+".run")
	require.NoError(t, os.WriteFile(file, append([]byte(script), archive.Bytes()...), 0o644))
	return file
}

// builderImage gives buildah an image with Debian's compiler and the headers of kernels.
func builderImage(t *testing.T, kernels []*vm.Kernel) string {
	t.Helper()
	cache, err := binaries.DefaultCache()
	require.NoError(t, err)
	compiler, err := binaries.EnsureCompiler(t.Context(), cache, t.Output())
	require.NoError(t, err)
	extra := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(extra, "tmp"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(extra, "usr/bin"), 0o755))
	require.NoError(t, os.Symlink("mawk", filepath.Join(extra, "usr/bin/awk")))
	buildah := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "buildah", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return lastLine(string(out))
	}
	const image = "localhost/gpuready-test-builder:1"
	container := buildah("from", "scratch")
	defer buildah("rm", container)
	for from, to := range map[string]string{compiler: "/", extra: "/"} {
		buildah("add", "--quiet", container, from, to)
	}
	for _, k := range kernels {
		buildah("add", "--quiet", container, filepath.Join(k.Root(), "usr"), "/usr")
	}
	buildah("commit", "--quiet", container, image)
	t.Cleanup(func() { _ = exec.Command("buildah", "rmi", image).Run() })
	return image
}

// fabricPackages makes stand-ins for the packages of the CUDA repository that machines with NVSwitches need.
func fabricPackages(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	program, err := os.ReadFile(buildStandin(t).Source)
	require.NoError(t, err)
	config := []byte("LOG_LEVEL=4\nDAEMONIZE=1\nFABRIC_MODE=0\nLOG_USE_SYSLOG=1\n")
	for name, files := range map[string]map[string][]byte{
		"nvidia-fabricmanager": {"usr/bin/nv-fabricmanager": program, "usr/share/nvidia/nvswitch/fabricmanager.cfg": config},
		"nvidia-imex":          {"usr/bin/nvidia-imex": program},
		"nvlsm":                {"opt/nvidia/nvlsm/sbin/nvlsm": program},
		"libnvidia-nscq":       {}, "libnvsdm": {}, "libibumad3": {},
	} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o755))
		control := fmt.Sprintf("Package: %s\nVersion: %s-1\nArchitecture: amd64\nMaintainer: nobody <nobody@example.com>\nDescription: stand-in\n", name, version)
		files["DEBIAN/control"] = []byte(control)
		for at, data := range files {
			path := filepath.Join(dir, at)
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, data, 0o755))
		}
		out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", "--root-owner-group", dir, to).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	return to
}

// TestPrecompiledImages runs make image image-push, as in the docs, for two kernels. Done twice it gives
// the same images, which share all but a small layer. A machine links and loads its kernel's modules. One with
// NVSwitches has its fabric manager from the image.
func TestPrecompiledImages(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	var kernels []*vm.Kernel
	var releases []string
	for _, series := range vm.AllSeries {
		k := vm.FetchKernel(t, series)
		kernels, releases = append(kernels, k), append(releases, k.Release)
	}
	source := inHalves(t, request(t, kernels[0]).Source)
	edit(t, filepath.Join(source, "Kbuild"), "obj-m +=", "DRIVER_VERSION ?= "+version+"\nobj-m +=")
	s := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	variables := []string{
		"DRIVER_VERSION=" + version, "DRIVER_SOURCE=" + installer(t, source), "KERNEL_VERSIONS=" + strings.Join(releases, " "),
		"DRIVER_MODULES=nvidia nvidia-uvm nvidia-modeset",
		"CONTAINER_TOOL=buildah", "BUILDER_IMAGE=" + builderImage(t, kernels), "BUILDAH_ISOLATION=chroot",
		"IMAGE_REGISTRY=" + host + "/gpu", "IMAGE_INSECURE=" + host, "BUILDER_USER=A Builder", "BUILDER_EMAIL=builder@example.com",
		"FABRIC=on", "FABRIC_PACKAGES_DIR=" + fabricPackages(t),
	}
	images := func() map[string]v1.Image {
		cmd := exec.CommandContext(t.Context(), "make", "-C", filepath.Join(built.Root(), "driver/precompiled/debian12"), "image", "image-push")
		cmd.Env = append(append(os.Environ(), variables...), "OUTPUT_DIR="+t.TempDir(), "MAKEFLAGS=")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out[max(0, len(out)-1500):])
		all := map[string]v1.Image{}
		for _, r := range releases {
			ref, err := name.ParseReference(host+"/gpu/driver:"+version+"-"+nvidia.TagKernel(r)+"-debian12", name.Insecure)
			require.NoError(t, err)
			all[r], err = remote.Image(ref)
			require.NoError(t, err)
			require.Contains(t, string(out), digest(t, all[r]))
		}
		return all
	}
	first, second := images(), images()
	for _, r := range releases {
		require.Equal(t, digest(t, first[r]), digest(t, second[r]))
	}
	layers := func(r string) []v1.Layer {
		l, err := first[r].Layers()
		require.NoError(t, err)
		return l
	}
	last := len(layers(releases[0])) - 1
	for i := range last {
		a, err := layers(releases[0])[i].Digest()
		require.NoError(t, err)
		b, err := layers(releases[1])[i].Digest()
		require.NoError(t, err)
		require.Equal(t, a, b)
	}
	size, err := layers(releases[0])[last].Size()
	require.NoError(t, err)
	require.Less(t, size, int64(1_000_000))

	k := kernels[0]
	files, err := unpacked(t, first[k.Release])
	require.NoError(t, err)
	n := boot(t, vm.Config{Kernel: k, Memory: 1024, Files: vm.Merge(k.ModuleTree(t, []string{"ecc"}, nil), files)})
	n.setPCI([2]string{"0x030200", "0x2330"}, [2]string{"0x068000", "0x22a3"})
	r := n.loads()
	require.Contains(t, r.Stderr, "modules are linked")
	require.Contains(t, n.MustRun(t.Context(), "gpu-driver", "check"), "nv-fabricmanager (required): configures 1 NVSwitch")
	require.Contains(t, n.MustRun(t.Context(), "dmesg"), "NVRM: SIMULATED core 42")
	require.Equal(t, "the library", n.MustRun(t.Context(), "cat", driverRoot+"/usr/lib/x86_64-linux-gnu/libcuda.so.1"))
	n.unloads()
}

func digest(t *testing.T, i v1.Image) string {
	t.Helper()
	d, err := i.Digest()
	require.NoError(t, err)
	return d.String()
}

// unpacked returns an image's files for a machine, without those that every machine has.
func unpacked(t *testing.T, i v1.Image) (vm.Files, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	files := mutate.Extract(i)
	if err := runfile.UntarStream(t.Context(), files, dir, runfile.AnyLinks); err != nil {
		return nil, err
	}
	all := vm.Files{}
	for _, at := range []string{"driver", "usr/lib/gpu-driver"} {
		f, err := vm.Folder(filepath.Join(dir, at), "/"+at)
		if err != nil {
			return nil, err
		}
		all = vm.Merge(all, f)
	}
	return all, nil
}
