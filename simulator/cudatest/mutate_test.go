package cudatest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// opposite maps each opcode of vectoradd to its replacement.
var opposite = map[string]string{
	"add.rn.f32": "sub.rn.f32", "add.s64": "sub.s64", "mul.wide.s32": "mul.wide.u16",
	"mad.lo.s32": "mad.hi.s32", "setp.ge.s32": "setp.lt.s32", "ld.global.f32": "ld.shared.f32",
	"st.global.f32": "st.local.f32", "ld.param.u64": "ld.param.u32", "ld.param.u32": "ld.param.f32",
	"mov.u32": "not.b32", "bra": "bar", "cvta.to.global.u64": "cvta.shared.u64", "ret": "trap",
}

var (
	instruction = regexp.MustCompile(`(?m)^\t(?:@%p\d+ )?([a-z][a-z0-9.]*)(.*);$`)
	register    = regexp.MustCompile(`%(rd|r|f|p)(\d+)`)
)

// Every instruction of vectoradd is changed, one at a time, to another opcode,
// and each of its registers to another one that is declared: the sum must then
// be wrong, or the driver must name an error.
func TestChangedKernelsAreFoundOut(t *testing.T) {
	original := compilers(t)["clang-14"]
	begin := strings.Index(original, ".visible .entry vectoradd(")
	end := begin + strings.Index(original[begin:], "\n}") + 3
	head := original[:strings.Index(original, "//")] + ".version 4.0\n.target sm_50\n.address_size 64\n"
	kernel := original[begin:end]

	l := open(t, "h100-sxm").lib
	var survived []string
	tried := 0
	try := func(what, changed string) {
		tried++
		if verdict := addWith(t, l, head+changed); verdict == "" {
			survived = append(survived, what)
		}
	}
	require.Empty(t, addWith(t, l, head+kernel), "the kernel as it is")
	for _, m := range instruction.FindAllStringSubmatchIndex(kernel, -1) {
		opcode, operands := kernel[m[2]:m[3]], kernel[m[4]:m[5]]
		other, known := opposite[opcode]
		require.True(t, known, "no other opcode for %s", opcode)
		try(opcode+" → "+other, kernel[:m[2]]+other+kernel[m[3]:])
		for i, r := range register.FindAllStringSubmatchIndex(operands, -1) {
			// Its neighbour: a register of the kind with another value, or none yet.
			name, kind, number := operands[r[0]:r[1]], operands[r[2]:r[3]], operands[r[4]:r[5]]
			neighbour := fmt.Sprintf("%%%s%d", kind, map[bool]int{true: 2, false: 1}[number == "1"])
			try(fmt.Sprintf("%s%s, operand %d: %s → %s", opcode, operands, i, name, neighbour),
				kernel[:m[4]]+operands[:r[0]]+neighbour+operands[r[1]:]+kernel[m[5]:])
		}
	}
	require.Greater(t, tried, 50)
	// Changes that leave the meaning as it is, each for the reason given.
	equivalent := []string{
		"ld.param.u32 → ld.param.f32", // a load moves bits
	}
	for _, s := range equivalent {
		survived = slices.DeleteFunc(survived, func(v string) bool { return v == s })
	}
	require.Empty(t, survived, "changed kernels that still give the right sum")
}

// addWith adds vectors with the kernel; "" is the right result, otherwise what went wrong.
func addWith(t *testing.T, l *lib, ptx string) (verdict string) {
	t.Run("", func(t *testing.T) {
		const n = 200
		d := l.newContext(t, 0)
		module, log, err := d.compile(ptx)
		if err != nil {
			require.Equal(t, invalidPTX, err)
			require.Regexp(t, `line \d+`, log)
			verdict = log
			return
		}
		f, err := d.kernel(module, "vectoradd")
		require.NoError(t, err)
		a, b, poison := make1(n, func(i int) float32 { return float32(i) + 1 }), make1(n, func(i int) float32 { return float32(i * i) }), make([]float32, n+56)
		for i := range poison {
			poison[i] = -1
		}
		t.Setenv("GPUSIM_INSTRUCTION_LIMIT", "1000000")
		out := put(d, poison)
		if err := d.launch(f, shape{gx: 2, bx: 128}, put(d, a), put(d, b), out, new(int32(n))); err != nil {
			require.Contains(t, []error{illegalAddress, misaligned, launchFailed, illegalInstr, timeout}, err)
			verdict = err.Error()
			return
		}
		got := get[float32](d, out, n+56)
		for i, v := range got {
			want := float32(-1)
			if i < n {
				want = a[i] + b[i]
			}
			if v != want {
				verdict = fmt.Sprintf("element %d is %v", i, v)
				return
			}
		}
	})
	return verdict
}
