package cudatest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mmaForm is a shape and types of mma, and where the elements of its fragments lie: A is
// 16×k and C 16×8 by rows, B is k×8 by columns.
type mmaForm struct {
	instruction   string
	k             int
	size, sumSize int // bytes of an element of A and B, and of C and D
}

var otherMMA = map[string]mmaForm{
	"f16 k=8":         {"m16n8k8.row.col.f32.f16.f16.f32", 8, 2, 4},
	"f16 k=16":        {"m16n8k16.row.col.f32.f16.f16.f32", 16, 2, 4},
	"f16 to f16 k=8":  {"m16n8k8.row.col.f16.f16.f16.f16", 8, 2, 2},
	"f16 to f16 k=16": {"m16n8k16.row.col.f16.f16.f16.f16", 16, 2, 2},
	"tf32 k=4":        {"m16n8k4.row.col.f32.tf32.tf32.f32", 4, 4, 4},
	"tf32 k=8":        {"m16n8k8.row.col.f32.tf32.tf32.f32", 8, 4, 4},
}

// kernel multiplies the matrices at a and b, adds c, and leaves the result at d.
func (f mmaForm) kernel() string {
	var b strings.Builder
	fmt.Fprintf(&b, `.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{
	.reg .b64 %%rd<12>; .reg .b32 %%a<4>, %%b<2>, %%s<4>, %%d<4>, %%r<9>; .reg .f32 %%fs<4>, %%fd<4>;
	ld.param.u64 %%rd1, [a]; ld.param.u64 %%rd2, [b]; ld.param.u64 %%rd3, [c]; ld.param.u64 %%rd4, [d];
	mov.u32 %%r1, %%laneid;
	shr.u32 %%r2, %%r1, 2;
	and.b32 %%r3, %%r1, 3;
	mul.lo.u32 %%r4, %%r2, %[1]d; mad.lo.u32 %%r4, %%r3, 4, %%r4; // a register of row g
	cvt.u64.u32 %%rd5, %%r4;
	add.u64 %%rd1, %%rd1, %%rd5; add.u64 %%rd2, %%rd2, %%rd5;
	mul.lo.u32 %%r4, %%r2, %[2]d; mad.lo.u32 %%r4, %%r3, %[3]d, %%r4;
	cvt.u64.u32 %%rd5, %%r4;
	add.u64 %%rd3, %%rd3, %%rd5; add.u64 %%rd4, %%rd4, %%rd5;
`, f.size*f.k, f.sumSize*8, f.sumSize*2)
	row, na, nb := f.size*f.k, f.size*f.k/8, f.size*f.k/16
	names := func(prefix string, n int) string {
		return strings.Join(make1(n, func(i int) string { return fmt.Sprintf("%s%d", prefix, i) }), ", ")
	}
	for i := range na {
		fmt.Fprintf(&b, "\tld.global.b32 %%a%d, [%%rd1+%d];\n", i, i%2*8*row+i/2*16)
	}
	for i := range nb {
		fmt.Fprintf(&b, "\tld.global.b32 %%b%d, [%%rd2+%d];\n", i, i*16)
	}
	sum, result, nc := "%fs", "%fd", 4
	if f.sumSize == 2 {
		sum, result, nc = "%s", "%d", 2
	}
	at := func(i int) int { // where register i of C and D lies
		if f.sumSize == 2 {
			return i * 8 * 16
		}
		return i/2*8*32 + i%2*4
	}
	for i := range nc {
		fmt.Fprintf(&b, "\tld.global.b32 %s%d, [%%rd3+%d];\n", sum, i, at(i))
	}
	fmt.Fprintf(&b, "\tmma.sync.aligned.%s {%s}, {%s}, {%s}, {%s};\n", f.instruction, names(result, nc), names("%a", na), names("%b", nb), names(sum, nc))
	for i := range nc {
		fmt.Fprintf(&b, "\tst.global.b32 [%%rd4+%d], %s%d;\n", at(i), result, i)
	}
	b.WriteString("\tret;\n}\n")
	return b.String()
}

// half is a whole number of up to 11 bits in half precision.
func half(f float32) uint16 {
	if f == 0 {
		return 0
	}
	b := math.Float32bits(f)
	return uint16(b>>16&0x8000 | (b>>23&0xff-127+15)<<10 | b>>13&0x3ff)
}

// encode writes whole numbers as elements of size bytes, two of them in a word where they fit.
func encode(values []float32, size int) []uint32 {
	if size == 4 {
		return make1(len(values), func(i int) uint32 { return math.Float32bits(values[i]) })
	}
	return make1(len(values)/2, func(i int) uint32 { return uint32(half(values[2*i])) | uint32(half(values[2*i+1]))<<16 })
}

// Whole numbers: sums are exact in any order, so that a GPU would give the same.
func TestMMAMultipliesOtherTypes(t *testing.T) {
	d := open(t, "a100-80gb")
	random := rand.New(rand.NewPCG(1, 3))
	whole := func(int) float32 { return float32(random.IntN(17) - 8) }
	for name, f := range otherMMA {
		t.Run(name, func(t *testing.T) {
			d := d.in(t)
			a, b, c := make1(16*f.k, whole), make1(8*f.k, whole), make1(16*8, whole)
			want := make1(16*8, func(i int) float32 {
				sum := c[i]
				for j := range f.k {
					sum += a[i/8*f.k+j] * b[i%8*f.k+j]
				}
				return sum
			})
			out := put(d, make([]uint32, 16*8*f.sumSize/4))
			require.NoError(t, d.launch(d.mustKernel(f.kernel(), "k"), shape{gx: 1, bx: 32}, put(d, encode(a, f.size)), put(d, encode(b, f.size)), put(d, encode(c, f.sumSize)), out))
			require.Equal(t, encode(want, f.sumSize), get[uint32](d, out, 16*8*f.sumSize/4))
		})
	}
}
