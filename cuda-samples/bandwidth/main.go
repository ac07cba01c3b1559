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

// Default sizes of a copy, and the largest that --bytes may set.
const (
	usualBytes     = 1 << 30
	simulatedBytes = 256 << 10
	maxBytes       = 16 << 30 // a checking kernel reports the index of a word of 4 bytes in 32 bits
)

func bandwidth() sample.Sample {
	var bytes sample.Bytes
	var peers bool
	var given func(flag string) bool
	return sample.Sample{
		Name: "bandwidth",
		About: `Measures how fast a GPU's memory is (copy: read and written; triad: two numbers
read, one written), its link to the host both ways (pinned memory), and, if
more than one GPU is visible, the link between each two, and checks every word.`,
		Examples: []sample.Example{
			{Command: "bandwidth --device 0 --peers", Meaning: "GPU 0, and the links between all pairs of GPUs"},
		},
		Flags: func(f *pflag.FlagSet) {
			f.Var(&bytes, "bytes", "size of each copy, up to 16Gi; a quarter of it over the host link and between GPUs (default: 1Gi, or an eighth of the free memory; 256Ki on a simulated GPU)")
			f.BoolVar(&peers, "peers", false, "measure between all pairs of visible GPUs, too (default: yes without --device, no with it)")
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
