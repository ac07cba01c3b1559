package cudatest

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/built"
)

// linker is one cuLink… state, and its error log.
type linker struct {
	d       *device
	state   uintptr
	log     []byte
	options []int32
	values  []uintptr
	pin     runtime.Pinner

	addData  func(uintptr, int32, *byte, uint64, string, uint32, uintptr, uintptr) int32
	complete func(uintptr, **byte, *uint64) int32
	destroy  func(uintptr) int32
}

func newLinker(d *device, maxRegisters uintptr) *linker {
	d.t.Helper()
	l := &linker{
		d: d, log: make([]byte, 1024),
		addData:  bind[func(uintptr, int32, *byte, uint64, string, uint32, uintptr, uintptr) int32](d.lib, "cuLinkAddData_v2"),
		complete: bind[func(uintptr, **byte, *uint64) int32](d.lib, "cuLinkComplete"),
		destroy:  bind[func(uintptr) int32](d.lib, "cuLinkDestroy"),
	}
	l.options = []int32{5, 6, 0} // error log, its size, most registers
	l.values = []uintptr{uintptr(unsafe.Pointer(&l.log[0])), uintptr(len(l.log)), maxRegisters}
	l.pin.Pin(&l.log[0])
	l.pin.Pin(&l.options[0])
	l.pin.Pin(&l.values[0])
	d.t.Cleanup(l.pin.Unpin)
	n := uint32(2)
	if maxRegisters > 0 {
		n++
	}
	create := bind[func(uint32, *int32, *uintptr, *uintptr) int32](d.lib, "cuLinkCreate_v2")
	require.Zero(d.t, create(n, &l.options[0], &l.values[0], &l.state))
	return l
}

func (l *linker) add(ptx string) error {
	image := append([]byte(ptx), 0)
	return check(l.addData(l.state, 1, &image[0], uint64(len(image)), "input", 0, 0, 0))
}

// errors is the error log of the last call.
func (l *linker) errors() string {
	text, _, _ := bytes.Cut(l.log, []byte{0})
	return string(text)
}

// link completes the image and loads it; it is no longer needed then.
func (l *linker) link() (module uintptr, err error) {
	var image *byte
	var size uint64
	if err := check(l.complete(l.state, &image, &size)); err != nil {
		return 0, err
	}
	require.Equal(l.d.t, byte(0), unsafe.Slice(image, size)[size-1])
	err = check(l.d.cuModuleLoadDataEx(&module, image, 0, nil, nil))
	require.Zero(l.d.t, l.destroy(l.state))
	return module, err
}

const caller = header + `
.extern .func (.param .b32 r) outside(.param .b32 x);
.common .global .align 4 .u32 shared_name = 1;
.func (.reg .u32 r) own(.reg .u32 x) { add.u32 r, x, 100; ret; }
.weak .func (.reg .u32 r) either(.reg .u32 x) { add.u32 r, x, 1000; ret; }
.visible .entry k(.param .u64 out)
{
	.reg .b64 %rd<3>; .reg .b32 %r<5>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, 1;
	{
		.param .b32 x; .param .b32 r;
		st.param.b32 [x], %r1;
		call (r), outside, (x);
		ld.param.b32 %r2, [r];
	}
	call (%r3), own, (%r2);
	call (%r4), either, (%r3);
	st.global.u32 [%rd1], %r4;
	ret;
}
`

const callee = header + `
.common .global .align 4 .u32 shared_name = 2;
.func (.reg .u32 r) own(.reg .u32 x) { add.u32 r, x, 10; ret; }
.weak .func (.reg .u32 r) either(.reg .u32 x) { mov.u32 r, 0; ret; }
.visible .func (.param .b32 r) outside(.param .b32 x)
{
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [x];
	call (%r2), own, (%r1);
	st.param.b32 [r], %r2;
	ret;
}
`

func TestLinkedTextsCallEachOther(t *testing.T) {
	d := open(t, "h100-sxm")
	l := newLinker(d, 0)
	require.NoError(t, l.add(caller), l.errors())
	require.NoError(t, l.add(callee), l.errors())
	module, err := l.link()
	require.NoError(t, err, l.errors())
	f, err := d.kernel(module, "k")
	require.NoError(t, err)
	out := put(d, []uint32{0})
	require.NoError(t, d.launch(f, shape{gx: 1, bx: 1}, out))
	// Each text has an own() of its own; of either() the first counts.
	require.Equal(t, []uint32{1 + 10 + 100 + 1000}, get[uint32](d, out, 1))
	require.Equal(t, invalidHandle, check(l.destroy(l.state)))
}

