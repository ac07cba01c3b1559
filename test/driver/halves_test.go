package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build"
	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// inHalves returns the sources of a stub nvidia.ko in two halves, laid out as NVIDIA's: one half is
// compiled for a kernel, the other is an object file.
func inHalves(t testing.TB, stubs string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, name := range []string{"nvidia.c", "stub.h", "nvidia-uvm.c", "nvidia-modeset.c"} {
		text, err := os.ReadFile(filepath.Join(stubs, name))
		require.NoError(t, err)
		write(name, string(text))
	}
	edit(t, filepath.Join(dir, "nvidia.c"), "static int __init stub_init(void)", "int simulated_core(int x);\n\nstatic int __init stub_init(void)")
	edit(t, filepath.Join(dir, "nvidia.c"), "if (simulated_init_error)", "pr_info(\"NVRM: SIMULATED core %d\\n\", simulated_core(1));\n\tif (simulated_init_error)")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nvidia"), 0o755))
	require.NoError(t, os.Rename(filepath.Join(dir, "nvidia.c"), filepath.Join(dir, "nvidia/nv.c")))
	write("Kbuild", `obj-m += nvidia.o nvidia-uvm.o nvidia-modeset.o
nvidia-y := nvidia/nv.o nvidia/nv-kernel.o
ccflags-y += -DDRIVER_VERSION='"$(DRIVER_VERSION)"' -I$(src)
quiet_cmd_symlink = SYMLINK $@
cmd_symlink = ln -sf $< $@
targets += nvidia/nv-kernel.o
$(obj)/nvidia/nv-kernel.o: $(src)/nvidia/nv-kernel.o_binary FORCE
	$(call if_changed,symlink)
`)
	core := filepath.Join(t.TempDir(), "core.c")
	require.NoError(t, os.WriteFile(core, []byte("int simulated_core(int x);\n"+
		"static __attribute__((noinline)) int add(int x) { return x + 41; }\nint simulated_core(int x) { return add(x); }\n"), 0o644))
	out, err := exec.CommandContext(t.Context(), "gcc", "-c", "-O2", "-ffreestanding", "-mcmodel=kernel", "-fno-pic", "-mno-red-zone",
		"-mno-sse", "-fno-asynchronous-unwind-tables", "-o", filepath.Join(dir, "nvidia/nv-kernel.o_binary"), core).CombinedOutput()
	require.NoError(t, err, "%s", out)
	// Like NVIDIA's, it does not name its source.
	out, err = exec.CommandContext(t.Context(), "objcopy", "--strip-symbol=core.c", filepath.Join(dir, "nvidia/nv-kernel.o_binary")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// TestHalvesAreLinkedAsKbuildDoes checks that a module linked from its two halves equals, byte for
// byte, the one that Kbuild links, and that the kernel loads it.
func TestHalvesAreLinkedAsKbuildDoes(t *testing.T) {
	for _, series := range vm.AllSeries {
		t.Run(string(series), func(t *testing.T) {
			t.Parallel()
			k := vm.FetchKernel(t, series)
			r := request(t, k)
			r.Source = inHalves(t, r.Source)
			r.Modules = append(r.Modules, "nvidia-modeset")
			whole, err := build.Compile(t.Context(), r)
			require.NoError(t, err)
			halves, err := build.CompileHalves(t.Context(), r)
			require.NoError(t, err)
			l := link.Request{Halves: halves, Common: r.Source, Release: k.Release, Version: version, Work: t.TempDir()}
			linked, err := link.Link(t.Context(), l)
			require.NoError(t, err)
			modules := read(t, linked)
			require.Equal(t, read(t, whole), modules)
			// Signed where the key is, then linked elsewhere, they have valid signatures.
			key := snakeoilKey(t)
			require.NoError(t, build.SignHalves(t.Context(), l, key))
			signed, err := link.Link(t.Context(), l)
			require.NoError(t, err)
			require.NoError(t, key.SignAll(whole))
			require.Equal(t, read(t, whole), read(t, signed))
			require.NoError(t, os.RemoveAll(signed))
			require.NoError(t, os.RemoveAll(linked))
			empty(t, l.Work)

			n := boot(t, vm.Config{Kernel: k, Files: vm.Merge(k.ModuleTree(t, []string{"ecc"}, nil), image("/driver", k.Release, modules))})
			n.loads()
			require.Contains(t, n.MustRun(t.Context(), "dmesg"), "NVRM: SIMULATED core 42")
			n.unloads()

			other := l
			other.Release = "6.1.0-1"
			_, err = link.Link(t.Context(), other)
			require.ErrorContains(t, err, "is of kernel "+k.Release+", not of 6.1.0-1")
			other = l
			other.Common = t.TempDir()
			_, err = link.Link(t.Context(), other)
			require.ErrorContains(t, err, "nv-kernel.o_binary: no such file or directory")
			require.NoError(t, os.Mkdir(filepath.Join(other.Common, "nvidia"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(other.Common, "nvidia/nv-kernel.o_binary"), nil, 0o644))
			_, err = link.Link(t.Context(), other)
			require.ErrorContains(t, err, "is of another driver than")
			empty(t, l.Work)
		})
	}
}
