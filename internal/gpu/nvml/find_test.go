package nvml

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/library/librarytest"
)

// machine is the ELF machine type that this process can load.
var machine = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]

// elfHead returns the head of an ELF library, up to its machine type.
func elfHead(class elf.Class, m elf.Machine) string {
	head := make([]byte, 64)
	copy(head, elf.ELFMAG)
	head[elf.EI_CLASS] = byte(class)
	head[18], head[19] = byte(m), byte(m>>8)
	return string(head)
}

func ours() string { return elfHead(elf.ELFCLASS64, machine) }

// driverRoot makes files below a new directory; "-> target" makes a link.
func driverRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	// The temporary directory may itself be behind a link.
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for name, content := range files {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		if target, link := strings.CutPrefix(content, "-> "); link {
			require.NoError(t, os.Symlink(target, name))
		} else {
			require.NoError(t, os.WriteFile(name, []byte(content), 0o644))
		}
	}
	return root
}

func TestFindLibrary(t *testing.T) {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	for name, c := range map[string]struct {
		files map[string]string
		want  string // below the root; "" none
	}{
		"Fedora":             {map[string]string{"/usr/lib64/libnvidia-ml.so.1": "-> libnvidia-ml.so.580", "/usr/lib64/libnvidia-ml.so.580": ours()}, "/usr/lib64/libnvidia-ml.so.580"},
		"Ubuntu":             {map[string]string{"/usr/lib/" + triplet + "/libnvidia-ml.so.1": ours()}, "/usr/lib/" + triplet + "/libnvidia-ml.so.1"},
		"merged /usr":        {map[string]string{"/lib64": "-> usr/lib", "/usr/lib/libnvidia-ml.so.1": ours()}, "/usr/lib/libnvidia-ml.so.1"},
		"absolute link":      {map[string]string{"/usr/lib64/libnvidia-ml.so.1": "-> /opt/nvidia/ml", "/opt/nvidia/ml": ours()}, "/opt/nvidia/ml"},
		"link out of it":     {map[string]string{"/usr/lib64/libnvidia-ml.so.1": "-> ../../../../../../../../opt/ml", "/opt/ml": ours()}, "/opt/ml"},
		"32-bit is not ours": {map[string]string{"/usr/lib/libnvidia-ml.so.1": elfHead(elf.ELFCLASS32, elf.EM_386), "/lib/libnvidia-ml.so.1": ours()}, "/lib/libnvidia-ml.so.1"},
		"other machine":      {map[string]string{"/usr/lib64/libnvidia-ml.so.1": elfHead(elf.ELFCLASS64, elf.EM_RISCV)}, ""},
		"a text":             {map[string]string{"/usr/lib64/libnvidia-ml.so.1": "INPUT(libnvidia-ml.so)"}, ""},
		"a directory":        {map[string]string{"/usr/lib64/libnvidia-ml.so.1/x": ""}, ""},
		"dangling":           {map[string]string{"/usr/lib64/libnvidia-ml.so.1": "-> libnvidia-ml.so.580"}, ""},
		"a circle":           {map[string]string{"/usr/lib64/libnvidia-ml.so.1": "-> b", "/usr/lib64/b": "-> libnvidia-ml.so.1"}, ""},
		"empty":              {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := driverRoot(t, c.files)
			got, err := FindLibrary(root, "/")
			if c.want == "" {
				require.ErrorIs(t, err, gpu.ErrNoDriver)
				require.ErrorContains(t, err, root)
				return
			}
			require.NoError(t, err)
			require.Equal(t, root+c.want, got)
		})
	}
}

func TestFindLibraryBelowADriverRootOfTheHost(t *testing.T) {
	root := driverRoot(t, map[string]string{
		"/run/nvidia/driver":                     "-> /home/driver", // as the host reads it
		"/home/driver/lib/libnvidia-ml.so.1":     "-> /lib/libnvidia-ml.so.2",
		"/home/driver/lib/libnvidia-ml.so.2":     ours(),
		"/usr/lib64/libnvidia-ml.so.1":           ours(), // the host's own
		"/somewhere/else/lib/libnvidia-ml.so.99": ours(),
	})
	got, err := FindLibrary(root, "/run/nvidia/driver")
	require.NoError(t, err)
	require.Equal(t, root+"/home/driver/lib/libnvidia-ml.so.2", got)

	_, err = FindLibrary(root, "/run/nvidia/nothing")
	require.ErrorIs(t, err, gpu.ErrNoDriver)
	require.ErrorContains(t, err, "not there yet")
}

func TestFindLibraryInEveryLayout(t *testing.T) {
	for _, l := range librarytest.Layouts(t) {
		root, err := filepath.EvalSymlinks(t.TempDir())
		require.NoError(t, err)
		l.Make(t, root)
		module := filepath.Join(root, "proc/driver/nvidia/version")
		require.NoError(t, os.MkdirAll(filepath.Dir(module), 0o755))
		require.NoError(t, os.WriteFile(module, []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+l.Version+"  Tue\n"), 0o644))
		if l.Name == "wsl" { // has none
			require.NoError(t, os.Remove(module))
		}
		got, err := FindLibrary(root, "/")
		require.NoError(t, err, l.Name)
		if l.Name == "wsl" {
			require.Equal(t, root+"/usr/lib/wsl/lib/libnvidia-ml.so.1", got)
			continue
		}
		require.Equal(t, "libnvidia-ml.so."+l.Version, filepath.Base(got), l.Name)
	}
}