func TestLinkerErrorNamesTheCause(t *testing.T) {
	d := open(t, "h100-sxm")
	l := newLinker(d, 0)
	require.Equal(t, invalidPTX, l.add(strings.Replace(caller, "ld.param.u64", "ld.parm.u64", 1)))
	require.Contains(t, l.errors(), "line 12; error   : Unknown modifier for instruction 'ld.parm.u64'")
	require.Equal(t, noBinary, l.add("\x7fELF…"), "a cubin holds machine code")
	require.NoError(t, l.add(caller))
	_, err := l.link()
	require.Equal(t, invalidPTX, err)
	require.Contains(t, l.errors(), "Unresolved extern function 'outside'")
	require.Zero(t, l.destroy(l.state))
}

func TestTheLinkersLimitOfRegistersHolds(t *testing.T) {
	d := open(t, "h100-sxm")
	attribute := bind[func(*int32, int32, uintptr) int32](d.lib, "cuFuncGetAttribute")
	ptx := compilers(t)["clang-16"]
	for limit, want := range map[uintptr]int32{0: 31, 20: 20} {
		l := newLinker(d, limit)
		require.NoError(t, l.add(ptx), l.errors())
		module, err := l.link()
		require.NoError(t, err)
		f, err := d.kernel(module, "gemm")
		require.NoError(t, err)
		var n int32
		require.Zero(t, attribute(&n, 4, f))
		if limit > 0 {
			require.Equal(t, want, n)
		} else {
			require.GreaterOrEqual(t, n, want)
		}
	}
}

// Numba takes any name with _v2 for the same function, with the same arguments.
func TestCallsOfOlderClientsFindTheCurrentContext(t *testing.T) {
	d := open(t, "t4")
	which := bind[func(*int32, uintptr) int32](d.lib, "cuCtxGetDevice_v2")
	wait := bind[func(uintptr) int32](d.lib, "cuCtxSynchronize_v2")
	ordinal := int32(-1)
	require.Zero(t, which(&ordinal, 0x1234))
	require.Zero(t, ordinal)
	require.Zero(t, which(&ordinal, d.context))
	require.Zero(t, wait(0x1234))
	require.Zero(t, wait(d.context))
}

func TestMemoryIsFreedWhicheverContextIsCurrent(t *testing.T) {
	d := open(t, "t4")
	p := *put(d, []uint32{1})
	require.Zero(t, d.cuCtxSetCurrent(0))
	require.Equal(t, invalidContext, check(d.cuMemAlloc(new(uint64), 4)))
	require.Zero(t, d.cuMemFree(p))
	require.Equal(t, invalidValue, check(d.cuMemFree(p)))
	require.Zero(t, d.cuCtxSetCurrent(d.context))
}

func TestLogNamesUnsupportedCalls(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm")
	l := load(t, root)
	require.Zero(t, l.cuInit(0))
	d := l.newContext(t, 0)
	require.Empty(t, built.Gpusim(t, "log", "--root", root))
	_, _, err := d.compile(entry("\n\tgriddepcontrol.wait;"))
	require.Equal(t, notSupported, err)
	_, _, err = d.compile(entry("\n\tadd.u31 %r1, %r1, %r1;"))
	require.Equal(t, invalidPTX, err)
	d = l.newContext(t, 0)
	f := d.mustKernel(entry("\n\tst.global.u32 [%rd0+4096], %r1;"), "k")
	require.Equal(t, illegalAddress, d.launch(f, shape{gx: 1, bx: 1}, put(d, []uint32{1})))
	log := strings.Split(strings.TrimSpace(built.Gpusim(t, "log", "--root", root)), "\n")
	require.Len(t, log, 3)
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ cudatest.test\[\d+\] GPU-[0-9a-f-]+: CUDA_ERROR_NOT_SUPPORTED: .*, line \d+; error   : the simulator does not execute 'griddepcontrol.wait'$`, log[0])
	require.Regexp(t, `: CUDA_ERROR_INVALID_PTX: .*'add.u31'$`, log[1])
	require.Regexp(t, `: CUDA_ERROR_ILLEGAL_ADDRESS: line \d+, .* store of 4 bytes at global address 0x[0-9a-f]+ by lane 0 is out of bounds, in k$`, log[2])
}
