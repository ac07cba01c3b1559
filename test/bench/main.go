// Command bench measures what users wait for, with the built programs: start to
// the first device list, Allocate, each step of the demo, and the speed of the
// simulator's PTX interpreter; and how quickly and how well GPUs are chosen. Machines are noisy: it prints minimum, median and
// 99th percentile, and tests carry no figures.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	starts := pflag.Int("starts", 20, "starts of the device plugin")
	allocations := pflag.Int("allocations", 2000, "allocations")
	demos := pflag.Int("demos", 5, "runs of the demo, which needs root")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *starts, *allocations, *demos); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench holds where things are.
type bench struct {
	bin string // the built programs
	tmp string
}

func run(ctx context.Context, starts, allocations, demos int) error {
	b := &bench{bin: os.Getenv("GPUREADY_BIN")}
	if b.bin == "" {
		return errors.New("GPUREADY_BIN must name the folder of the built programs; run make bench")
	}
	var err error
	if b.tmp, err = os.MkdirTemp("", "gpuready-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.tmp)
	fmt.Printf("%s/%s, %d processors, %s\n\n%-58s %6s %10s %10s %10s\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), "seconds", "runs", "min", "median", "p99")
	for _, part := range []struct {
		name string
		run  func() error
	}{
		{"device plugin", func() error { return b.plugin(ctx, starts, allocations) }},
		{"preferred allocation", func() error { return b.preferred(ctx, allocations) }},
		{"demo", func() error { return b.demo(ctx, demos) }},
		{"traces", func() error { return b.traces(ctx) }},
		{"interpreter", func() error { return b.interpreter(ctx) }},
	} {
		if err := part.run(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// show prints one row.
func show(name string, samples []time.Duration) {
	if len(samples) == 0 {
		return
	}
	slices.Sort(samples)
	at := func(q float64) float64 { return samples[int(q*float64(len(samples)-1)+0.5)].Seconds() }
	fmt.Printf("%-58s %6d %10.6f %10.6f %10.6f\n", name, len(samples), at(0), at(0.5), at(0.99))
}

func (b *bench) program(name string) string { return filepath.Join(b.bin, name) }
