package cudatest

import (
	mathbits "math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each body leaves its result in %r8 of every thread; one block of 64 threads.
// Lane and thread number are in %r0 and %r7.
func TestThreadsActTogether(t *testing.T) {
	d := open(t, "h100-sxm")
	popcount := func(v uint32) uint32 { return uint32(mathbits.OnesCount32(v)) }
	for name, c := range map[string]struct {
		body string
		want func(thread uint32) uint32
	}{
		"ballot": {"and.b32 %r1, %r0, 1;\n setp.eq.u32 %p1, %r1, 1;\n vote.sync.ballot.b32 %r8, %p1, -1;",
			func(uint32) uint32 { return 0xaaaaaaaa }},
		"ballot of those who are there": {"mov.u32 %r8, 0;\n setp.lt.u32 %p1, %r0, 5;\n setp.ne.u32 %p2, %r0, 2;\n @!%p1 bra E;\n vote.sync.ballot.b32 %r8, %p2, 31;\n E:",
			func(i uint32) uint32 { return map[bool]uint32{true: 0b11011}[i%32 < 5] }},
		"all, any and uni": {"setp.lt.u32 %p1, %r0, 32;\n setp.eq.u32 %p2, %r0, 7;\n vote.sync.all.pred %p3, %p1, -1;\n vote.sync.any.pred %p4, %p2, -1;\n vote.sync.uni.pred %p5, %p2, -1;\n selp.u32 %r8, 1, 0, %p3;\n @%p4 add.u32 %r8, %r8, 2;\n @%p5 add.u32 %r8, %r8, 4;",
			func(uint32) uint32 { return 3 }},
		"who is active": {"mov.u32 %r8, 9;\n setp.ge.u32 %p1, %r0, 30;\n @%p1 activemask.b32 %r8;",
			func(i uint32) uint32 { return map[bool]uint32{true: 0xc0000000, false: 9}[i%32 >= 30] }},
		"shuffle down": {"shfl.sync.down.b32 %r8|%p1, %r0, 4, 31, -1;\n @!%p1 add.u32 %r8, %r8, 100;",
			func(i uint32) uint32 { l := i % 32; return map[bool]uint32{true: l + 4, false: l + 100}[l < 28] }},
		"butterfly":            {"shfl.sync.bfly.b32 %r8, %r7, 5, 31, -1;", func(i uint32) uint32 { return i ^ 5 }},
		"shuffle within eight": {"shfl.sync.idx.b32 %r8, %r0, 2, 0x1807, -1;", func(i uint32) uint32 { return i%32/8*8 + 2 }},
		"a mask that waits for a branch": {"mov.u32 %r8, %r0;\n setp.lt.u32 %p1, %r0, 16;\n @%p1 bra A;\n add.u32 %r8, %r8, 1000;\n A:\n shfl.sync.bfly.b32 %r8, %r8, 16, 31, -1;",
			func(i uint32) uint32 { l := i % 32; return map[bool]uint32{true: l + 1016, false: l - 16}[l < 16] }},
		"match any": {"shr.u32 %r1, %r0, 3;\n match.any.sync.b32 %r8, %r1, -1;", func(i uint32) uint32 { return 0xff << (i % 32 / 8 * 8) }},
		"match all": {"mov.u64 %rd1, 5;\n match.all.sync.b64 %r8|%p1, %rd1, -1;\n @!%p1 mov.u32 %r8, 1;", func(uint32) uint32 { return 0xffffffff }},
		"sum":       {"redux.sync.add.u32 %r8, %r0, -1;", func(uint32) uint32 { return 31 * 16 }},
		"least":     {"sub.u32 %r1, 3, %r0;\n redux.sync.min.s32 %r8, %r1, -1;", func(uint32) uint32 { return 0xffffffe4 }},
		"bar.red": {"and.b32 %r1, %r7, 3;\n setp.eq.u32 %p1, %r1, 0;\n bar.red.popc.u32 %r8, 0, %p1;\n bar.red.or.pred %p2, 0, %p1;\n bar.red.and.pred %p3, 0, %p1;\n @%p2 add.u32 %r8, %r8, 100;\n @%p3 add.u32 %r8, %r8, 1000;",
			func(uint32) uint32 { return 116 }},
		"a barrier for some": {"setp.ge.u32 %p1, %r7, 32;\n @%p1 bra B;\n mov.u32 %r8, 1;\n bar.sync 1, 32;\n bra E;\n B: mov.u32 %r8, 2;\n E:",
			func(i uint32) uint32 { return 1 + i/32 }},
		"those who left are not waited for": {"mov.u32 %r8, 4;\n setp.ge.u32 %p1, %r7, 40;\n mul.wide.u32 %rd1, %r7, 4;\n add.u64 %rd1, %rd0, %rd1;\n @%p1 st.global.u32 [%rd1], 4;\n @%p1 exit;\n bar.sync 0;",
			func(uint32) uint32 { return 4 }},
		"a warp's own barrier": {"mov.u32 %r8, 7;\n bar.warp.sync -1;", func(uint32) uint32 { return 7 }},
		"a function by its address": {"mov.u64 %rd1, twice;\n and.b32 %r1, %r0, 1;\n setp.eq.u32 %p1, %r1, 1;\n mov.u64 %rd2, thrice;\n selp.b64 %rd1, %rd1, %rd2, %p1;\n { .param .b32 a; .param .b32 r;\n st.param.b32 [a], %r0;\n P: .callprototype (.param .b32 _) _ (.param .b32 _);\n call (r), %rd1, (a), P;\n ld.param.b32 %r8, [r]; }",
			func(i uint32) uint32 { return i % 32 * map[bool]uint32{true: 2, false: 3}[i%2 == 1] }},
		"registers as parameters": {"call (%r8), plus, (%r0, 5);", func(i uint32) uint32 { return i%32 + 5 }},
		"a jump table": {"and.b32 %r1, %r0, 3;\n mov.u32 %r8, 50;\n brx.idx %r1, T;\n A: mov.u32 %r8, 10;\n bra E;\n B: mov.u32 %r8, 20;\n bra E;\n C: mov.u32 %r8, 30;\n bra E;\n T: .branchtargets A, B, C, E;\n E:",
			func(i uint32) uint32 { return []uint32{10, 20, 30, 50}[i%4] }},
		"special registers": {"mov.u32 %r1, %lanemask_lt;\n popc.b32 %r8, %r1;\n mov.u32 %r1, %laneid;\n add.u32 %r8, %r8, %r1;\n mov.u32 %r1, %warpid;\n mad.lo.u32 %r8, %r1, 100, %r8;\n mov.u32 %r1, %nctaid.x;\n add.u32 %r8, %r8, %r1;\n mov.u32 %r1, WARP_SZ;\n add.u32 %r8, %r8, %r1;",
			func(i uint32) uint32 { return popcount(1<<(i%32)-1) + i%32 + i/32*100 + 1 + 32 }},
		"packing and unpacking": {"mov.b64 %rd1, {%r0, %r7};\n mov.b64 {%r1, %r2}, %rd1;\n mov.b32 {%h1, %h2}, %r2;\n mov.b32 %r3, {%h2, %h1};\n shr.u32 %r8, %r3, 16;\n add.u32 %r8, %r8, %r1;",
			func(i uint32) uint32 { return i + i%32 }},
		"which memory a pointer is of": {"{ .shared .align 4 .b8 s[4]; .local .align 4 .b8 l[4];\n mov.u64 %rd1, s;\n cvta.shared.u64 %rd1, %rd1;\n mov.u64 %rd2, l;\n cvta.local.u64 %rd2, %rd2;\n st.u32 [%rd2], %r0;\n ld.u32 %r8, [%rd2];\n isspacep.shared %p1, %rd1;\n isspacep.local %p2, %rd2;\n isspacep.global %p3, %rd0;\n isspacep.local %p4, %rd0; }\n @%p1 add.u32 %r8, %r8, 100;\n @%p2 add.u32 %r8, %r8, 200;\n @%p3 add.u32 %r8, %r8, 400;\n @%p4 add.u32 %r8, %r8, 800;",
			func(i uint32) uint32 { return i%32 + 700 }},
		"atomics": {"mov.u32 %r1, %tid.x;\n { .shared .align 8 .b8 s[8]; mov.u64 %rd1, s;\n st.shared.u64 [%rd1], 0;\n bar.sync 0;\n atom.shared.inc.u32 %r2, [%rd1], 9;\n red.shared.max.s32 [%rd1+4], %r1;\n bar.sync 0;\n ld.shared.v2.u32 {%r2, %r3}, [%rd1]; }\n mad.lo.u32 %r8, %r2, 1000, %r3;",
			func(uint32) uint32 { return 64%10*1000 + 63 }},
	} {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			ptx := `.version 7.8
.target sm_90
.address_size 64
.func (.param .b32 r) twice(.param .b32 a) { .reg .b32 %r; ld.param.b32 %r, [a]; add.u32 %r, %r, %r; st.param.b32 [r], %r; ret; }
.func (.param .b32 r) thrice(.param .b32 a) { .reg .b32 %r<2>; ld.param.b32 %r0, [a]; mul.lo.u32 %r1, %r0, 3; st.param.b32 [r], %r1; ret; }
.func (.reg .b32 r) plus(.reg .b32 a, .reg .b32 b) { add.u32 r, a, b; ret; }
.entry k(.param .u64 out) {
 .reg .b16 %h<9>; .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;
 ld.param.u64 %rd0, [out];
 mov.u32 %r0, %laneid;
 mov.u32 %r7, %tid.x;
 ` + c.body + `
 mov.u32 %r7, %tid.x;
 mul.wide.u32 %rd1, %r7, 4;
 add.u64 %rd1, %rd0, %rd1;
 st.global.u32 [%rd1], %r8;
 ret;
}`
			out := put(d, make([]uint32, 64))
			t.Setenv("GPUSIM_INSTRUCTION_LIMIT", "1000000")
			require.NoError(t, d.launch(d.mustKernel(ptx, "k"), shape{gx: 1, bx: 64}, out))
			require.Equal(t, make1(64, func(i int) uint32 { return c.want(uint32(i)) }), get[uint32](d, out, 64))
		})
	}
}
