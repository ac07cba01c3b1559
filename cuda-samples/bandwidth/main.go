// Bandwidth measures how fast a GPU's memory, its host link and the links to other
// GPUs are, and verifies the copied data.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

func main() { os.Exit(sample.Main(bandwidth())) }

// Sizes of a copy, unless --bytes says otherwise.
const (
	usualBytes     = 1 << 30
	simulatedBytes = 256 << 10
	maxBytes       = 16 << 30 // an index of a word has 32 bits
)

func bandwidth() sample.Sample {
	var bytes sample.Bytes
	var peers bool
	var given func(flag string) bool
	return sample.Sample{
		Name: "bandwidth",
		About: `Measures how fast a GPU's memory is (copy: read and written; triad: two numbers
read, one written), its link to the host both ways (pinned memory), and, where
more than one GPU is visible, the road between each two, and checks every word.`,
		Examples: []sample.Example{
			{Command: "bandwidth --peers", Meaning: "all pairs of GPUs, even if --device chooses one"},
		},
		Flags: func(f *pflag.FlagSet) {
			f.Var(&bytes, "bytes", "size of each copy, up to 16Gi; a quarter of it over the host link and between GPUs (default: 1Gi, or an eighth of the free memory; 256Ki on a simulated GPU)")
			f.BoolVar(&peers, "peers", false, "measure between all visible GPUs, too (default: unless --device chooses one)")
			given = f.Changed
		},
		Check: func() error {
			if bytes != 0 && (bytes < 64<<10 || bytes > maxBytes) {
				return fmt.Errorf("--bytes is %v: it must be from 64Ki to 16Gi", &bytes)
			}
			return nil
		},
		Run: func(ctx context.Context, r *sample.Run) error {
			pairs := peers
			if !given("peers") {
				pairs = !given("device")
			}
			return measure(ctx, r, uint64(bytes), pairs)
		},
	}
}
