package cudatest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A second opinion: NVIDIA's own assembler (Debian's nvidia-cuda-toolkit, named
// in PTXAS) must take every instruction that we test, for the newest GPU it knows.
func TestPTXASTakesWhatWeTest(t *testing.T) {
	ptxas := os.Getenv("PTXAS")
	if ptxas == "" {
		t.Skip("PTXAS does not name NVIDIA's ptxas")
	}
	dir := t.TempDir()
	assemble := func(t *testing.T, ptx string) {
		source := filepath.Join(dir, "k.ptx")
		require.NoError(t, os.WriteFile(source, []byte(ptx), 0o644))
		out, err := exec.Command(ptxas, "-arch=sm_90", source, "-o", filepath.Join(dir, "k.cubin")).CombinedOutput()
		require.NoError(t, err, "%s\n%s", out, ptx)
	}
	for _, c := range isa {
		t.Run(c.op, func(t *testing.T) { assemble(t, isaKernel(c.op, c.kinds)) })
	}
	for _, c := range readISA(t) {
		if c.since > "7.8" { // ptxas 11.8 knows no more
			continue
		}
		t.Run(c.opcode+" "+c.operands, func(t *testing.T) {
			for _, one := range expand(c.opcode + " " + c.operands) {
				assemble(t, c.kernel(cmp.Or(c.until, "7.8"), one))
			}
		})
	}
	for _, k := range []int{8, 16} {
		t.Run(fmt.Sprintf("mma k=%d", k), func(t *testing.T) { assemble(t, mmaKernel(k)) })
	}
	for name, c := range otherMMA {
		t.Run(name, func(t *testing.T) { assemble(t, c.kernel()) })
	}
	for compiler, ptx := range compilers(t) {
		t.Run(compiler, func(t *testing.T) { assemble(t, ptx) })
	}
}
