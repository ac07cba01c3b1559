package driver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/cache"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/driver/build/output"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// request returns a request to compile the stub modules for a kernel.
func request(t testing.TB, k *vm.Kernel) build.Request {
	t.Helper()
	h, err := build.FindHeaders(k.Root(), k.Release)
	require.NoError(t, err)
	return build.Request{
		Source: filepath.Join(built.Root(), "simulator/kernel"), Headers: h, Release: k.Release,
		Modules: []string{"nvidia", "nvidia-uvm"}, Version: version, Kind: "open",
		Variables: map[string]string{"DRIVER_VERSION": version},
		Work:      t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// edited returns a copy of a folder with a change in one file, and the line of the change.
func edited(t testing.TB, dir, file, from, to string) (string, int) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.CopyFS(at, os.DirFS(dir)))
	return at, edit(t, filepath.Join(at, file), from, to)
}

// edit changes a text in a file and returns the line of the change.
func edit(t testing.TB, path, from, to string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	before, after, found := strings.Cut(string(text), from)
	require.True(t, found, from)
	require.NoError(t, os.WriteFile(path, []byte(before+to+after), 0o644))
	return 1 + strings.Count(before, "\n")
}

// read returns the files of a folder by name.
func read(t testing.TB, dir string) vm.Modules {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	m := vm.Modules{}
	for _, e := range entries {
		m[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
	}
	return m
}

// empty requires that a build has left nothing behind.
func empty(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestModulesAreCompiled(t *testing.T) {
	for _, series := range vm.AllSeries {
		t.Run(string(series), func(t *testing.T) {
			t.Parallel()
			k := vm.FetchKernel(t, series)
			var all []vm.Modules
			var digests []string
			for range 2 {
				r := request(t, k)
				dir, err := build.Compile(t.Context(), r)
				require.NoError(t, err)
				all = append(all, read(t, dir))
				require.NoError(t, os.RemoveAll(dir))
				empty(t, r.Work)
				d, err := build.Digest(t.Context(), r)
				require.NoError(t, err)
				digests = append(digests, d)
			}
			require.Len(t, all[0], 2, "those that were wanted")
			require.Equal(t, all[0], all[1], "the same bytes, in another folder")
			require.Equal(t, digests[0], digests[1])
			other := request(t, k)
			other.Version = "590.10"
			d, err := build.Digest(t.Context(), other)
			require.NoError(t, err)
			require.NotEqual(t, digests[0], d)
		})
	}
}

func TestCompilerErrorsAreNamed(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	refuse := func(t *testing.T, r build.Request) *output.Failure {
		t.Helper()
		_, err := build.Compile(t.Context(), r)
		e, ok := errors.AsType[*kernel.Error](err)
		require.True(t, ok, "%v", err)
		t.Log(e)
		require.Equal(t, build.ReasonBuildFailed, e.Reason)
		empty(t, r.Work)
		f, ok := errors.AsType[*output.Failure](err)
		if !ok {
			f = &output.Failure{Message: e.Message}
		}
		return f
	}
	for name, c := range map[string]struct {
		file, from, to string
		want           output.Failure
	}{
		"Syntax": {"nvidia.c", "static int stub_open(", "static int stub_open((",
			output.Failure{File: "nvidia.c", Message: "expected declaration specifiers or '...' before '(' token"}},
		"FunctionThatIsGone": {"nvidia-uvm.c", "major = register_chrdev(", "major = register_chardev(",
			output.Failure{File: "nvidia-uvm.c", Hint: "this driver version does not know this kernel"}},
		"ArgumentThatWasAdded": {"nvidia-uvm.c", "register_chrdev(0, ", "register_chrdev(",
			output.Failure{File: "nvidia-uvm.c", Hint: "this driver version does not know this kernel"}},
		"MemberThatIsGone": {"nvidia.c", ".open = ", ".opened = ",
			output.Failure{File: "nvidia.c", Hint: "this driver version does not know this kernel"}},
		"HeaderThatIsGone": {"nvidia.c", "linux/proc_fs.h", "linux/proc_file.h",
			output.Failure{File: "nvidia.c", Hint: "this driver version does not know this kernel"}},
		"HeaderThatIsMade": {"nvidia.c", "linux/proc_fs.h", "generated/proc_fs.h",
			output.Failure{File: "nvidia.c", Hint: "the kernel's headers are incomplete"}},
		"SymbolThatIsNotExported": {"nvidia-uvm.c", "major = register_chrdev(", "extern int f(void);\n\tmajor = f() + register_chrdev(",
			output.Failure{Message: `"f" [nvidia-uvm.ko] undefined!`, Hint: "this driver version does not know this kernel"}},
		"CompilerOfAnotherVersion": {"Kbuild", "ccflags-y +=", "ccflags-y += -fno-such-option",
			output.Failure{Hint: "the compiler is not the one that built the kernel"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, k)
			source, line := edited(t, r.Source, c.file, c.from, c.to)
			r.Source = source
			f := refuse(t, r)
			require.Contains(t, f.Hint, c.want.Hint)
			require.Contains(t, f.Message, c.want.Message)
			if c.want.File != "" {
				require.Equal(t, c.want.File, f.File)
				require.Equal(t, line, f.Line)
			}
		})
	}
	t.Run("FullDisk", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root mounts a small disk")
		}
		for _, size := range []string{"40k", "400k", "600k"} {
			r := request(t, k)
			require.NoError(t, unix.Mount("tmpfs", r.Work, "tmpfs", 0, "size="+size))
			t.Cleanup(func() { require.NoError(t, unix.Unmount(r.Work, unix.MNT_DETACH)) })
			f := refuse(t, r)
			require.Contains(t, f.Error(), "the disk under the work folder is full", size)
		}
	})
	t.Run("IncompleteHeaders", func(t *testing.T) {
		r := request(t, k)
		r.Headers.Output = t.TempDir()
		require.Contains(t, refuse(t, r).Message, "the kernel's headers are incomplete")
	})
	t.Run("HeadersOfAnotherKernel", func(t *testing.T) {
		r := request(t, k)
		r.Release = "6.1.0-1-cloud-amd64"
		require.Contains(t, refuse(t, r).Message, "are of kernel "+k.Release+", not of 6.1.0-1-cloud-amd64")
	})
	t.Run("OtherVersion", func(t *testing.T) {
		r := request(t, k)
		r.Version = "590.10"
		require.Contains(t, refuse(t, r).Message, `nvidia.ko has version "580.95.05", not 590.10`)
	})
	t.Run("NoSuchModule", func(t *testing.T) {
		r := request(t, k)
		r.Modules = append(r.Modules, "nvidia-vgpu-vfio")
		require.ErrorContains(t, refuse(t, r), "nvidia-vgpu-vfio")
	})
	t.Run("TooLong", func(t *testing.T) {
		r := request(t, k)
		r.Timeout = 100 * time.Millisecond
		require.Contains(t, refuse(t, r).Message, "it did not end within 100ms")
	})
}

