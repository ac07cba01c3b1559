package fault

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/gpuready/gpuready/test/lab/built"
)

// opposite maps each opcode to its replacement; "//" removes the instruction.
var opposite = map[string]string{
	"add.rn.f32": "sub.rn.f32", "fma.rn.f32": "//", "selp.f32": "fma.rn.f32", "mov.f32": "neg.f32", "setp.gt.f32": "setp.lt.f32",
	"add.s64": "sub.s64", "add.s32": "sub.s32", "and.b32": "or.b32", "or.b32": "and.b32", "sub.s32": "add.s32", "shl.b32": "shr.u32", "shl.b64": "shr.u64", "shr.s32": "shl.b32", "shr.u32": "shl.b32",
	"mad.lo.s32": "mad.hi.s32", "mul.lo.s32": "mul.hi.s32", "mul.lo.s64": "mul.hi.s64", "mul.wide.s32": "mul.wide.u16",
	"setp.ge.s64": "setp.lt.s64", "setp.lt.s64": "setp.ge.s64", "setp.gt.s32": "setp.le.s32", "setp.lt.s32": "setp.ge.s32",
	"setp.ge.s32": "setp.lt.s32", "setp.ne.s32": "setp.eq.s32", "setp.eq.s32": "setp.ne.s32",
	"and.pred": "or.pred", "or.pred": "and.pred", "not.pred": "mov.pred",
	"ld.global.f32": "ld.shared.f32", "ld.global.u32": "ld.shared.u32", "st.global.f32": "//", "ld.shared.f32": "ld.global.f32", "st.shared.f32": "//",
	"ld.param.u64": "ld.param.u32", "ld.param.u32": "ld.param.u8", "ld.param.s32": "ld.param.u8",
	"mov.u32": "not.b32", "mov.u64": "not.b64", "cvt.u32.u64": "cvt.u8.u64", "cvt.s64.s32": "cvt.u64.u8", "cvt.u64.u32": "cvt.u64.u8",
	"cvta.to.global.u64": "cvta.shared.u64", "bar.sync": "//", "bra": "//", "bra.uni": "//", "ret": "trap",
	"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "//",
}

var instruction = regexp.MustCompile(`(?m)^\t(@!?%p\d+ )?([a-z][a-z0-9_.]*)(.*);$`)

// Mutant is a kernel with one instruction replaced.
type Mutant struct {
	What string // "line 47: add.s64 %rd23, %rd23, %rd9 is sub.s64"
	PTX  string
}

// Mutants returns a change for each instruction of some PTX.
func Mutants(t testing.TB, ptx string) []Mutant {
	t.Helper()
	var all []Mutant
	for _, m := range instruction.FindAllStringSubmatchIndex(ptx, -1) {
		opcode := ptx[m[4]:m[5]]
		other, known := opposite[opcode]
		if !known {
			t.Fatalf("no other opcode for %s", opcode)
		}
		from := m[4]
		if other == "//" {
			from = m[0]
		}
		words := strings.Join(strings.Fields(ptx[m[0]:m[1]-1]), " ")
		all = append(all, Mutant{
			What: fmt.Sprintf("line %d: %s is %s", strings.Count(ptx[:m[0]], "\n")+1, words, other),
			PTX:  ptx[:from] + other + ptx[m[5]:],
		})
	}
	return all
}

// LoadDriver loads a simulated driver into this process, where its soname can then be found. It ends kernels
// that do not terminate.
func LoadDriver(t testing.TB, profile string) {
	t.Helper()
	libs, err := filepath.Glob(filepath.Join(built.DriverRoot(t, profile, "--gpus", "1"), "usr/lib/*/libcuda.so.1"))
	if err != nil || len(libs) != 1 {
		t.Fatalf("libcuda of the driver root: %v %v", libs, err)
	}
	// Set the C library's environment, which Go's os.Setenv does not change.
	var setenv func(name, value string, overwrite int32) int32
	purego.RegisterLibFunc(&setenv, purego.RTLD_DEFAULT, "setenv")
	setenv("GPUSIM_INSTRUCTION_LIMIT", "20000000", 1)
	if _, err := purego.Dlopen(libs[0], purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
		t.Fatal(err)
	}
}
