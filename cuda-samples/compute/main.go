// Compute measures how fast a GPU multiplies and adds, fp32 on its ordinary units and
// bf16 on its tensor cores, and verifies the results.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

func main() { os.Exit(sample.Main(compute())) }

func compute() sample.Sample {
	var only []string
	return sample.Sample{
		Name: "compute",
		About: `Measures how many operations a second a GPU does: fp32 (fused multiply-adds on
all multiprocessors) and bf16 (mma.sync on tensor cores, compute capability 8.0
and newer), and checks every thread's result.`,
		Examples: []sample.Example{{Command: "compute --only bf16", Meaning: fmt.Sprintf("only bf16; exit code %d where the device lacks it", sample.ExitNotPossible)}},
		Flags: func(f *pflag.FlagSet) {
			f.StringSliceVar(&only, "only", nil, "fp32 or bf16; default: all that the device has")
		},
		Check: func() error {
			for _, name := range only {
				if name != "fp32" && name != "bf16" {
					return fmt.Errorf("--only is %q: it must be fp32 or bf16", name)
				}
			}
			return nil
		},
		Run: func(ctx context.Context, r *sample.Run) error {
			isWanted := func(name string) bool { return len(only) == 0 || slices.Contains(only, name) }
			return measureThroughput(ctx, r, isWanted)
		},
	}
}
