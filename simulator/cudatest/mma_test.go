package cudatest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bfloat rounds to the nearest bfloat16, ties to even; NaN is left out.
func bfloat(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func unbfloat(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// mmaKernel loads matrices as the PTX ISA lays out the fragments of a warp:
// A is 16×k and C 16×8 by rows, B is k×8 by columns.
func mmaKernel(k int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{
	.reg .b64 %%rd<12>; .reg .b32 %%r<20>; .reg .f32 %%f<9>;
	ld.param.u64 %%rd1, [a]; ld.param.u64 %%rd2, [b]; ld.param.u64 %%rd3, [c]; ld.param.u64 %%rd4, [d];
	mov.u32 %%r1, %%laneid;
	shr.u32 %%r2, %%r1, 2;
	and.b32 %%r3, %%r1, 3;
	mul.lo.u32 %%r4, %%r2, %[1]d; mad.lo.u32 %%r4, %%r3, 4, %%r4; // 2 bytes × (k g + 2t)
	cvt.u64.u32 %%rd5, %%r4;
	add.u64 %%rd1, %%rd1, %%rd5; add.u64 %%rd2, %%rd2, %%rd5;
	mul.lo.u32 %%r4, %%r2, 32; mad.lo.u32 %%r4, %%r3, 8, %%r4;    // 4 bytes × (8 g + 2t)
	cvt.u64.u32 %%rd5, %%r4;
	add.u64 %%rd3, %%rd3, %%rd5; add.u64 %%rd4, %%rd4, %%rd5;
	ld.global.b32 %%r10, [%%rd1]; ld.global.b32 %%r11, [%%rd1+%[2]d];
	ld.global.b32 %%r14, [%%rd2];
	ld.global.v2.f32 {%%f1, %%f2}, [%%rd3]; ld.global.v2.f32 {%%f3, %%f4}, [%%rd3+256];
`, 2*k, 16*k)
	if k == 16 {
		b.WriteString(`	ld.global.b32 %r12, [%rd1+16]; ld.global.b32 %r13, [%rd1+272]; ld.global.b32 %r15, [%rd2+16];
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f5, %f6, %f7, %f8}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%f1, %f2, %f3, %f4};
`)
	} else {
		b.WriteString("	mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f5, %f6, %f7, %f8}, {%r10, %r11}, {%r14}, {%f1, %f2, %f3, %f4};\n")
	}
	b.WriteString("	st.global.v2.f32 [%rd4], {%f5, %f6}; st.global.v2.f32 [%rd4+256], {%f7, %f8};\n	ret;\n}\n")
	return b.String()
}

func TestMMAMultipliesAsTheISALaysOutItsFragments(t *testing.T) {
	d := open(t, "a100-80gb")
	random := rand.New(rand.NewPCG(1, 2))
	for _, k := range []int{8, 16} {
		for name, element := range map[string]func() float32{
			"whole numbers": func() float32 { return float32(random.IntN(17) - 8) },
			"any exponent":  func() float32 { return float32(random.NormFloat64() * math.Exp2(float64(random.IntN(40)-20))) },
			"tiny":          func() float32 { return float32(random.NormFloat64() * 0x1p-70) },
		} {
			t.Run(fmt.Sprintf("k=%d %s", k, name), func(t *testing.T) {
				d := d.in(t)
				a, b := make1(16*k, func(int) uint16 { return bfloat(element()) }), make1(8*k, func(int) uint16 { return bfloat(element()) })
				c := make1(16*8, func(int) float32 { return element() })
				want := make1(16*8, func(i int) float32 {
					sum := c[i]
					for j := range k {
						sum = fma32(unbfloat(a[i/8*k+j]), unbfloat(b[i%8*k+j]), sum)
					}
					return sum
				})
				out := put(d, make([]float32, 16*8))
				require.NoError(t, d.launch(d.mustKernel(mmaKernel(k), "k"), shape{gx: 1, bx: 32}, put(d, a), put(d, b), put(d, c), out))
				require.Equal(t, want, get[float32](d, out, 16*8))
			})
		}
	}
}

const mmaLine = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, {%f1, %f2, %f3, %f4};"

// module is PTX of one kernel with the body given.
func module(version, target, body string) string {
	return fmt.Sprintf(".version %s\n.target %s\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %%r<9>; .reg .f32 %%f<9>; .reg .b16 %%h<9>; .reg .pred %%p<2>;\n%s\nret;\n}\n", version, target, body)
}

func TestMMAIsRefusedAsByARealDriver(t *testing.T) {
	d := open(t, "h100-sxm", "--gpus", "1")
	for name, c := range map[string]struct {
		version, target, body string
		want                  result
		says                  string
	}{
		"an older GPU":          {"7.0", "sm_75", mmaLine, invalidPTX, "Feature '.bf16' requires .target sm_80 or higher"},
		"an older PTX":          {"6.5", "sm_80", mmaLine, invalidPTX, "Feature '.bf16' requires PTX ISA .version 7.0 or later"},
		"bfloat16 before sm_80": {"7.1", "sm_75", "cvt.rn.bf16.f32 %h1, %f1;", invalidPTX, "Feature '.bf16' requires .target sm_80 or higher"},
		"back before sm_80":     {"7.1", "sm_75", "cvt.f32.bf16 %f1, %h1;", invalidPTX, "Feature 'cvt with .f32.bf16' requires .target sm_80 or higher"},
		"a missing register":    {"7.0", "sm_80", strings.Replace(mmaLine, "%r1, %r2", "%r1", 1), invalidPTX, "Arguments mismatch"},
		"a wrong type":          {"7.0", "sm_80", strings.Replace(mmaLine, "{%r3}", "{%h3}", 1), invalidPTX, "Arguments mismatch"},
		"without .sync":         {"7.0", "sm_80", "mma.m8n8k4.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r3}, {%f1, %f2, %f3, %f4};", invalidPTX, "Modifiers are missing"},
		"half before Ampere":    {"7.0", "sm_75", strings.NewReplacer("m16n8k8", "m16n8k16", "bf16", "f16", "%r2}", "%r2, %r4, %r5}", "{%r3}", "{%r3, %r6}").Replace(mmaLine), invalidPTX, "requires .target sm_80"},
		"whole numbers":         {"7.0", "sm_80", "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6};", notSupported, "does not execute"},
	} {
		t.Run(name, func(t *testing.T) {
			_, log, err := d.in(t).compile(module(c.version, c.target, c.body))
			require.Equal(t, c.want, err)
			require.Contains(t, log, c.says)
			require.Contains(t, log, "line 7")
		})
	}
	t.Run("on a T4", func(t *testing.T) {
		_, _, err := open(t, "t4").compile(module("7.0", "sm_80", mmaLine))
		require.Equal(t, noBinary, err)
	})
}

func TestMMANeedsItsWholeWarp(t *testing.T) {
	l := open(t, "h100-sxm", "--gpus", "1").lib
	some := "mov.u32 %r4, %laneid;\nsetp.lt.u32 %p1, %r4, 16;\n"
	for name, c := range map[string]struct {
		body    string
		threads uint32
		want    error
	}{
		"all are there":               {mmaLine, 64, nil},
		"they come by different ways": {some + "@%p1 bra A;\nmov.u32 %r5, 1;\nA:\n" + mmaLine, 32, nil},
		"a short warp":                {mmaLine, 48, illegalInstr},
		"some have left":              {some + "@%p1 exit;\n" + mmaLine, 32, illegalInstr},
		"some never come":             {some + "@%p1 bra A;\n" + mmaLine + "\nA: bar.sync 0;", 32, timeout},
	} {
		t.Run(name, func(t *testing.T) {
			d := l.newContext(t, 0)
			t.Setenv("GPUSIM_INSTRUCTION_LIMIT", "1000000")
			err := d.launch(d.mustKernel(module("7.0", "sm_80", c.body), "k"), shape{gx: 1, bx: c.threads})
			require.Equal(t, c.want, err)
		})
	}
}
