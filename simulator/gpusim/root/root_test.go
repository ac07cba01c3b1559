package root

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvpci"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/golden"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// stand compiles, once, tiny libraries that are not a driver but look like the
// simulator's from outside.
var stand = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gpusim-test-lib-")
	if err != nil {
		return "", err
	}
	for name, source := range map[string]string{
		"libnvidia-ml.so": "int gpusim_simulated(void) { return 1; }",
		"libcuda.so":      "int gpusim_simulated(void) { return 1; } int more;",
		"real.so":         "int nvmlInit_v2(void) { return 0; } extern int gpusim_simulated(void); int call(void) { return gpusim_simulated(); }",
	} {
		cc := exec.Command("cc", "-shared", "-fPIC", "-xc", "-o", filepath.Join(dir, name), "-")
		cc.Stdin = strings.NewReader(source)
		if out, err := cc.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cc: %w: %s", err, out)
		}
	}
	for _, name := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			return "", err
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := stand(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func spec(t testing.TB, name string, o profile.Options) Spec {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler (cc)")
	}
	libs, err := stand()
	require.NoError(t, err)
	p, err := profile.Get(name)
	require.NoError(t, err)
	s, err := p.State(o)
	require.NoError(t, err)
	version := o.DriverVersion
	if version == "" {
		version = profile.DefaultDriver
	}
	return Spec{State: s, Profile: name, Version: version, Arch: "amd64", Libraries: libs}
}

func newRoot(t testing.TB, dir string) *Root {
	return &Root{Dir: dir, Command: "test", Logf: t.Logf}
}

// listing lists all below dir, one line each, without what differs between machines.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%v %s", info.Mode(), name)
		switch {
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			b.WriteString(" -> " + target)
		case info.Mode()&fs.ModeCharDevice != 0:
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			fmt.Fprintf(&b, " minor %d", unix.Minor(st.Rdev))
		}
		b.WriteByte('\n')
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	require.NoError(t, err)
	return b.String()
}

func canMknod(t testing.TB) bool {
	t.Helper()
	err := unix.Mknod(filepath.Join(t.TempDir(), "node"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	return err == nil
}

func layout(t testing.TB, text string) []profile.Instance {
	t.Helper()
	l, err := profile.ParseLayout(text)
	require.NoError(t, err)
	return l
}

func partition(t testing.TB, r *Root, gpu int, text string) {
	t.Helper()
	require.NoError(t, r.Change(func(s *state.State) error { return profile.EnableMIG(&s.Gpu[gpu], layout(t, text)) }))
}

func TestUpMakesADriverRootAndDownRemovesIt(t *testing.T) {
	if !canMknod(t) {
		t.Skip("device nodes cannot be made here")
	}
	dir := filepath.Join(t.TempDir(), "a", "b", "root")
	r := newRoot(t, dir)
	require.NoError(t, r.Up(spec(t, "h100-sxm", profile.Options{GPUs: 2})))
	partition(t, r, 1, "3g.40gb:1c+2c,1g.10gb")
	golden.Require(t, "testdata/h100-sxm-2-mig.txt", listing(t, dir))
	for _, name := range []string{
		"proc/driver/nvidia/version", "proc/driver/nvidia/gpus/0000:1b:00.0/information",
		"proc/driver/nvidia/capabilities/gpu1/mig/gi1/ci1/access", "sys/bus/pci/devices/0000:1b:00.0/vendor",
		"sys/bus/pci/devices/0000:07:00.0/class",
	} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		golden.Require(t, "testdata/"+strings.NewReplacer("/", "-", ":", "").Replace(name)+".txt", string(data))
	}
	there, err := r.Down()
	require.NoError(t, err)
	require.True(t, there)
	require.NoDirExists(t, filepath.Dir(filepath.Dir(dir)), "the folders above were made by up, too")
	there, err = r.Down()
	require.NoError(t, err)
	require.False(t, there)
}

// TestOtherProgramsReadThePCIDevices asks the library that NVIDIA's own
// components find GPUs with.
func TestOtherProgramsReadThePCIDevices(t *testing.T) {
	r := newRoot(t, t.TempDir())
	s := spec(t, "h100-sxm", profile.Options{})
	require.NoError(t, r.Up(s))
	pci := nvpci.New(nvpci.WithPCIDevicesRoot(filepath.Join(r.Dir, "sys/bus/pci/devices")))
	gpus, err := pci.GetGPUs()
	require.NoError(t, err)
	require.Len(t, gpus, 8)
	for i, g := range gpus {
		require.Equal(t, s.State.Gpu[i].Pci.Address(), g.Address)
		require.EqualValues(t, s.State.Gpu[i].NumaNode, g.NumaNode)
		require.EqualValues(t, 0x2330, g.Device)
		require.Equal(t, "nvidia", g.Driver)
		require.True(t, g.Is3DController())
		config, err := g.Config.Read()
		require.NoError(t, err)
		require.EqualValues(t, 0x10de, config.GetVendorID())
		require.EqualValues(t, 0x2330, config.GetDeviceID())
	}
	switches, err := pci.GetNVSwitches()
	require.NoError(t, err)
	require.Len(t, switches, 4)
}

func TestDownLeavesWhatItDidNotMake(t *testing.T) {
	dir := t.TempDir()
	mine := map[string]string{"usr/share/keep": "mine", "dev/other": "mine", "keep": "mine"}
	for name, content := range mine {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	before := listing(t, dir)
	r := newRoot(t, dir)
	require.NoError(t, r.Up(spec(t, "t4", profile.Options{})))
	// Someone puts something else in the place of a file, and adds one.
	smi := filepath.Join(dir, "usr/bin/nvidia-smi")
	require.NoError(t, os.Remove(smi))
	require.NoError(t, os.WriteFile(smi, []byte("real"), 0o755))
	added := filepath.Join(dir, "proc/driver/nvidia/added")
	require.NoError(t, os.WriteFile(added, nil, 0o600))
	_, err := r.Down()
	require.NoError(t, err)
	require.FileExists(t, added)
	require.FileExists(t, smi)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "proc")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "usr/bin")))
	require.Equal(t, before, listing(t, dir))
}

