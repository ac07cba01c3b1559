// Reduction sums many numbers on a GPU and finds the largest. It proves that shared
// memory and barriers work; vectoradd does not use them.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

// maxElements keeps the kernel's int from overflowing.
const maxElements = 1 << 30

// Default numbers of elements. A launch has at most threads × maxBlocks = 2^17 threads.
const (
	usualElements     = 1 << 24 // 128 for each thread
	simulatedElements = 1 << 18 // 2 for each thread, so that the simulator is done soon
)

func main() { os.Exit(sample.Main(reduction())) }

func reduction() sample.Sample {
	var elements int
	return sample.Sample{
		Name: "reduction",
		About: `Sums numbers on a GPU and finds the largest, through shared memory and barriers,
for several sizes. Every block's result is compared bit for bit with the CPU's.`,
		Flags: func(f *pflag.FlagSet) {
			f.IntVar(&elements, "elements", 0, fmt.Sprintf("the largest of the sizes (default: %d; with a simulated driver %d)", usualElements, simulatedElements))
		},
		Check: func() error {
			if elements < 0 || elements > maxElements { // 0 is the default
				return fmt.Errorf("--elements is %d: it must be from 1 to %d", elements, maxElements)
			}
			return nil
		},
		Run: func(_ context.Context, r *sample.Run) error { return reduce(r, elements) },
	}
}
