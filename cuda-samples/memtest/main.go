// Memtest writes patterns to a GPU's memory and reads them back. It finds bits that are
// stuck, flip or respond to a wrong address, and reports where.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/cuda-samples/internal/sample"
)

func main() { os.Exit(sample.Main(memtest())) }

// options are the flags of memtest.
type options struct {
	share    float64      // of the memory that is free
	bytes    sample.Bytes // 0: by share
	patterns []string     // nil: all
	seed     uint32       // of the random patterns
	host     bool         // the host reads the memory, too
}

func memtest() sample.Sample {
	var o options
	var hostGiven, shareGiven func() bool
	return sample.Sample{
		Name: "memtest",
		About: `Writes patterns to a GPU's memory, all of it before the first word is read back,
and names each word that came back wrong, by its address in the device's memory.
What other processes use is not tested.`,
		Examples: []sample.Example{
			{Command: "memtest --bytes 4Gi", Meaning: "test 4 GiB of it"},
			{Command: "memtest --patterns address,random", Meaning: "only these patterns"},
		},
		Flags: func(f *pflag.FlagSet) {
			f.Float64Var(&o.share, "share", 0.9, "how much of the free memory, up to 1; on a simulated GPU "+simulatedBytes.String()+" unless --bytes is set")
			f.Var(&o.bytes, "bytes", "test this much instead of a share: 256Mi, 4Gi")
			f.StringSliceVar(&o.patterns, "patterns", nil, "some of "+patternNames()+" (default: all)")
			f.Uint32Var(&o.seed, "seed", 1, "seed of the random numbers")
			f.BoolVar(&o.host, "host", false, "the host reads the memory and compares, too, over the host link (default: only with a simulated GPU)")
			shareGiven = func() bool { return f.Changed("share") }
			hostGiven = func() bool { return f.Changed("host") }
		},
		Check: func() error { return o.check() },
		Run: func(ctx context.Context, r *sample.Run) error {
			d, err := r.Open()
			if err != nil {
				return err
			}
			of := o
			if r.Simulated() {
				of.host = of.host || !hostGiven()
				if of.bytes == 0 && !shareGiven() {
					of.bytes = simulatedBytes
				}
			}
			return test(ctx, r, d, of)
		},
	}
}

// simulatedBytes is the size of the test on a simulated GPU, which is slow and equally
// healthy everywhere.
var simulatedBytes = sample.Bytes(256 << 10)

func (o *options) check() error {
	if o.share <= 0 || o.share > 1 {
		return fmt.Errorf("--share is %v: it must be above 0 and at most 1", o.share)
	}
	if o.bytes != 0 && o.bytes < grain {
		return fmt.Errorf("--bytes is %v: it must be at least %d", &o.bytes, grain)
	}
	for _, name := range o.patterns {
		if !isPattern(name) {
			return fmt.Errorf("--patterns has %q: it must be of %s", name, patternNames())
		}
	}
	if o.patterns != nil && len(o.patterns) == 0 {
		return errors.New("--patterns is empty")
	}
	return nil
}
