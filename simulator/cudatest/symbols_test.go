package cudatest

import (
	"debug/elf"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// exported are the functions and variables of a shared library.
func exported(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	names := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names[s.Name] = true
		}
	}
	return names
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return strings.Fields(string(data))
}

func TestEveryNameOfTheRealDriverIsThere(t *testing.T) {
	ours := exported(t, built.Path(t, "lib/libcuda.so"))
	for _, list := range []string{"testdata/libcuda1-535.txt", "testdata/libcuda-13.txt"} {
		for _, name := range lines(t, list) {
			require.True(t, ours[name], name)
		}
	}
	// And nothing leaks out that another library might bind to.
	for name := range ours {
		require.True(t, strings.HasPrefix(name, "cu") || strings.HasPrefix(name, "gpusim_"), name)
	}
}

// The list is that of Debian's package, where it is at hand (LIBCUDA names the file).
// The cudbg… names are left out: with them a debugger pokes in a real driver.
func TestTheListIsTheRealDrivers(t *testing.T) {
	path := os.Getenv("LIBCUDA")
	if path == "" {
		t.Skip("LIBCUDA does not name a real libcuda.so")
	}
	listed := map[string]bool{}
	for _, list := range []string{"testdata/libcuda1-535.txt", "testdata/libcuda-13.txt"} {
		for _, name := range lines(t, list) {
			listed[name] = true
		}
	}
	for name := range exported(t, path) {
		require.True(t, listed[name] || strings.HasPrefix(name, "cudbg"), name)
	}
}

func TestUnsupportedFunctionsReturnNotSupported(t *testing.T) {
	d := open(t, "t4")
	for _, name := range []string{"cuGraphCreate", "cuArrayCreate_v2", "cuMemPoolCreate", "cuTexObjectCreate", "cuLaunchCooperativeKernel"} {
		require.Equal(t, notSupported, check(bind[func() int32](d.lib, name)()), name)
	}
}

func TestProcAddressFindsTheVariantOfAVersion(t *testing.T) {
	d := open(t, "t4")
	find := bind[func(string, *uintptr, int32, uint64, *int32) int32](d.lib, "cuGetProcAddress_v2")
	symbol := func(name string) uintptr {
		p, err := purego.Dlsym(d.handle, name)
		require.NoError(t, err)
		return p
	}
	for _, c := range []struct {
		name    string
		version int32
		flags   uint64
		want    string
	}{
		{"cuInit", 13000, 0, "cuInit"},
		{"cuMemAlloc", 12000, 0, "cuMemAlloc_v2"},
		{"cuCtxCreate", 11000, 0, "cuCtxCreate_v2"},
		{"cuCtxCreate", 12000, 0, "cuCtxCreate_v3"},
		{"cuCtxCreate", 13000, 0, "cuCtxCreate_v4"},
		{"cuDeviceGetUuid", 11000, 0, "cuDeviceGetUuid"},
		{"cuDeviceGetUuid", 12000, 0, "cuDeviceGetUuid_v2"},
		{"cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"},
		{"cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"},
		{"cuLaunchKernel", 12000, 1, "cuLaunchKernel"},
		{"cuGraphCreate", 12000, 0, "cuGraphCreate"},
	} {
		var got uintptr
		var status int32
		require.Zero(t, find(c.name, &got, c.version, c.flags, &status), c.name)
		require.Equal(t, symbol(c.want), got, c.name)
	}
	var got uintptr
	var status int32
	require.Equal(t, notFound, check(find("cuNothing", &got, 12000, 0, &status)))
	require.EqualValues(t, 1, status)
	require.Equal(t, invalidValue, check(find("printf", &got, 12000, 0, &status)))
}

