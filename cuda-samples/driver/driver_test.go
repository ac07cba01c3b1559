package driver

import (
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// open starts a simulated driver with two GPUs in this process: once it is loaded
// from its path, the loader knows it by its soname.
func open(t *testing.T) (first, second *Device) {
	t.Helper()
	libs, err := filepath.Glob(filepath.Join(built.DriverRoot(t, "h100-sxm", "--gpus", "2"), "usr/lib/*/libcuda.so.1"))
	require.NoError(t, err)
	require.Len(t, libs, 1)
	_, err = purego.Dlopen(libs[0], purego.RTLD_NOW|purego.RTLD_GLOBAL)
	require.NoError(t, err)
	d, err := Open()
	require.NoError(t, err)
	require.True(t, d.Simulated())
	all, err := d.Devices()
	require.NoError(t, err)
	require.Len(t, all, 2)
	return all[0], all[1]
}

// A process has one instance of the driver's library, so this is one test.
func TestDriver(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	one, two := open(t)
	devices(t, one, two)
	// Without t.Run, which would use another thread.
	for _, d := range []*Device{two, one} {
		release, err := d.Use()
		require.NoError(t, err)
		defer func() { require.NoError(t, release()) }()
	}
	memory(t, one)
	streams(t, one)
	peers(t, one, two)
	kernels(t, one)
}

func devices(t *testing.T, one, two *Device) {
	found, err := one.driver.Find(strings.ToUpper(two.UUID))
	require.NoError(t, err)
	require.Equal(t, two.PCI, found.PCI)
	require.NotEqual(t, one.PCI, two.PCI)
	require.Equal(t, "9.0", one.Capability())
	for attribute, most := range map[Attribute]int{
		Multiprocessors: 200, ClockRate: 1e7, MemoryClockRate: 1e7, MemoryBusWidth: 1e4, L2CacheSize: 1e9, ThreadsPerMultiprocessor: 2048,
		SharedMemoryPerBlock: 48 << 10,
	} {
		value, err := one.Attribute(attribute)
		require.NoError(t, err)
		require.Positive(t, value)
		require.LessOrEqual(t, value, most)
	}
	total, err := one.TotalMemory()
	require.NoError(t, err)
	require.Greater(t, total, uint64(70<<30))
	_, err = one.Attribute(9999)
	require.EqualError(t, err, "cuDeviceGetAttribute: error 1 (CUDA_ERROR_INVALID_VALUE)")
}

func memory(t *testing.T, d *Device) {
	free, total, err := d.MemoryInfo()
	require.NoError(t, err)
	require.LessOrEqual(t, free, total)
	m, err := d.Alloc(64)
	require.NoError(t, err)
	require.NoError(t, m.SetWords(0, 0x01020304, 16))
	require.NoError(t, m.SetBytes(8, 0xff, 4))
	require.NoError(t, Write(m, 12, []uint16{7, 8}))
	got := make([]uint32, 5)
	require.NoError(t, Read(got, m, 0))
	require.Equal(t, []uint32{0x01020304, 0x01020304, 0xffffffff, 8<<16 | 7, 0x01020304}, got)
	require.EqualError(t, Read(got, m, 48), "20 bytes at offset 48 of memory of 64")
	require.EqualError(t, Write(m, math.MaxUint64, got), "20 bytes at offset 18446744073709551615 of memory of 64")
	require.Error(t, m.SetWords(0, 0, 17))
	require.NoError(t, m.Free())

	_, err = d.Alloc(1 << 50)
	require.ErrorContains(t, err, "cuMemAlloc of 1125899906842624 bytes: error 2 (CUDA_ERROR_OUT_OF_MEMORY); the GPU's memory is taken: nvidia-smi shows by whom")
}

func streams(t *testing.T, d *Device) {
	const n = 1 << 16
	s, err := d.NewStream()
	require.NoError(t, err)
	from, err := d.AllocHost(n)
	require.NoError(t, err)
	to, err := d.AllocHost(n)
	require.NoError(t, err)
	a, err := d.Alloc(n)
	require.NoError(t, err)
	b, err := d.Alloc(n)
	require.NoError(t, err)
	begin, err := d.NewEvent()
	require.NoError(t, err)
	end, err := d.NewEvent()
	require.NoError(t, err)
	for i := range from.Bytes() {
		from.Bytes()[i] = byte(i * 7)
	}
	require.NoError(t, begin.Record(s))
	require.NoError(t, CopyToDeviceAsync(a, from, n, s))
	require.NoError(t, CopyAsync(b, a, n, s))
	require.NoError(t, CopyToHostAsync(to, b, n, s))
	require.NoError(t, end.Record(s))
	require.NoError(t, end.Synchronize())
	require.NoError(t, s.Synchronize())
	require.True(t, slices.Equal(from.Bytes(), to.Bytes()))
	took, err := end.Elapsed(begin)
	require.NoError(t, err)
	require.GreaterOrEqual(t, took.Nanoseconds(), int64(0))
	require.EqualError(t, CopyAsync(b, a, n+1, s), "65537 bytes of memory of 65536")
	for _, c := range []interface{ Close() error }{begin, end, s} {
		require.NoError(t, c.Close())
	}
	for _, f := range []interface{ Free() error }{from, to, a, b} {
		require.NoError(t, f.Free())
	}
}

func peers(t *testing.T, one, two *Device) {
	can, err := one.CanAccess(two)
	require.NoError(t, err)
	require.True(t, can)
	require.NoError(t, one.MakeCurrent())
	require.NoError(t, one.EnableAccess(two))
	require.NoError(t, one.EnableAccess(two), "again is no error")
	from, err := one.Alloc(16)
	require.NoError(t, err)
	require.NoError(t, Write(from, 0, []float32{1, 2, 3, 4}))
	require.NoError(t, two.MakeCurrent())
	to, err := two.Alloc(16)
	require.NoError(t, err)
	require.NoError(t, one.MakeCurrent())
	require.NoError(t, CopyPeerAsync(to, from, 16, nil))
	require.NoError(t, one.Synchronize())
	got := make([]float32, 4)
	require.NoError(t, Read(got, to, 0))
	require.Equal(t, []float32{1, 2, 3, 4}, got)
	require.NoError(t, to.Free())
	require.NoError(t, from.Free())
}

const kernel = `.version 4.0
.target sm_50
.address_size 64
.extern .shared .align 4 .b8 room[];
.visible .entry k(.param .u64 out, .param .u32 a, .param .u64 b, .param .f32 c)
{
	.reg .b32 %r<9>;
	.reg .f32 %f<2>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	ld.param.u32 %r1, [a];
	ld.param.u64 %rd2, [b];
	ld.param.f32 %f1, [c];
	mov.u32 %r2, %nctaid.z;
	mov.u32 %r3, %ntid.y;
	mov.u32 %r4, %dynamic_smem_size;
	st.global.u32 [%rd1], %r1;
	st.global.u64 [%rd1+8], %rd2;
	st.global.f32 [%rd1+16], %f1;
	st.global.u32 [%rd1+20], %r2;
	st.global.u32 [%rd1+24], %r3;
	st.global.u32 [%rd1+28], %r4;
	ret;
}
`

func kernels(t *testing.T, d *Device) {
	m, err := d.LoadModule(kernel)
	require.NoError(t, err)
	k, err := m.Kernel("k")
	require.NoError(t, err)
	out, err := d.Alloc(32)
	require.NoError(t, err)
	shape := Shape{Grid: Dim{Z: 3}, Block: Dim{X: 2, Y: 5}, Shared: 512}
	require.NoError(t, k.Launch(shape, out, int32(-2), uint64(1<<40), float32(1.5)))
	require.NoError(t, d.Synchronize())
	got := make([]uint32, 8)
	require.NoError(t, Read(got, out, 0))
	require.Equal(t, []uint32{0xfffffffe, 0, 0, 1 << 8, math.Float32bits(1.5), 3, 5, 512}, slices.Replace(got, 1, 2, 0))
	require.EqualError(t, k.Launch(shape, "text"), "kernel argument 0 has type string, which is not supported")
	require.NoError(t, out.Free())

	_, err = m.Kernel("other")
	require.EqualError(t, err, "cuModuleGetFunction other: error 500 (CUDA_ERROR_NOT_FOUND)")
	require.NoError(t, m.Close())
	_, err = d.LoadModule(strings.Replace(kernel, "mov.u32", "frobnicate", 1))
	require.ErrorContains(t, err, "cuModuleLoadDataEx: error 218 (CUDA_ERROR_INVALID_PTX): ptxas application ptx input, line")
	require.ErrorContains(t, err, "; the GPU's program (PTX) cannot be compiled: this program or the driver is damaged")
}

func TestErrorsNameTheNextAction(t *testing.T) {
	const missing = "the JIT compiler library (libnvidia-ptxjitcompiler.so.1) is not in this container"
	for _, c := range []struct {
		e    Error
		want string
	}{
		{Error{Call: compileCall, Code: 221, Name: "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"}, "cuModuleLoadDataEx: error 221 (CUDA_ERROR_JIT_COMPILER_NOT_FOUND); " + missing},
		{Error{Call: compileCall, Code: 999, Name: "CUDA_ERROR_UNKNOWN"}, "cuModuleLoadDataEx: error 999 (CUDA_ERROR_UNKNOWN); " + missing},
		{Error{Call: "cuInit", Code: 999, Name: "CUDA_ERROR_UNKNOWN"}, "cuInit: error 999 (CUDA_ERROR_UNKNOWN); may this process open /dev/nvidia-uvm"},
		{Error{Call: "cuInit", Code: 304, Refused: []string{"/dev/nvidiactl"}}, "cuInit: error 304: no permission to open /dev/nvidiactl; mounting /dev/nvidia* alone is not enough"},
		{Error{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}, "cuCtxSynchronize: error 700 (CUDA_ERROR_ILLEGAL_ADDRESS); the GPU computed wrongly"},
		{Error{Call: "cuInit", Code: 34, Name: "CUDA_ERROR_STUB_LIBRARY"}, "cuInit: error 34 (CUDA_ERROR_STUB_LIBRARY); this libcuda is the toolkit's stub"},
		{Error{Call: "cuDevicePrimaryCtxRetain", Code: 807}, "cuDevicePrimaryCtxRetain: error 807; the MPS daemon does not serve this process"},
		{Error{Call: "cuX", Code: 12345}, "cuX: error 12345"},
	} {
		require.True(t, strings.HasPrefix(c.e.Error(), c.want), c.e.Error())
	}
}
