// Vectoradd adds two vectors on a GPU and verifies every sum. It is the smallest proof
// that driver, libraries, device nodes and GPU work together.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// maxElements keeps the kernel's int index from overflowing.
const maxElements = 1 << 30

func main() { os.Exit(sample.Main(vectoradd())) }

func vectoradd() sample.Sample {
	var elements int
	return sample.Sample{
		Name:  "vectoradd",
		About: "Adds two vectors on a GPU and checks every element of the sum.",
		Flags: func(f *pflag.FlagSet) { f.IntVar(&elements, "elements", 50000, "how many elements") },
		Check: func() error {
			if elements < 1 || elements > maxElements {
				return fmt.Errorf("--elements is %d: it must be from 1 to %d", elements, maxElements)
			}
			return nil
		},
		Run: func(_ context.Context, r *sample.Run) error { return add(r, elements) },
	}
}
