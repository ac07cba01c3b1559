package cudatest

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Registers for operands a, b, c and the result d, by the letter of their kind.
var registers = map[byte]struct{ typ, name string }{
	'h': {"b16", "h"}, 'r': {"b32", "r"}, 'l': {"b64", "l"},
}

func bits(f float32) uint64   { return uint64(math.Float32bits(f)) }
func bits64(f float64) uint64 { return math.Float64bits(f) }

const (
	nan32  = 0x7fffffff
	inf32  = 0x7f800000
	tiny32 = 1 // the smallest subnormal
)

// Each line is one instruction, the kinds of its result and operands, their
// values, and the result as the PTX ISA defines it.
var isa = []struct {
	op, kinds string
	in        []uint64
	want      uint64
}{
	{"add.u16", "hhh", []uint64{0xffff, 2}, 1},
	{"add.s32", "rrr", []uint64{0x7fffffff, 1}, 0x80000000},
	{"add.sat.s32", "rrr", []uint64{0x7fffffff, 1}, 0x7fffffff},
	{"sub.sat.s32", "rrr", []uint64{0x80000000, 1}, 0x80000000},
	{"add.u64", "lll", []uint64{math.MaxUint64, 2}, 1},
	{"sub.u32", "rrr", []uint64{1, 2}, 0xffffffff},
	{"mul.lo.s32", "rrr", []uint64{0xffffffff, 5}, 0xfffffffb},
	{"mul.hi.u32", "rrr", []uint64{0xffffffff, 0xffffffff}, 0xfffffffe},
	{"mul.hi.s32", "rrr", []uint64{0xffffffff, 5}, 0xffffffff},
	{"mul.hi.s16", "hhh", []uint64{0x8000, 2}, 0xffff},
	{"mul.hi.u64", "lll", []uint64{math.MaxUint64, 16}, 15},
	{"mul.hi.s64", "lll", []uint64{math.MaxUint64, 16}, math.MaxUint64},
	{"mul.wide.u16", "rhh", []uint64{0xffff, 0xffff}, 0xfffe0001},
	{"mul.wide.s16", "rhh", []uint64{0xffff, 2}, 0xfffffffe},
	{"mul.wide.s32", "lrr", []uint64{0xffffffff, 3}, 0xfffffffffffffffd},
	{"mul.wide.u32", "lrr", []uint64{0xffffffff, 3}, 0x2fffffffd},
	{"mad.lo.u32", "rrrr", []uint64{7, 6, 0xffffffff}, 41},
	{"mad.hi.u32", "rrrr", []uint64{0x80000000, 4, 5}, 7},
	{"mad.wide.s32", "lrrl", []uint64{0xffffffff, 3, 5}, 2},
	{"mul24.lo.u32", "rrr", []uint64{0xff000002, 3}, 6},
	{"mul24.lo.s32", "rrr", []uint64{0x00ffffff, 3}, 0xfffffffd},
	{"sad.s32", "rrrr", []uint64{0xffffffff, 2, 10}, 13},
	{"sad.u32", "rrrr", []uint64{5, 2, 10}, 13},
	{"div.s32", "rrr", []uint64{0xfffffff9, 2}, 0xfffffffd},
	{"div.u32", "rrr", []uint64{0xfffffff9, 2}, 0x7ffffffc},
	{"div.u32", "rrr", []uint64{5, 0}, 0xffffffff},
	{"div.s32", "rrr", []uint64{0x80000000, 0xffffffff}, 0x80000000},
	{"div.s64", "lll", []uint64{1 << 63, math.MaxUint64}, 1 << 63},
	{"rem.s32", "rrr", []uint64{0xfffffff9, 4}, 0xfffffffd},
	{"rem.s64", "lll", []uint64{1 << 63, math.MaxUint64}, 0},
	{"abs.s32", "rr", []uint64{0xfffffff9}, 7},
	{"neg.s64", "ll", []uint64{7}, 0xfffffffffffffff9},
	{"neg.s16", "hh", []uint64{7}, 0xfff9},
	{"min.s32", "rrr", []uint64{0xffffffff, 1}, 0xffffffff},
	{"min.u32", "rrr", []uint64{0xffffffff, 1}, 1},
	{"max.s16", "hhh", []uint64{0xffff, 1}, 1},
	{"max.u64", "lll", []uint64{math.MaxUint64, 1}, math.MaxUint64},

	{"and.b32", "rrr", []uint64{12, 10}, 8},
	{"or.b64", "lll", []uint64{1 << 40, 10}, 1<<40 | 10},
	{"xor.b16", "hhh", []uint64{12, 10}, 6},
	{"not.b32", "rr", []uint64{12}, 0xfffffff3},
	{"not.b16", "hh", []uint64{12}, 0xfff3},
	{"cnot.b32", "rr", []uint64{0}, 1},
	{"cnot.b64", "ll", []uint64{1 << 40}, 0},
	{"shl.b32", "rrr", []uint64{3, 31}, 0x80000000},
	{"shl.b32", "rrr", []uint64{3, 32}, 0},
	{"shl.b64", "llr", []uint64{3, 63}, 1 << 63},
	{"shl.b16", "hhr", []uint64{3, 15}, 0x8000},
	{"shr.s32", "rrr", []uint64{0x80000000, 40}, 0xffffffff},
	{"shr.u32", "rrr", []uint64{0x80000000, 40}, 0},
	{"shr.s64", "llr", []uint64{1 << 63, 4}, 0xf800000000000000},
	{"shr.s16", "hhr", []uint64{0x8000, 3}, 0xf000},
	{"shf.l.wrap.b32", "rrrr", []uint64{0x80000001, 0xff, 36}, 0xff8},
	{"shf.l.clamp.b32", "rrrr", []uint64{0x80000001, 0xff, 36}, 0x80000001},
	{"shf.r.wrap.b32", "rrrr", []uint64{0x80000001, 0xff, 4}, 0xf8000000},
	{"shf.r.clamp.b32", "rrrr", []uint64{0x80000001, 0xff, 33}, 0xff},
	{"prmt.b32", "rrrr", []uint64{0x33221100, 0x77665544, 0x7531}, 0x77553311},
	{"prmt.b32", "rrrr", []uint64{0x33228000, 0x77665544, 0x9}, 0xff},
	{"prmt.b32.f4e", "rrrr", []uint64{0x33221100, 0x77665544, 1}, 0x44332211},
	{"prmt.b32.rc16", "rrrr", []uint64{0x33221100, 0x77665544, 1}, 0x33223322},
	{"bfe.u32", "rrrr", []uint64{0x12345678, 8, 12}, 0x456},
	{"bfe.s32", "rrrr", []uint64{0x12345878, 8, 8}, 0x58},
	{"bfe.s32", "rrrr", []uint64{0x12348878, 8, 8}, 0xffffff88},
	{"bfe.s32", "rrrr", []uint64{0x80000000, 28, 20}, 0xfffffff8},
	{"bfe.u64", "llrr", []uint64{0x123456789abcdef0, 60, 10}, 1},
	{"bfi.b32", "rrrrr", []uint64{0xff, 0x12345678, 8, 4}, 0x12345f78},
	{"bfi.b64", "lllrr", []uint64{0xff, 0, 40, 64}, 0xff << 40},
	{"popc.b32", "rr", []uint64{0xf0f0}, 8},
	{"popc.b64", "rl", []uint64{math.MaxUint64}, 64},
	{"clz.b32", "rr", []uint64{0}, 32},
	{"clz.b64", "rl", []uint64{1}, 63},
	{"brev.b32", "rr", []uint64{0x12345678}, 0x1e6a2c48},
	{"brev.b64", "ll", []uint64{1}, 1 << 63},
	{"bfind.u32", "rr", []uint64{0x1000}, 12},
	{"bfind.u32", "rr", []uint64{0}, 0xffffffff},
	{"bfind.s32", "rr", []uint64{0xffffff00}, 7},
	{"bfind.shiftamt.u32", "rr", []uint64{0x1000}, 19},
	{"lop3.b32", "rrrrr", []uint64{0xf0f0f0f0, 0xcccccccc, 0xaaaaaaaa, 0x96}, 0x96969696},
	{"slct.u32.s32", "rrrr", []uint64{1, 2, 0xffffffff}, 2},
	{"slct.f32.f32", "rrrr", []uint64{1, 2, bits(0)}, 1},
	{"dp4a.s32.s32", "rrrr", []uint64{0xff020304, 0x01010101, 10}, 18},
	{"dp4a.u32.u32", "rrrr", []uint64{0xff020304, 0x01010101, 10}, 274},
	{"bmsk.clamp.b32", "rrr", []uint64{4, 8}, 0xff0},

	{"add.f32", "rrr", []uint64{bits(1), bits(0x1p-24)}, bits(1)},
	{"add.rp.f32", "rrr", []uint64{bits(1), bits(0x1p-24)}, 0x3f800001},
	{"add.rz.f32", "rrr", []uint64{bits(-1), bits(0x1p-30)}, 0xbf7fffff},
	{"add.rm.f32", "rrr", []uint64{bits(1), bits(-0x1p-30)}, 0x3f7fffff},
	{"add.ftz.f32", "rrr", []uint64{tiny32, tiny32}, 0},
	{"add.f32", "rrr", []uint64{tiny32, tiny32}, 2},
	{"add.sat.f32", "rrr", []uint64{bits(1), bits(1)}, bits(1)},
	{"sub.f32", "rrr", []uint64{inf32, inf32}, nan32},
	{"mul.f32", "rrr", []uint64{bits(3), bits(0.1)}, bits(3 * float32(0.1))},
	{"mul.sat.f32", "rrr", []uint64{bits(3), bits(-1)}, 0},
	{"fma.rn.f32", "rrrr", []uint64{0x3f800001, 0x3f800001, 0xbf800002}, bits(0x1p-46)},
	{"fma.rz.f32", "rrrr", []uint64{bits(1), bits(1), bits(-0x1p-30)}, 0x3f7fffff},
	{"div.rn.f32", "rrr", []uint64{bits(1), bits(3)}, bits(float32(1) / 3)},
	{"div.rn.f32", "rrr", []uint64{bits(1), bits(0)}, inf32},
	{"rcp.rn.f32", "rr", []uint64{bits(3)}, bits(float32(1) / 3)},
	{"sqrt.rn.f32", "rr", []uint64{bits(2)}, bits(float32(math.Sqrt2))},
	{"sqrt.rn.f32", "rr", []uint64{bits(-2)}, nan32},
	{"rsqrt.approx.f32", "rr", []uint64{bits(4)}, bits(0.5)},
	{"ex2.approx.f32", "rr", []uint64{bits(10)}, bits(1024)},
	{"lg2.approx.f32", "rr", []uint64{bits(1024)}, bits(10)},
	{"sin.approx.f32", "rr", []uint64{0}, 0},
	{"cos.approx.f32", "rr", []uint64{0}, bits(1)},
	{"tanh.approx.f32", "rr", []uint64{bits(100)}, bits(1)},
	{"abs.f32", "rr", []uint64{bits(-2)}, bits(2)},
	{"neg.f32", "rr", []uint64{bits(0)}, 0x80000000},
	{"min.f32", "rrr", []uint64{nan32, bits(2)}, bits(2)},
	{"min.NaN.f32", "rrr", []uint64{nan32, bits(2)}, nan32},
	{"min.f32", "rrr", []uint64{0x80000000, 0}, 0x80000000},
	{"max.f32", "rrr", []uint64{0x80000000, 0}, 0},
	{"copysign.f32", "rrr", []uint64{0x80000000, bits(2)}, bits(-2)},
	{"add.f64", "lll", []uint64{bits64(0.1), bits64(0.2)}, 0},
	{"fma.rn.f64", "llll", []uint64{bits64(3), bits64(4), bits64(5)}, bits64(17)},
	{"div.rn.f64", "lll", []uint64{bits64(1), bits64(3)}, bits64(1.0 / 3)},
	{"div.rp.f64", "lll", []uint64{bits64(1), bits64(3)}, bits64(1.0/3) + 1},
	{"sqrt.rn.f64", "ll", []uint64{bits64(2)}, bits64(math.Sqrt2)},
	{"max.f64", "lll", []uint64{bits64(1), bits64(3)}, bits64(3)},

	{"add.f16", "hhh", []uint64{0x3c00, 0x1000}, 0x3c00},             // 1 + 2^-11: a tie, to even
	{"fma.rn.f16", "hhhh", []uint64{0x4200, 0x4200, 0x3c00}, 0x4900}, // 3 × 3 + 1
	{"mul.f16x2", "rrr", []uint64{0x42003c00, 0x40004000}, 0x46004000},
	{"max.f16", "hhh", []uint64{0x7fff, 0x3c00}, 0x3c00},
	{"fma.rn.bf16", "hhhh", []uint64{0x4040, 0x4040, 0x3f80}, 0x4120},
	{"neg.bf16x2", "rr", []uint64{0x3f80bf80}, 0xbf803f80},

	{"cvt.s64.s32", "lr", []uint64{0xfffffff9}, 0xfffffffffffffff9},
	{"cvt.u64.u32", "lr", []uint64{0xfffffff9}, 0xfffffff9},
	{"cvt.u32.u64", "rl", []uint64{0x123456789}, 0x23456789},
	{"cvt.s32.s8", "rr", []uint64{0x1ff}, 0xffffffff},
	{"cvt.u32.u8", "rr", []uint64{0x1ff}, 0xff},
	{"cvt.u16.u32", "hr", []uint64{0x12345}, 0x2345},
	{"cvt.s32.s16", "rh", []uint64{0x8000}, 0xffff8000},
	{"cvt.sat.u8.s32", "rr", []uint64{0xffffffff}, 0},
	{"cvt.sat.s8.s32", "rr", []uint64{1000}, 127},
	{"cvt.rn.f32.s32", "rr", []uint64{0xffffffff}, bits(-1)},
	{"cvt.rn.f32.u32", "rr", []uint64{0xffffffff}, bits(0x1p32)},
	{"cvt.rz.f32.u32", "rr", []uint64{0xffffffff}, 0x4f7fffff},
	{"cvt.rn.f32.u64", "rl", []uint64{math.MaxUint64}, bits(0x1p64)},
	{"cvt.rn.f64.s64", "ll", []uint64{0xffffffffffffffff}, bits64(-1)},
	{"cvt.rzi.s32.f32", "rr", []uint64{bits(-2.9)}, 0xfffffffe},
	{"cvt.rni.s32.f32", "rr", []uint64{bits(2.5)}, 2},
	{"cvt.rpi.s32.f32", "rr", []uint64{bits(2.1)}, 3},
	{"cvt.rmi.s32.f32", "rr", []uint64{bits(-2.1)}, 0xfffffffd},
	{"cvt.rzi.s32.f32", "rr", []uint64{bits(1e20)}, 0x7fffffff},
	{"cvt.rzi.u32.f32", "rr", []uint64{bits(-5)}, 0},
	{"cvt.rzi.s32.f32", "rr", []uint64{nan32}, 0},
	{"cvt.rzi.s64.f64", "ll", []uint64{0x7ff8000000000000}, 1 << 63},
	{"cvt.rzi.u64.f64", "ll", []uint64{bits64(0x1p63)}, 1 << 63},
	{"cvt.rni.f32.f32", "rr", []uint64{bits(2.5)}, bits(2)},
	{"cvt.sat.f32.f32", "rr", []uint64{bits(2.5)}, bits(1)},
	{"cvt.f64.f32", "lr", []uint64{bits(0.1)}, bits64(float64(float32(0.1)))},
	{"cvt.rn.f32.f64", "rl", []uint64{bits64(0.1)}, bits(0.1)},
	{"cvt.rp.f32.f64", "rl", []uint64{bits64(1 + 0x1p-30)}, 0x3f800001},
	{"cvt.rn.f32.f64", "rl", []uint64{bits64(1e-45)}, 1},
	{"cvt.rn.f16.f32", "hr", []uint64{bits(65520)}, 0x7c00},
	{"cvt.rn.f16.f32", "hr", []uint64{bits(0x1p-24)}, 1},
	{"cvt.rz.f16.f32", "hr", []uint64{bits(65535)}, 0x7bff},
	{"cvt.f32.f16", "rh", []uint64{0x0001}, bits(0x1p-24)},
	{"cvt.rn.bf16.f32", "hr", []uint64{0x3f808000}, 0x3f80},
	{"cvt.f32.bf16", "rh", []uint64{0x3f81}, 0x3f810000},
	{"cvt.rn.bf16x2.f32", "rrr", []uint64{0x3f818000, bits(-2)}, 0x3f82c000},
	{"cvt.rz.bf16x2.f32", "rrr", []uint64{0x3f818000, nan32}, 0x3f817fff},
	{"cvt.rn.f16x2.f32", "rrr", []uint64{bits(1), bits(2)}, 0x3c004000},
	{"cvt.rn.f16.s32", "hr", []uint64{3}, 0x4200},
	{"mad24.hi.u32", "rrrr", []uint64{0x800000, 0x200, 5}, 0x10005},
	{"mad24.hi.sat.s32", "rrrr", []uint64{0x7fffff, 0x7fffff, 0x7fffffff}, 0x7fffffff},
	{"dp2a.lo.s32.s32", "rrrr", []uint64{0xfffe0003, 0x0000ff02, 10}, 18},
	{"dp2a.hi.u32.u32", "rrrr", []uint64{0x00010002, 0x03040000, 1}, 12},
	{"szext.clamp.s32", "rrr", []uint64{9, 4}, 0xfffffff9},
	{"szext.clamp.u32", "rrr", []uint64{0xff, 40}, 0xff},
	{"szext.wrap.u32", "rrr", []uint64{0xff, 36}, 0xf},
	{"fns.b32", "rrrr", []uint64{0xf0f0, 6, 2}, 7},
	{"fns.b32", "rrrr", []uint64{0xf0f0, 5, 0xffffffff}, 5},
	{"fns.b32", "rrrr", []uint64{0xf0, 0, 0}, 0xffffffff},
	{"fma.rn.relu.f16", "hhhh", []uint64{0x4200, 0xc200, 0x3c00}, 0},
	{"min.xorsign.abs.f32", "rrr", []uint64{bits(-2), bits(3)}, bits(-2)},
	{"max.xorsign.abs.f16", "hhh", []uint64{0xbc00, 0xc000}, 0x4000},
	{"cvt.rna.tf32.f32", "rr", []uint64{0x3f801000}, 0x3f802000},
	{"cvt.rn.tf32.f32", "rr", []uint64{0x3f801000}, 0x3f800000},
	{"cvt.rz.relu.tf32.f32", "rr", []uint64{bits(-1)}, 0},
	{"cvt.pack.sat.u16.s32", "rrr", []uint64{0xffffffff, 70000}, 0xffff},
	{"cvt.pack.sat.s8.s32.b32", "rrrr", []uint64{300, 0xfffffed4, 0x1234}, 0x12347f80},
	{"cvt.rn.relu.f16x2.f32", "rrr", []uint64{bits(-1), bits(2)}, 0x4000},
	{"set.lt.f16x2.f16x2", "rrr", []uint64{0x40003c00, 0x3c004000}, 0x3c00},
	{"set.eq.u16.f16", "hhh", []uint64{0x3c00, 0x3c00}, 0xffff},
	{"set.eq.ftz.u32.f16", "rhh", []uint64{1, 0}, 0xffffffff},
	{"set.lt.bf16.bf16", "hhh", []uint64{0x3f80, 0x4000}, 0x3f80},
	{"mov.b32", "rr", []uint64{5}, 5},
	{"mov.b64", "ll", []uint64{1 << 40}, 1 << 40},
}

