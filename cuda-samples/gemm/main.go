// Gemm multiplies matrices on a GPU, in single precision and in the tensor cores, and
// verifies every element. It proves that a GPU multiplies matrices correctly;
// machine learning depends on it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// maxSide limits the size: the CPU computes the same product to compare, which is slow.
const maxSide = 8192

// size is the size of a product: A is m × k, B is k × n.
type size struct{ m, n, k int }

// Default sizes: one for a real GPU, and one that the simulator finishes quickly, with sides that are no
// multiple of the kernel's tile.
var (
	usual     = size{1024, 1024, 512}
	simulated = size{100, 72, 88}
)

func main() { os.Exit(sample.Main(gemm())) }

func gemm() sample.Sample {
	var asked size
	var only string
	return sample.Sample{
		Name: "gemm",
		About: `Multiplies matrices on a GPU: in single precision through shared memory (fp32), and
in the tensor cores (bf16, on compute capability 8.0 and newer). Products of whole
numbers must be right to the bit, those of fractions within the bound of rounding.`,
		Examples: []sample.Example{{Command: "gemm --only bf16", Meaning: "only the tensor cores"}},
		Flags: func(f *pflag.FlagSet) {
			f.IntVar(&asked.m, "m", 0, fmt.Sprintf("rows of A and C (default: %d; with a simulated driver %d)", usual.m, simulated.m))
			f.IntVar(&asked.n, "n", 0, fmt.Sprintf("columns of B and C (default: %d; with a simulated driver %d)", usual.n, simulated.n))
			f.IntVar(&asked.k, "k", 0, fmt.Sprintf("columns of A and rows of B (default: %d; with a simulated driver %d)", usual.k, simulated.k))
			f.StringVar(&only, "only", "", "fp32 or bf16 (default: all that the device has)")
		},
		Check: func() error { return check(asked, only) },
		Run:   func(_ context.Context, r *sample.Run) error { return runSample(r, asked, only) },
	}
}

func check(asked size, only string) error {
	for _, side := range []struct {
		name string
		n    int
	}{{"m", asked.m}, {"n", asked.n}, {"k", asked.k}} {
		if side.n < 0 || side.n > maxSide { // 0: the default
			return fmt.Errorf("--%s is %d: it must be from 1 to %d", side.name, side.n, maxSide)
		}
	}
	if only != "" && only != fp32 && only != bf16 {
		return fmt.Errorf("--only is %q: it must be fp32 or bf16", only)
	}
	return nil
}
