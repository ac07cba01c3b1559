package driver

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/driver/build/link"
	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// TestRealModulesAreLinkedAndSigned links NVIDIA's own modules from their halves, on a machine with
// Secure Boot and without headers or a compiler. They were signed where they were built.
func TestRealModulesAreLinkedAndSigned(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	skipUnlessReal(t)
	k := vm.FetchKernel(t, vm.Linux61)
	src := fetchSource(t, binaries.NVIDIASources, "nvidia-kernel")
	whole := src.modules(t, k)

	dir, printed, err := src.build(t, k.Root(), k.Release, "--halves", "--sign-key", snakeoilFile(t), "--sign-certificate", vm.Snakeoil.Certificate)
	require.NoError(t, err, printed)
	t.Log(lastLine(printed))
	halves := filepath.Join(dir, "halves/proprietary")
	require.FileExists(t, filepath.Join(halves, link.FileName))

	// The linked modules equal Kbuild's, with the signature of the kernel's program.
	signed := k.Sign(t, whole, vm.Snakeoil)
	linked, err := link.Link(t.Context(), link.Request{
		Halves: halves, Common: filepath.Join(src.top, src.dir), Release: k.Release, Version: src.version, Work: t.TempDir(),
	})
	require.NoError(t, err)
	requireSame(t, signed, read(t, linked))

	files := vm.Merge(
		k.ModuleTree(t, []string{"ecc"}, nil), linker(t),
		image("/driver", k.Release, nil), image("/unsigned", k.Release, whole),
		vm.Files{"/driver/usr/src/README": {Data: []byte("objects alone")}},
	)
	for _, name := range []string{"nvidia/nv-kernel.o_binary", "nvidia-modeset/nv-modeset-kernel.o_binary"} {
		files[filepath.Join("/driver/usr/src/nvidia-"+src.version, "kernel", name)] = vm.File{Source: filepath.Join(src.top, src.dir, name)}
	}
	below, err := vm.Folder(halves, "/driver/lib/modules/"+k.Release+"/halves/proprietary")
	require.NoError(t, err)
	pci, argument := standin(t, k)
	n := boot(t, vm.Config{
		Kernel: k, SecureBoot: true, Memory: realMemory, Args: []string{argument},
		Files: vm.Merge(files, below, k.Sign(t, pci, vm.Snakeoil).Below("/")),
	})
	ctx := t.Context()
	require.NoError(t, n.LoadModule(ctx, "/gpusim-pci.ko", ""))
	check := n.driver("check", "--image-root", "/unsigned")
	t.Log(check)
	require.Contains(t, check.Stdout, "Secure Boot is on")

	r := n.driver("load", "--image-root", "/unsigned")
	require.Equal(t, 3, r.Code, "%s", r)
	require.Contains(t, r.Stderr, "SignatureRejected: ")
	require.Contains(t, r.Stderr, "it is not signed")
	t.Log(lastLine(r.Stderr))
	// And the kernel itself refuses it.
	require.Error(t, n.LoadModule(ctx, "/unsigned/lib/modules/"+k.Release+"/nvidia.ko", ""))
	require.Empty(t, n.modules())

	require.Contains(t, n.failsToInitialise(), "modules are linked")
	sums := n.MustRun(ctx, "sh", "-c", "cd /var/tmp/gpu-driver/lib/modules/"+k.Release+" && sha256sum *.ko")
	for name, data := range signed {
		require.Contains(t, sums, sum(data)+"  "+name)
	}
	require.Equal(t, len(signed), strings.Count(sums, "\n"))
	n.unloads()
}

// requireSame compares modules, which are too large to be printed.
func requireSame(t testing.TB, want, have vm.Modules) {
	t.Helper()
	require.Len(t, have, len(want))
	for name, data := range want {
		require.True(t, string(data) == string(have[name]), "%s has the same bytes: %s, not %s", name, sum(have[name]), sum(data))
	}
}

// sum returns the SHA-256 of a file's content, in hexadecimal.
func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
