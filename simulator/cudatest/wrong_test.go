package cudatest

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/state"
	"github.com/gpuready/gpuready/test/lab/built"
)

// bad maps places to unexpected values.
func bad[T comparable](want, got []T) map[int]T {
	found := map[int]T{}
	for i := range want {
		if got[i] != want[i] {
			found[i] = got[i]
		}
	}
	return found
}

// fill has each thread write its number + 1 and, behind a barrier, read it again:
// what was read is in the second half.
const fill = `.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 seen)
{
	.reg .b64 %rd<6>; .reg .b32 %r<6>;
	ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [seen];
	mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
	mad.lo.u32 %r1, %r1, %r2, %r3;
	mul.wide.u32 %rd3, %r1, 4;
	add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
	add.u32 %r4, %r1, 1;
	st.global.u32 [%rd1], %r4;
	bar.sync 0;
	ld.global.u32 %r5, [%rd1];
	st.global.u32 [%rd2], %r5;
	ret;
}
`

func TestABitOfTheGPUsMemoryIsStuck(t *testing.T) {
	const n, word, gpu = 4096, 1000, 6 // no other test in this process takes that GPU's addresses
	root := built.DriverRoot(t, "h100-sxm")
	l := load(t, root)
	require.Zero(t, l.cuInit(0))
	for kind, wrong := range map[string]uint32{"stuck-at-0": (word + 1) &^ 8, "stuck-at-1": (word + 1) | 4} {
		t.Run(kind, func(t *testing.T) {
			d := l.newContext(t, gpu)
			memory, seen := put(d, make([]uint32, n)), put(d, make([]uint32, n))
			require.EqualValues(t, state.DeviceBase+gpu*state.DeviceStride, *memory, "the first allocation is at the beginning")
			f := d.mustKernel(fill, "k")
			bit := map[string]string{"stuck-at-0": "3", "stuck-at-1": "2"}[kind]
			want := make1(n, func(i int) uint32 { return uint32(i) + 1 })
			require.NotEqual(t, want[word], wrong)
			fault := func(kind string) {
				built.Gpusim(t, "memfault", "--root", root, "--gpu", strconv.Itoa(gpu), "--kind", kind, "--offset", strconv.Itoa(4*word), "--bit", bit)
			}

			require.NoError(t, d.launch(f, shape{gx: n / 256, bx: 256}, memory, seen))
			require.Empty(t, bad(want, get[uint32](d, seen, n)))
			fault(kind)
			require.Equal(t, map[int]uint32{word: wrong}, bad(want, get[uint32](d, memory, n)), "what was written before")
			require.NoError(t, d.launch(f, shape{gx: n / 256, bx: 256}, memory, seen))
			require.Equal(t, map[int]uint32{word: wrong}, bad(want, get[uint32](d, seen, n)), "what a kernel reads back")
			require.Equal(t, map[int]uint32{word: wrong}, bad(want, get[uint32](d, memory, n)), "what the host reads")
			require.Empty(t, bad(want, get[uint32](d, put(d, want), n)), "other allocations")
			require.Zero(t, d.cuMemsetD32(*memory, 0xf, n))
			require.Equal(t, kind == "stuck-at-1", len(bad(make1(n, func(int) uint32 { return 0xf }), get[uint32](d, memory, n))) == 0)

			fault("none")
			require.NoError(t, d.launch(f, shape{gx: n / 256, bx: 256}, memory, seen))
			require.Empty(t, bad(want, get[uint32](d, seen, n)))
		})
	}
}

func TestAStuckBitIsInWideAccessesAndThoseOfPeersToo(t *testing.T) {
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "2")
	l := load(t, root)
	require.Zero(t, l.cuInit(0))
	owner := l.newContext(t, 1)
	memory := put(owner, make([]uint32, 16))
	d := l.newContext(t, 0)
	require.Zero(t, d.cuCtxEnablePeerAccess(owner.context, 0))
	built.Gpusim(t, "memfault", "--root", root, "--gpu", "1", "--kind", "stuck-at-1", "--offset", "20", "--bit", "9")
	ptx := entry(`	mov.u32 %r1, 0;
	st.global.v4.u32 [%rd0+16], {%r1, %r1, %r1, %r1};
	ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+16];
	st.global.v4.u32 [%rd0+32], {%r1, %r2, %r3, %r4};
	atom.global.add.u32 %r5, [%rd0+20], 1;
	st.global.u32 [%rd0+48], %r5;
	ld.global.u8 %r6, [%rd0+21];
	st.global.u32 [%rd0+52], %r6;
	isspacep.global %p1, %rd0;
	selp.u32 %r1, 1, 0, %p1;
	st.global.u32 [%rd0+56], %r1;`)
	require.NoError(t, d.launch(d.mustKernel(ptx, "k"), shape{gx: 1, bx: 1}, memory))
	require.Equal(t, []uint32{0, 0, 0, 0, 0, 0x201, 0, 0, 0, 0x200, 0, 0, 0x200, 2, 1, 0}, get[uint32](d, memory, 16))
	require.Equal(t, illegalAddress, d.launch(d.mustKernel(entry("\tld.global.u32 %r1, [%rd0+64];"), "k"), shape{gx: 1, bx: 1}, memory))
}

func TestOnlyTheConfiguredGPUComputesWrong(t *testing.T) {
	const n = 1000
	root := built.DriverRoot(t, "h100-sxm", "--gpus", "3")
	built.Gpusim(t, "wrong", "--root", root, "--gpu", "1", "--every", "100")
	l := load(t, root)
	require.Zero(t, l.cuInit(0))
	add := func(t *testing.T, gpu int32) int {
		d := l.newContext(t, gpu)
		a := make1(n, func(i int) float32 { return float32(i) })
		out := put(d, make([]float32, n))
		require.NoError(t, d.launch(d.mustKernel(compilers(t)["clang-14"], "vectoradd"), shape{gx: 4, bx: 256}, put(d, a), put(d, a), out, new(int32(n))))
		return len(bad(make1(n, func(i int) float32 { return float32(2 * i) }), get[float32](d, out, n)))
	}
	multiply := func(t *testing.T, gpu int32) int {
		d := l.newContext(t, gpu)
		ones := func(n int) *uint64 { return put(d, make1(n, func(int) uint16 { return bfloat(1) })) }
		out := put(d, make([]float32, 128))
		require.NoError(t, d.launch(d.mustKernel(mmaKernel(16), "k"), shape{gx: 1, bx: 32}, ones(256), ones(128), put(d, make([]float32, 128)), out))
		return len(bad(make1(128, func(int) float32 { return 16 }), get[float32](d, out, 128)))
	}
	for gpu := range int32(3) {
		t.Run(strconv.Itoa(int(gpu)), func(t *testing.T) {
			wrong := add(t, gpu)
			if gpu != 1 {
				require.Zero(t, wrong)
				require.Zero(t, multiply(t, gpu))
				return
			}
			require.Equal(t, n/100, wrong)
			found := 0
			for range 4 { // each has 32 results
				found += multiply(t, gpu)
			}
			require.Equal(t, 1, found)
		})
	}
	built.Gpusim(t, "wrong", "--root", root, "--gpu", "1", "--every", "0")
	require.Zero(t, add(t, 1))
}