// isaKernel wraps one instruction: operands from memory, the result to memory.
func isaKernel(op, kinds string) string {
	var b strings.Builder
	b.WriteString(".version 7.8\n.target sm_90\n.address_size 64\n.entry k(.param .u64 in, .param .u64 out)\n{\n\t.reg .b64 %in, %out;\n\t.reg .b32 %t;\n")
	b.WriteString("\tld.param.u64 %in, [in];\n\tld.param.u64 %out, [out];\n")
	operands := []string{}
	for i := range len(kinds) {
		r := registers[kinds[i]]
		name := fmt.Sprintf("%%%s%d", r.name, i)
		fmt.Fprintf(&b, "\t.reg .%s %s;\n", r.typ, name)
		if i > 0 {
			fmt.Fprintf(&b, "\tld.global.%s %s, [%%in+%d];\n", r.typ, name, 8*(i-1))
		}
		operands = append(operands, name)
	}
	if strings.HasPrefix(op, "lop3") { // the table is a constant
		operands[len(operands)-1] = "0x96"
	}
	fmt.Fprintf(&b, "\t%s %s;\n\tst.global.%s [%%out], %s;\n\tret;\n}\n", op, strings.Join(operands, ", "), registers[kinds[0]].typ, operands[0])
	return b.String()
}