func TestLibraryOfTheLoadedModuleIsPreferred(t *testing.T) {
	files := map[string]string{
		"/usr/lib64/libnvidia-ml.so.1":                      "-> libnvidia-ml.so.535.309.01",
		"/usr/lib64/libnvidia-ml.so.535.309.01":             ours(),
		"/usr/local/nvidia/lib64/libnvidia-ml.so.1":         "-> libnvidia-ml.so.580.95.05",
		"/usr/local/nvidia/lib64/libnvidia-ml.so.580.95.05": ours(),
	}
	const line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Tue Sep 23 15:38:06 UTC 2025\n"
	for module, want := range map[string]string{
		"580.95.05":  "/usr/local/nvidia/lib64/libnvidia-ml.so.580.95.05",
		"535.309.01": "/usr/lib64/libnvidia-ml.so.535.309.01",
		"570.1":      "/usr/lib64/libnvidia-ml.so.535.309.01", // none is of it
	} {
		files["/proc/driver/nvidia/version"] = fmt.Sprintf(line, module)
		root := driverRoot(t, files)
		got, err := FindLibrary(root, "/")
		require.NoError(t, err)
		require.Equal(t, root+want, got, "module %s", module)
	}
}

func TestLibraryRemovedMeanwhileIsNotFound(t *testing.T) {
	root := driverRoot(t, map[string]string{"/usr/lib64/libnvidia-ml.so.1": ours()})
	name := filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // a driver that is being replaced, again and again
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(name, name+".away")
				_ = os.Rename(name+".away", name)
			}
		}
	}()
	defer func() {
		close(stop)
		<-stopped
	}()
	found, none := 0, 0
	for found < 300 || none < 300 {
		got, err := FindLibrary(root, "/")
		if err != nil {
			require.ErrorIs(t, err, gpu.ErrNoDriver)
			none++
			continue
		}
		require.Equal(t, name, got)
		found++
	}
}

func TestFindLibraryOnTheLoadersOwnPath(t *testing.T) {
	own := driverRoot(t, map[string]string{"/libnvidia-ml.so.1": "-> libnvidia-ml.so.570", "/libnvidia-ml.so.570": ours()})
	driver := driverRoot(t, map[string]string{"/usr/lib/libnvidia-ml.so.1": ours()})
	t.Setenv("LD_LIBRARY_PATH", "relative:/nowhere:"+own)
	empty := t.TempDir()
	got, err := findAnywhere("", empty)
	require.NoError(t, err)
	require.Equal(t, own+"/libnvidia-ml.so.570", got)
	_, err = FindLibrary("", empty)
	require.ErrorIs(t, err, gpu.ErrNoDriver, "who asks what is below a root is not told of another place")
	got, err = findAnywhere("", driver)
	require.NoError(t, err)
	require.Equal(t, driver+"/usr/lib/libnvidia-ml.so.1", got, "the driver root comes first")
}

func TestMappings(t *testing.T) {
	name, ok := parseMapping("7f0c-7f0d r-xp 00001000 00:1f 4711    /run/nvidia/driver root/usr/lib/libnvidia-ml.so.580.95.05 (deleted)")
	require.True(t, ok)
	require.Equal(t, "/run/nvidia/driver root/usr/lib/libnvidia-ml.so.580.95.05 (deleted)", name)
	for _, other := range []string{
		"", "7f0c-7f0d rw-p 00000000 00:00 0", "7f0c-7f0d rw-p 00000000 00:00 0   [heap]",
		"7f0c-7f0d r-xp 00001000 00:1f 4711    /usr/lib/libc.so.6", "7f0c-7f0d r-xp 00001000 00:1f 4711    /libnvidia-ml.so.1/libc.so.6",
	} {
		_, ok := parseMapping(other)
		require.False(t, ok, other)
	}
}

func TestInformation(t *testing.T) {
	d := parseInformation(`Model: 		 NVIDIA A100-SXM4-80GB
IRQ:   		 204
GPU UUID: 	 GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab
Bus Location: 	 0000:07:00.0
Device Minor: 	 3
GPU Excluded:	 No
`)
	require.Equal(t, gpu.Device{Product: "NVIDIA A100-SXM4-80GB", UUID: "GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab", Minor: 3, NUMANode: -1}, d)
	require.Equal(t, -1, parseInformation("Device Minor: -4").Minor)
}

func FuzzParseInformation(f *testing.F) {
	f.Add("Model: T4\nGPU UUID: GPU-3a5b0c1d-9e8f-4a6b-8c7d-0123456789ab\nDevice Minor: 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		d := parseInformation(text)
		if d.UUID != "" {
			if _, err := gpu.ParseUUID(string(d.UUID)); err != nil {
				t.Error(err)
			}
		}
		if d.Minor < -1 {
			t.Errorf("minor %d", d.Minor)
		}
	})
}

func FuzzParseMapping(f *testing.F) {
	f.Add("7f0c-7f0d r-xp 00001000 00:1f 4711    /usr/lib/libnvidia-ml.so.580.95.05 (deleted)")
	f.Fuzz(func(t *testing.T, line string) {
		if name, ok := parseMapping(line); ok && !strings.HasPrefix(name, "/") {
			t.Errorf("%q is not a path", name)
		}
	})
}
