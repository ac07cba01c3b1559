package cudatest

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// PyCUDA sets a kernel's shape and parameters one by one, as before CUDA 4.0.
func TestKernelsAreLaunchedAsBeforeCUDA4(t *testing.T) {
	const n = 300
	d := open(t, "t4")
	block := bind[func(uintptr, int32, int32, int32) int32](d.lib, "cuFuncSetBlockShape")
	shared := bind[func(uintptr, uint32) int32](d.lib, "cuFuncSetSharedSize")
	size := bind[func(uintptr, uint32) int32](d.lib, "cuParamSetSize")
	value := bind[func(uintptr, int32, unsafe.Pointer, uint32) int32](d.lib, "cuParamSetv")
	integer := bind[func(uintptr, int32, uint32) int32](d.lib, "cuParamSeti")
	launch := bind[func(uintptr, int32, int32) int32](d.lib, "cuLaunchGrid")

	f := d.mustKernel(compilers(t)["clang-16"], "vectoradd")
	a, b := make1(n, func(i int) float32 { return float32(i) }), make1(n, func(i int) float32 { return float32(2 * i) })
	p, q, out := put(d, a), put(d, b), put(d, make([]float32, n))
	require.Equal(t, invalidValue, check(launch(f, 3, 1)), "no shape yet")
	require.Zero(t, block(f, 128, 1, 1))
	require.Zero(t, shared(f, 16))
	for i, address := range []*uint64{p, q, out} {
		require.Zero(t, value(f, int32(8*i), unsafe.Pointer(address), 8))
	}
	require.Zero(t, integer(f, 24, n))
	require.Equal(t, invalidValue, check(launch(f, 3, 1)), "fewer bytes than the kernel takes")
	require.Zero(t, size(f, 28))
	require.Zero(t, launch(f, 3, 1))
	require.Equal(t, make1(n, func(i int) float32 { return float32(3 * i) }), get[float32](d, out, n))

	require.Equal(t, invalidValue, check(value(f, 4090, unsafe.Pointer(p), 8)))
	require.Equal(t, invalidValue, check(size(f, 4097)))
	require.Equal(t, invalidValue, check(block(f, 0, 1, 1)))
	require.Equal(t, invalidHandle, check(block(0x1234, 1, 1, 1)))
}

func TestContextsAreAttachedAndDetached(t *testing.T) {
	d := open(t, "t4")
	attach := bind[func(*uintptr, uint32) int32](d.lib, "cuCtxAttach")
	detach := bind[func(uintptr) int32](d.lib, "cuCtxDetach")
	var c, again uintptr
	require.Zero(t, d.cuCtxCreate(&c, 0, 0))
	require.Zero(t, attach(&again, 0))
	require.Equal(t, c, again)
	require.Zero(t, detach(c))
	require.Zero(t, d.cuCtxSynchronize(), "it is used once more")
	require.Zero(t, detach(c))
	require.Equal(t, invalidContext, check(detach(c)))
	require.Zero(t, d.cuCtxSetCurrent(d.context))
}