// TestCompilingIsInterrupted checks that an interrupted build leaves neither a file nor a process.
func TestCompilingIsInterrupted(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	k := vm.FetchKernel(t, vm.Linux61)
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		r := request(t, k)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		begun := time.Now()
		_, err := build.Compile(ctx, r)
		took := time.Since(begun)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, took, after+5*time.Second)
		empty(t, r.Work)
		require.Empty(t, mentioning(t, r.Work), "processes of the build")
	}
}

// mentioning returns the command lines of processes that contain a text.
func mentioning(t testing.TB, text string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []string
	for _, f := range files {
		if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), text) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// TestNVIDIASourcesAreCompiled compiles NVIDIA's own sources if the environment names their folder,
// laid out as in Debian's nvidia-open-kernel-source. The second build runs no test of the kernel, and
// linking its halves gives the modules of the first build.
func TestNVIDIASourcesAreCompiled(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	source := os.Getenv("GPUREADY_NVIDIA_SOURCE")
	if source == "" {
		t.Skip("GPUREADY_NVIDIA_SOURCE names no folder with the sources of NVIDIA's modules")
	}
	k := vm.FetchKernel(t, vm.Linux61)
	r := request(t, k)
	r.Source, r.Version, r.Variables, r.Conftest = source, "", nil, cache.Cache{Dir: t.TempDir()}
	dir, err := build.Compile(t.Context(), r)
	require.NoError(t, err)
	root, err := host.Open(dir)
	require.NoError(t, err)
	m, err := kernel.ReadModule(root, "/nvidia.ko")
	require.NoError(t, errors.Join(err, root.Close()))
	require.True(t, m.IsOpen())
	t.Log(m.Version, m.Vermagic, m.BuildID)

	halves, err := build.CompileHalves(t.Context(), r)
	require.NoError(t, err)
	begun := time.Now()
	linked, err := link.Link(t.Context(), link.Request{Halves: halves, Common: source, Release: k.Release, Version: m.Version, Work: t.TempDir()})
	require.NoError(t, err)
	t.Log("linked in", time.Since(begun))
	for name, data := range read(t, dir) {
		require.True(t, string(data) == string(read(t, linked)[name]), "%s has the same bytes", name)
	}
}