func TestStreamsAndEventsAreInOrder(t *testing.T) {
	d := open(t, "t4")
	streamCreate := bind[func(*uintptr, uint32) int32](d.lib, "cuStreamCreate")
	streamDestroy := bind[func(uintptr) int32](d.lib, "cuStreamDestroy_v2")
	query := bind[func(uintptr) int32](d.lib, "cuStreamQuery")
	create := bind[func(*uintptr, uint32) int32](d.lib, "cuEventCreate")
	record := bind[func(uintptr, uintptr) int32](d.lib, "cuEventRecord")
	elapsed := bind[func(*float32, uintptr, uintptr) int32](d.lib, "cuEventElapsedTime")
	copyAsync := bind[func(uint64, unsafe.Pointer, uint64, uintptr) int32](d.lib, "cuMemcpyHtoDAsync_v2")
	var stream, start, end, silent uintptr
	require.Zero(t, streamCreate(&stream, 1))
	require.Zero(t, create(&start, 0))
	require.Zero(t, create(&end, 0))
	require.Zero(t, create(&silent, 2))
	var ms float32
	require.Equal(t, invalidHandle, check(elapsed(&ms, start, end)), "not recorded")
	require.Zero(t, record(start, stream))
	values := []uint32{1, 2, 3}
	p := put(d, make([]uint32, 3))
	require.Zero(t, copyAsync(*p, unsafe.Pointer(&values[0]), 12, stream))
	require.Zero(t, record(end, stream))
	require.Zero(t, record(silent, stream))
	require.Zero(t, elapsed(&ms, start, end))
	require.Positive(t, ms)
	require.Equal(t, invalidHandle, check(elapsed(&ms, start, silent)), "without timing")
	require.Equal(t, values, get[uint32](d, p, 3))
	require.Zero(t, query(stream))
	require.Zero(t, streamDestroy(stream))
	require.Equal(t, invalidHandle, check(query(stream)))
	require.Equal(t, invalidHandle, check(copyAsync(*p, unsafe.Pointer(&values[0]), 12, stream)))
}

func TestContextsBelongToThreads(t *testing.T) {
	d := open(t, "t4")
	current := bind[func(*uintptr) int32](d.lib, "cuCtxGetCurrent")
	pop := bind[func(*uintptr) int32](d.lib, "cuCtxPopCurrent_v2")
	push := bind[func(uintptr) int32](d.lib, "cuCtxPushCurrent_v2")
	retain := bind[func(*uintptr, int32) int32](d.lib, "cuDevicePrimaryCtxRetain")
	release := bind[func(int32) int32](d.lib, "cuDevicePrimaryCtxRelease_v2")
	var c, primary, again uintptr
	require.Zero(t, current(&c))
	require.Equal(t, d.context, c)
	require.Zero(t, pop(&c))
	require.Equal(t, invalidContext, check(d.cuMemAlloc(new(uint64), 4)))
	require.Zero(t, retain(&primary, 0))
	require.Zero(t, retain(&again, 0))
	require.Equal(t, primary, again)
	require.NotEqual(t, d.context, primary)
	require.Zero(t, push(primary))
	require.Zero(t, d.cuMemAlloc(new(uint64), 4))
	require.Zero(t, release(0))
	require.NoError(t, check(d.cuCtxSynchronize()), "one still holds it")
	require.Zero(t, release(0))
	require.Equal(t, contextIsGone, check(d.cuCtxSynchronize()))
	require.Zero(t, pop(nil))
	require.Zero(t, push(d.context))
}

func TestLibrariesGiveKernelsToEveryContext(t *testing.T) {
	d := open(t, "t4")
	load := bind[func(*uintptr, *byte, uintptr, uintptr, uint32, uintptr, uintptr, uint32) int32](d.lib, "cuLibraryLoadData")
	kernel := bind[func(*uintptr, uintptr, string) int32](d.lib, "cuLibraryGetKernel")
	unload := bind[func(uintptr) int32](d.lib, "cuLibraryUnload")
	image := append([]byte(compilers(t)["clang-16"]), 0)
	var library, k uintptr
	require.Zero(t, load(&library, &image[0], 0, 0, 0, 0, 0, 0))
	require.Zero(t, kernel(&k, library, "scan"))
	require.Equal(t, notFound, check(kernel(new(uintptr), library, "nothing")))
	kernelTests["scan"](d, k)
	kernelTests["scan"](d.newContext(t, 0), k)
	require.Zero(t, unload(library))
	require.Equal(t, invalidHandle, check(unload(library)))
}

func TestTheNameOfTheFileIsTheDrivers(t *testing.T) {
	f, err := elf.Open(built.Path(t, "lib/libcuda.so"))
	require.NoError(t, err)
	defer f.Close()
	soname, err := f.DynString(elf.DT_SONAME)
	require.NoError(t, err)
	require.Equal(t, []string{"libcuda.so.1"}, soname)
}