func TestUpRefusesForeignFiles(t *testing.T) {
	s := spec(t, "t4", profile.Options{})
	dir := t.TempDir()
	r := newRoot(t, dir)
	put := func(name, from string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		content, err := os.ReadFile(filepath.Join(s.Libraries, from))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	put("usr/lib64/libnvidia-ml.so.535.1", "real.so")
	before := listing(t, dir)
	require.ErrorContains(t, r.Up(s), "libnvidia-ml.so.535.1 is not of the simulated driver")
	s.Force = true
	require.ErrorContains(t, r.Up(s), "is not of the simulated driver", "no force makes gpusim touch a real driver")
	require.Equal(t, before, listing(t, dir))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "usr")))

	put("usr/bin/nvidia-smi", "nvidia-smi")
	require.ErrorContains(t, r.Up(s), "already has usr/bin/nvidia-smi, and gpusim did not make them")
	require.NoDirExists(t, filepath.Join(dir, "dev"))

	require.ErrorContains(t, newRoot(t, "/").Up(spec(t, "t4", profile.Options{})), "/ is where a real driver belongs")
	s.Libraries = t.TempDir()
	require.ErrorContains(t, r.Up(s), "build it with make, or name its folder with --lib-dir")
	libs, err := stand()
	require.NoError(t, err)
	require.NoError(t, os.CopyFS(s.Libraries, os.DirFS(libs)))
	require.NoError(t, os.Rename(filepath.Join(s.Libraries, "real.so"), filepath.Join(s.Libraries, "libcuda.so")))
	require.ErrorContains(t, r.Up(s), "does not export gpusim_simulated")
}

func TestUpgradeIsVisibleToProcessesOnTheOldLibrary(t *testing.T) {
	r := newRoot(t, t.TempDir())
	require.NoError(t, r.Up(spec(t, "t4", profile.Options{DriverVersion: "570.1"})))
	old, err := r.Open()
	require.NoError(t, err)
	defer old.Close()
	require.NoError(t, r.Up(spec(t, "t4", profile.Options{DriverVersion: "580.2"})))
	var s state.State
	old.Read(&s)
	require.Equal(t, "580.2", state.Text(s.ModuleVersion[:]))
	got := listing(t, r.Dir)
	require.NotContains(t, got, "570.1")
	require.Contains(t, got, "libnvidia-ml.so.1 -> libnvidia-ml.so.580.2")
}

func TestUpOnTheSameVersionChangesTheStateInPlace(t *testing.T) {
	r := newRoot(t, t.TempDir())
	require.NoError(t, r.Up(spec(t, "h100-sxm", profile.Options{})))
	f, err := r.Open()
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, r.Up(spec(t, "t4", profile.Options{GPUs: 1})))
	var s state.State
	f.Read(&s)
	require.Equal(t, "t4-1", state.Text(s.Profile[:]))
	require.NotContains(t, listing(t, r.Dir), "dev/nvidia1")
}

