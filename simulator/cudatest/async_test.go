package cudatest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each thread copies 16 bytes to shared memory, the last 8 threads only 4 of them, and reads them back.
const asyncCopy = `.version 7.0
.target sm_80
.address_size 64
.shared .align 16 .b8 s[512];
.visible .entry k(.param .u64 in, .param .u64 out)
{
	.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %l<5>;
	ld.param.u64 %l1, [in]; ld.param.u64 %l2, [out];
	mov.u32 %r1, %tid.x;
	shl.b32 %r2, %r1, 4;
	cvt.u64.u32 %l3, %r2;
	add.u64 %l1, %l1, %l3; add.u64 %l2, %l2, %l3;
	mov.u32 %r3, s;
	add.u32 %r3, %r3, %r2;
	setp.lt.u32 %p, %r1, 24;
	selp.u32 %r4, 16, 4, %p;
	cp.async.cg.shared.global [%r3], [%l1+16], 16, %r4;
	cp.async.commit_group;
	cp.async.wait_group 0;
	bar.sync 0;
	ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r3];
	st.global.v4.u32 [%l2], {%r5, %r6, %r7, %r8};
	ret;
}
`

func TestAsynchronousCopiesFillWithZeros(t *testing.T) {
	d := open(t, "h100-sxm")
	f := d.mustKernel(asyncCopy, "k")
	in := make1(4*33, func(i int) uint32 { return uint32(i) + 1000 })
	out := put(d, make([]uint32, 4*32))
	require.NoError(t, d.launch(f, shape{gx: 1, bx: 32}, put(d, in), out))
	require.Equal(t, make1(4*32, func(i int) uint32 {
		if i/4 >= 24 && i%4 > 0 {
			return 0
		}
		return in[i+4]
	}), get[uint32](d, out, 4*32))
	require.Equal(t, illegalAddress, d.launch(f, shape{gx: 1, bx: 32}, put(d, in[:64]), out), "what is read must be there")
}

const matrices = `.version 7.0
.target sm_80
.address_size 64
.shared .align 16 .b16 s[256];
.visible .entry k(.param .u64 out)
{
	.reg .b32 %r<9>; .reg .b16 %h; .reg .b64 %l<3>; .reg .pred %p;
	ld.param.u64 %l1, [out];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %r1;
LOOP: // element i of shared memory is i
	shl.b32 %r3, %r2, 1;
	mov.u32 %r4, s;
	add.u32 %r3, %r3, %r4;
	cvt.u16.u32 %h, %r2;
	st.shared.u16 [%r3], %h;
	add.u32 %r2, %r2, 32;
	setp.lt.u32 %p, %r2, 256;
	@%p bra LOOP;
	bar.sync 0;
	shl.b32 %r3, %r1, 4; // row %tid.x of the four matrices
	add.u32 %r3, %r3, %r4;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r3];
	mul.wide.u32 %l2, %r1, 24;
	add.u64 %l1, %l1, %l2;
	st.global.u32 [%l1], %r5; st.global.u32 [%l1+4], %r6; st.global.u32 [%l1+8], %r7; st.global.u32 [%l1+12], %r8;
	ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r5, %r6}, [%r3];
	st.global.u32 [%l1+16], %r5; st.global.u32 [%l1+20], %r6;
	ret;
}
`

func TestMatricesAreLoadedAsFragments(t *testing.T) {
	d := open(t, "h100-sxm")
	out := put(d, make([]uint32, 6*32))
	require.NoError(t, d.launch(d.mustKernel(matrices, "k"), shape{gx: 1, bx: 32}, out))
	element := func(matrix, row, column int) uint32 { return uint32(matrix*64 + row*8 + column) }
	require.Equal(t, make1(6*32, func(i int) uint32 {
		lane, m := i/6, i%6
		r, c := lane/4, lane%4*2
		if m < 4 {
			return element(m, r, c) | element(m, r, c+1)<<16
		}
		return element(m-4, c, r) | element(m-4, c+1, r)<<16
	}), get[uint32](d, out, 6*32))
}

// The first predicate is of the lower half, the second one of the upper half.
func TestPairsOfHalvesAreCompared(t *testing.T) {
	d := open(t, "h100-sxm")
	ptx := `.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
	.reg .b32 %r<5>; .reg .b64 %l1; .reg .pred %p<3>;
	ld.param.u64 %l1, [out];
	ld.global.u32 %r1, [%l1]; ld.global.u32 %r2, [%l1+4];
	setp.lt.f16x2 %p1|%p2, %r1, %r2;
	selp.u32 %r3, 1, 0, %p1;
	@%p2 add.u32 %r3, %r3, 2;
	st.global.u32 [%l1], %r3;
	ret;
}
`
	f := d.mustKernel(ptx, "k")
	for want, pair := range [][2]uint32{{0x40004000, 0x3c003c00}, {0x40003c00, 0x3c004000}, {0x3c004000, 0x40003c00}, {0x3c003c00, 0x40004000}} {
		out := put(d, pair[:])
		require.NoError(t, d.launch(f, shape{gx: 1, bx: 1}, out))
		require.EqualValues(t, want, get[uint32](d, out, 1)[0])
	}
}
