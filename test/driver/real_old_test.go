package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/vm"
)

// TestRealDriverThatIsTooOld builds drivers for kernels whose pci_resize_resource() has an additional
// argument. The message names the driver to use, and that one is built.
func TestRealDriverThatIsTooOld(t *testing.T) {
	vm.SkipUnlessEnabled(t)
	skipUnlessReal(t)
	old := fetchSource(t, binaries.NVIDIAOpenSources, "nvidia-open-kernel")
	take := fetchSource(t, binaries.NVIDIASources, "nvidia-kernel")
	if supportsResize(t, old) {
		t.Skipf("Debian's open modules are of %s by now, which knows these kernels", old.version)
	}
	require.True(t, supportsResize(t, take), "driver %s", take.version)
	tried := 0
	for _, s := range []binaries.DebianSet{ // what these packages resolve to at present
		{Release: "bookworm", Security: true, Packages: []string{"linux-headers-cloud-amd64"}, Follow: "linux-"},
		{Release: "bookworm", Security: true, Packages: []string{"linux-headers-6.12-cloud-amd64"}, Follow: "linux-"},
		{Release: "bookworm-backports", Packages: []string{"linux-headers-cloud-amd64"}, Follow: "linux-"},
	} {
		root, _ := fetch(t, s)
		release := headersOf(t, root)
		if !hasFourArguments(t, root) {
			t.Logf("%s: pci_resize_resource() has three arguments", release)
			continue
		}
		tried++
		_, printed, err := old.build(t, root, release, "--modules", "nvidia")
		require.Error(t, err)
		t.Log(lastLine(printed))
		require.Contains(t, lastLine(printed), "gpu-driver: BuildFailed: ")
		require.Contains(t, lastLine(printed), "nvidia/nv-pci.c:")
		require.Contains(t, lastLine(printed), "too few arguments to function 'pci_resize_resource'; driver "+old.version+
			" does not know that pci_resize_resource() has a fourth argument since Linux 6.19, 6.12.97 and Debian's 6.1.0-53: take 535.309.01 or a later one of branch 535")
		dir, printed, err := take.build(t, root, release, "--modules", "nvidia")
		require.NoError(t, err, printed)
		t.Log(lastLine(printed))
		require.FileExists(t, filepath.Join(dir, "nvidia.ko"))
	}
	require.NotZero(t, tried, "no kernel has four arguments: where have they gone?")
}

// supportsResize reports whether a driver's sources test for the number of arguments.
func supportsResize(t testing.TB, s source) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.top, s.dir, "conftest.sh"))
	require.NoError(t, err)
	return strings.Contains(string(text), "pci_resize_resource_has_exclude_bars_arg")
}

// hasFourArguments reports whether the function has four arguments in a kernel's headers.
func hasFourArguments(t testing.TB, root string) bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "usr/src/linux-headers-*-common/include/linux/pci.h"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	text, err := os.ReadFile(found[0])
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "int __must_check pci_resize_resource(")
	parameters, _, _ := strings.Cut(rest, ")")
	require.NotEmpty(t, parameters)
	return strings.Count(parameters, ",") == 3
}

// headersOf returns the release of the kernel whose headers are below a root.
func headersOf(t testing.TB, root string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "usr/src/linux-headers-*-cloud-amd64"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return strings.TrimPrefix(filepath.Base(found[0]), "linux-headers-")
}