func TestDownIsVisibleToProcessesOnTheDriver(t *testing.T) {
	r := newRoot(t, t.TempDir())
	require.NoError(t, r.Up(spec(t, "t4", profile.Options{})))
	f, err := r.Open()
	require.NoError(t, err)
	defer f.Close()
	_, err = r.Down()
	require.NoError(t, err)
	var s state.State
	f.Read(&s)
	require.EqualValues(t, driverNotLoaded, s.InitError)
	_, err = r.Open()
	require.ErrorIs(t, err, ErrNone)
	require.ErrorContains(t, err, "run gpusim up --root "+r.Dir)
}

// TestCapabilityNodesOfOthersAreAdopted is about a client that partitions a GPU
// through NVML, which then makes the nodes of the capabilities, and about the
// toolkit, which makes those that it finds missing.
func TestCapabilityNodesOfOthersAreAdopted(t *testing.T) {
	if !canMknod(t) {
		t.Skip("device nodes cannot be made here")
	}
	dir := filepath.Join(t.TempDir(), "root")
	r := newRoot(t, dir)
	require.NoError(t, r.Up(spec(t, "h100-sxm", profile.Options{})))
	bare := listing(t, dir)
	m, err := r.Manifest()
	require.NoError(t, err)
	made := func(minor, mode uint32) {
		path := filepath.Join(dir, fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", minor))
		require.NoError(t, unix.Mknod(path, unix.S_IFCHR|mode, int(unix.Mkdev(m.Majors.Caps, minor))))
		require.NoError(t, os.Chmod(path, os.FileMode(mode)))
	}
	made(3, 0o444) // that of a 7g.80gb
	made(4, 0o666)
	made(30, 0o444) // that of an instance which is gone again
	made(31, 0o666)
	partition(t, r, 0, "7g.80gb")
	require.NoError(t, r.Change(func(s *state.State) error { profile.DisableMIG(&s.Gpu[0]); return nil }))
	require.Equal(t, bare, listing(t, dir))
	made(3, 0o444)
	made(4, 0o666)
	_, err = r.Down()
	require.NoError(t, err)
	require.NoDirExists(t, dir)
}

func TestMIGLayoutsComeAndGoWithTheirNodes(t *testing.T) {
	r := newRoot(t, t.TempDir())
	require.NoError(t, r.Up(spec(t, "h100-sxm", profile.Options{})))
	bare := listing(t, r.Dir)
	partition(t, r, 3, "1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb")
	require.Equal(t, 14, strings.Count(listing(t, r.Dir), "nvidia-caps/")-strings.Count(bare, "nvidia-caps/"))
	refused := listing(t, r.Dir)
	require.ErrorContains(t, r.Change(func(s *state.State) error { return profile.EnableMIG(&s.Gpu[3], layout(t, "3g.40gb,3g.40gb,2g.20gb")) }), "needs 8 compute slices")
	require.Equal(t, refused, listing(t, r.Dir))
	require.NoError(t, r.Change(func(s *state.State) error { profile.DisableMIG(&s.Gpu[3]); return nil }))
	require.Equal(t, bare, listing(t, r.Dir))
}

func TestTakenMajorsAreAvoided(t *testing.T) {
	taken := takenMajors([]byte("Character devices:\n  1 mem\n195 nvidia\n511 x\n\nBlock devices:\n  8 sd\n"))
	require.Equal(t, map[uint32]bool{1: true, 195: true, 511: true}, taken)
	s := spec(t, "t4", profile.Options{})
	m, err := newRoot(t, t.TempDir()).majors(s.State)
	require.NoError(t, err)
	host, err := os.ReadFile("/proc/devices")
	require.NoError(t, err)
	chosen := []uint32{m.GPU, m.UVM, m.Caps, m.NVSwitch}
	for i, n := range chosen {
		require.False(t, takenMajors(host)[n])
		require.NotContains(t, chosen[:i], n)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"layout":1,"entries":[{"path":"dev/nvidia0","kind":"node"}],"dirs":["."]}`))
	f.Add([]byte(`{"layout":1,"entries":[{"path":"../x","kind":"file"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(data)
		if err != nil {
			return
		}
		for _, p := range slices.Concat(m.Dirs, paths(m.Entries)) {
			require.True(t, filepath.IsLocal(p))
		}
	})
}

func paths(entries []Entry) []string {
	var paths []string
	for _, e := range entries {
		paths = append(paths, e.Path)
	}
	return paths
}

func FuzzDevices(f *testing.F) {
	f.Add([]byte("Character devices:\n195 nvidia\n\nBlock devices:\n8 sd\n"))
	f.Fuzz(func(_ *testing.T, data []byte) { takenMajors(data) })
}