func TestEachInstructionComputesWhatTheISASays(t *testing.T) {
	d := open(t, "h100-sxm")
	for i, c := range isa {
		if c.op == "add.f64" { // in variables: constants would be added exactly
			x, y := 0.1, 0.2
			c.want = bits64(x + y)
		}
		t.Run(fmt.Sprintf("%d %s", i, c.op), func(t *testing.T) {
			d := d.in(t)
			out := put(d, []uint64{0})
			f := d.mustKernel(isaKernel(c.op, c.kinds), "k")
			// One lane, and then a whole warp: they take different ways through the handlers.
			for _, threads := range []uint32{1, 32} {
				require.Zero(t, d.cuMemsetD32(*out, 0, 2))
				require.NoError(t, d.launch(f, shape{gx: 1, bx: threads}, put(d, c.in), out))
				require.Equal(t, fmt.Sprintf("%#x", c.want), fmt.Sprintf("%#x", get[uint64](d, out, 1)[0]), "%d threads", threads)
			}
		})
	}
}

// Comparisons: which of eq ne lt le gt ge equ neu ltu leu gtu geu num nan hold.
func TestComparisons(t *testing.T) {
	d := open(t, "h100-sxm")
	float := strings.Fields("eq ne lt le gt ge equ neu ltu leu gtu geu num nan")
	for _, c := range []struct {
		typ, kind string
		a, b      uint64
		ops       []string
		want      string
	}{
		{"s32", "b32", 0xffffffff, 1, float[:6], "ne lt le"},
		{"u32", "b32", 0xffffffff, 1, append(strings.Fields("lo ls hi hs"), float[:6]...), "hi hs ne gt ge"},
		{"s16", "b16", 0xffff, 0, float[:6], "ne lt le"},
		{"u64", "b64", 5, 5, float[:6], "eq le ge"},
		{"s64", "b64", 1 << 63, 5, float[:6], "ne lt le"},
		{"f32", "b32", bits(1), bits(2), float, "ne lt le neu ltu leu num"},
		{"f32", "b32", bits(2), bits(2), float, "eq le ge equ leu geu num"},
		{"f32", "b32", nan32, bits(2), float, "equ neu ltu leu gtu geu nan"},
		{"f64", "b64", bits64(3), bits64(2), float, "ne gt ge neu gtu geu num"},
		{"f16", "b16", 0xbc00, 0x3c00, float, "ne lt le neu ltu leu num"},
	} {
		var ptx strings.Builder
		fmt.Fprintf(&ptx, ".version 7.8\n.target sm_90\n.address_size 64\n.entry k(.param .u64 in, .param .u64 out)\n{\n.reg .b64 %%in, %%out; .reg .%s %%a, %%b; .reg .pred %%p, %%q, %%z; .reg .b32 %%d;\nld.param.u64 %%in, [in]; ld.param.u64 %%out, [out];\nld.global.%s %%a, [%%in]; ld.global.%s %%b, [%%in+8];\nsetp.ne.u32 %%z, 0, 0;\n", c.kind, c.kind, c.kind)
		for i, op := range c.ops {
			// The result, its opposite, both with a third predicate, and as a number.
			fmt.Fprintf(&ptx, "setp.%s.%s %%p|%%q, %%a, %%b;\nselp.u32 %%d, 1, 0, %%p;\n@%%q add.u32 %%d, %%d, 2;\n", op, c.typ)
			fmt.Fprintf(&ptx, "setp.%s.or.%s %%p, %%a, %%b, %%z;\n@%%p add.u32 %%d, %%d, 4;\nsetp.%s.and.%s %%p, %%a, %%b, !%%z;\n@!%%p add.u32 %%d, %%d, 8;\n", op, c.typ, op, c.typ)
			fmt.Fprintf(&ptx, "st.global.u32 [%%out+%d], %%d;\n", 4*i)
		}
		ptx.WriteString("ret;\n}\n")
		t.Run(fmt.Sprintf("%s %#x %#x", c.typ, c.a, c.b), func(t *testing.T) {
			d := d.in(t)
			out := put(d, make([]uint32, len(c.ops)))
			require.NoError(t, d.launch(d.mustKernel(ptx.String(), "k"), shape{gx: 1, bx: 32}, put(d, []uint64{c.a, c.b}), out))
			for i, v := range get[uint32](d, out, len(c.ops)) {
				want := uint32(2 + 8)
				if strings.Contains(" "+c.want+" ", " "+c.ops[i]+" ") {
					want = 1 + 4
				}
				require.Equal(t, want, v, c.ops[i])
			}
		})
	}
}

func TestCarriesGoFromWordToWord(t *testing.T) {
	d := open(t, "h100-sxm")
	ptx := entry(`
	ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0];
	add.cc.u32 %r5, %r1, %r3;
	addc.u32 %r6, %r2, %r4;
	st.global.v2.u32 [%rd0+16], {%r5, %r6};
	sub.cc.u32 %r5, %r1, %r3;
	subc.u32 %r6, %r2, %r4;
	st.global.v2.u32 [%rd0+24], {%r5, %r6};
	mad.lo.cc.u32 %r5, %r1, %r3, %r3;
	madc.hi.u32 %r6, %r1, %r3, %r4;
	st.global.v2.u32 [%rd0+32], {%r5, %r6};`)
	a, b := uint64(0x1_ffff_fff0), uint64(0x3_0000_0020)
	out := put(d, []uint64{a, b, 0, 0, 0})
	require.NoError(t, d.launch(d.mustKernel(ptx, "k"), shape{gx: 1, bx: 1}, out))
	require.Equal(t, []uint64{a + b, a - b, (a&0xffffffff)*(b&0xffffffff) + b}, get[uint64](d, out, 5)[2:])
}
