package cdi

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/host"
)

func spec(kind string, edits specs.ContainerEdits, names ...string) specs.Spec {
	s := specs.Spec{Kind: kind, ContainerEdits: edits}
	for _, n := range names {
		s.Devices = append(s.Devices, specs.Device{Name: n, ContainerEdits: specs.ContainerEdits{
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidia0"}},
		}})
	}
	return s
}

func put(t *testing.T, root, path string, s specs.Spec) {
	t.Helper()
	data, err := Encode(s)
	require.NoError(t, err)
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

func view(t *testing.T) (string, *host.Root) {
	t.Helper()
	dir := t.TempDir()
	root, err := host.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

func TestEncodeTakesTheLowestVersionAndRuntimesReadIt(t *testing.T) {
	s := spec(KindGPU, specs.ContainerEdits{Env: []string{"A=b"}}, "GPU-1", "GPU-2")
	dir := t.TempDir()
	put(t, dir, "a.yaml", s)
	read, err := cdi.ReadSpec(dir+"/a.yaml", 0) // as containerd and CRI-O do
	require.NoError(t, err)
	require.Equal(t, "0.3.0", read.Version)
	require.NotNil(t, read.GetDevice("GPU-2"))

	for _, d := range s.Devices {
		d.ContainerEdits.DeviceNodes[0].HostPath = "/run/nvidia/driver/dev/nvidia0"
	}
	put(t, dir, "a.yaml", s)
	read, err = cdi.ReadSpec(dir+"/a.yaml", 0)
	require.NoError(t, err)
	require.Equal(t, "0.5.0", read.Version)
}

func TestEncodeRefusesSpecsThatRuntimesRefuse(t *testing.T) {
	for name, s := range map[string]specs.Spec{
		"no devices": spec(KindGPU, specs.ContainerEdits{}),
		"twice":      spec(KindGPU, specs.ContainerEdits{}, "a", "a"),
		"kind":       spec("gpu", specs.ContainerEdits{}, "a"),
		"name":       spec(KindGPU, specs.ContainerEdits{}, "a b"),
		"env":        spec(KindGPU, specs.ContainerEdits{Env: []string{"novalue"}}, "a"),
	} {
		_, err := Encode(s)
		require.Error(t, err, name)
	}
}

func TestFindResolvesAsRuntimesDo(t *testing.T) {
	dir, root := view(t)
	put(t, dir, "etc/cdi/a.yaml", spec(KindNVIDIA, specs.ContainerEdits{}, "0", "1"))
	put(t, dir, "run/cdi/b.yaml", spec(KindNVIDIA, specs.ContainerEdits{}, "1", "2"))
	put(t, dir, "run/cdi/c.yaml", spec(KindNVIDIA, specs.ContainerEdits{}, "2"))
	put(t, dir, "run/cdi/ignored.txt", spec(KindGPU, specs.ContainerEdits{}, "x"))
	require.NoError(t, os.WriteFile(dir+"/run/cdi/broken.yaml", []byte("cdiVersion: 99.0.0\nkind: k8s.gpuready.io/gpu\ndevices: []\n"), 0o644))
	require.NoError(t, os.MkdirAll(dir+"/var", 0o755))
	require.NoError(t, os.Symlink("/run", dir+"/var/run"))

	files, err := Load(root)
	require.NoError(t, err)
	f, _, err := Find(files, "nvidia.com/gpu=0")
	require.NoError(t, err)
	require.Equal(t, "/etc/cdi/a.yaml", f.Path)
	f, _, err = Find(files, "nvidia.com/gpu=1")
	require.NoError(t, err)
	require.Equal(t, "/var/run/cdi/b.yaml", f.Path)
	_, _, err = Find(files, "nvidia.com/gpu=2")
	require.ErrorIs(t, err, ErrUnresolvable)
	require.ErrorContains(t, err, "/var/run/cdi/b.yaml and /var/run/cdi/c.yaml")
	_, _, err = Find(files, GPUName("GPU-1"))
	require.ErrorIs(t, err, ErrUnresolvable)
	require.ErrorContains(t, err, "broken.yaml")
	for _, name := range []string{"nvidia.com/gpu=3", "x.y/z=1", "nonsense"} {
		_, _, err = Find(files, name)
		require.ErrorIs(t, err, ErrUnresolvable, name)
	}
}

func TestCheckNamesAllThatIsMissing(t *testing.T) {
	dir, root := view(t)
	edits := specs.ContainerEdits{
		Mounts: []*specs.Mount{{HostPath: "/lib/libcuda.so.1", ContainerPath: "/lib/libcuda.so.1"}},
		Hooks:  []*specs.Hook{{HookName: "createContainer", Path: "/hook"}},
	}
	put(t, dir, "etc/cdi/a.yaml", spec(KindGPU, edits, "GPU-1"))
	files, err := Load(root)
	require.NoError(t, err)
	err = Check(root, files, GPUName("GPU-1"))
	require.ErrorIs(t, err, ErrIncomplete)
	for _, want := range []string{"device node /dev/nvidia0", "/lib/libcuda.so.1", "hook /hook", "/etc/cdi/a.yaml"} {
		require.ErrorContains(t, err, want)
	}
	for _, p := range []string{"/lib/libcuda.so.1", "/hook", "/dev/nvidia0"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(dir+p), 0o755))
		require.NoError(t, os.WriteFile(dir+p, nil, 0o755))
	}
	require.ErrorContains(t, Check(root, files, GPUName("GPU-1")), "a file that is no device")
	require.NoError(t, os.Remove(dir+"/dev/nvidia0"))
	if err := unix.Mknod(dir+"/dev/nvidia0", unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		t.Skipf("mknod: %v", err)
	}
	require.NoError(t, Check(root, files, GPUName("GPU-1")))
}

func FuzzParse(f *testing.F) {
	data, err := Encode(spec(KindGPU, specs.ContainerEdits{Env: []string{"A=b"}}, "GPU-1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("cdiVersion: 0.3.0\nkind: a.b/c\ndevices:\n- null\n"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			return
		}
		if _, err := Encode(*s); err != nil {
			t.Fatalf("a specification that was read cannot be written: %v\n%s", err, data)
		}
	})
}
