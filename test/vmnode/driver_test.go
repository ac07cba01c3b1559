package vmnode

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// version is the version of the driver's modules and user space.
const version = "580.95.05"

// The GPU on the PCI bus of simulator/pci.
const (
	profileName = "a100-80gb"
	deviceID    = "0x20b2"
)

var address = state.PCI{Domain: 1}

// userSpace creates the files that a driver's installer unpacks: SIMULATED libraries and programs, and
// among the libraries the state of the GPU. It creates no device nodes and no files of /proc and /sys,
// which come from the kernel here.
func userSpace(t *testing.T, at string) {
	t.Helper()
	p, err := profile.Get(profileName)
	require.NoError(t, err)
	s, err := p.State(profile.Options{GPUs: 1, DriverVersion: version})
	require.NoError(t, err)
	gpu := s.GPUs()[0]
	gpu.Pci.Domain, gpu.Pci.Bus, gpu.Pci.Device, gpu.Pci.Function = address.Domain, address.Bus, address.Device, address.Function
	gpu.NumaNode = -1 // the bus has none
	dir := t.TempDir()
	r := root.Root{Dir: dir, Command: "this test", Logf: t.Logf}
	require.NoError(t, r.Up(root.Spec{
		State: s, Profile: profileName, Version: version, Arch: "amd64", Libraries: filepath.Dir(built.Path(t, "lib/libcuda.so")),
	}))
	require.NoError(t, os.CopyFS(filepath.Join(at, "usr"), os.DirFS(filepath.Join(dir, "usr"))))
}

// driverImage writes the archive of a driver's image: gpuready/driver, and a layer with the folder
// /driver that holds modules for a kernel.
func driverImage(t *testing.T, k *vm.Kernel, archive string) {
	t.Helper()
	dir := t.TempDir()
	userSpace(t, filepath.Join(dir, "driver"))
	modules := filepath.Join(dir, "driver/lib/modules", k.Release)
	require.NoError(t, os.MkdirAll(modules, 0o755))
	for file, data := range vm.BuildStubs(t, k, version) {
		require.NoError(t, os.WriteFile(filepath.Join(modules, file), data, 0o644))
	}
	firmware := filepath.Join(dir, "driver/lib/firmware/nvidia", version, "gsp_ga10x.bin")
	require.NoError(t, os.MkdirAll(filepath.Dir(firmware), 0o755))
	require.NoError(t, os.WriteFile(firmware, []byte("SIMULATED\n"), 0o644))

	base, err := tarball.ImageFromPath(imageArchive("driver"), nil)
	require.NoError(t, err)
	image, err := mutate.AppendLayers(base, layer(t, dir))
	require.NoError(t, err)
	ref, err := name.ParseReference("docker.io/gpuready/driver:" + e2e.Version())
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(archive, ref, image))
}

// layer returns a layer of the files below a folder, all owned by root.
func layer(t *testing.T, dir string) gcr.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		h.Name, h.Uid, h.Gid, h.Uname, h.Gname = strings.TrimPrefix(path, dir+"/"), 0, 0, "", ""
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}))
	require.NoError(t, w.Close())
	return static.NewLayer(b.Bytes(), types.DockerUncompressedLayer)
}

// pciModule builds simulator/pci for a kernel.
func pciModule(t *testing.T, k *vm.Kernel) []byte {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(built.Root(), "simulator/pci"))))
	require.NoError(t, k.Make(t.Context(), dir, "modules"))
	data, err := os.ReadFile(filepath.Join(dir, "gpusim-pci.ko"))
	require.NoError(t, err)
	return data
}
