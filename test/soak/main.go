// Command soak exposes the built device plugin to everything that happens on nodes, at once and at
// random: GPUs that break, vanish and return, MIG layouts and configurations that change, kubelets
// that restart, pods that come and go. A model of the devices that the plugin should serve
// (truth.go) is compared with the served ones all the while.
//
// A seed, which is printed, determines the events. Their times depend on the machine, so the same
// seed gives the same events at different times.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitFailed = 1 // the plugin misbehaved, or could not be run
	exitUsage  = 2
)

func main() {
	o := options{out: os.Stdout}
	flags := pflag.NewFlagSet("soak", pflag.ContinueOnError)
	flags.DurationVar(&o.duration, "duration", 30*time.Minute, "how long to make events")
	flags.DurationVar(&o.calm, "calm", 2*time.Minute, "time between pauses; in a pause nothing happens until exactly the expected devices are served")
	flags.DurationVar(&o.settle, "settle", 45*time.Second, "how long the served devices may differ from the expected ones")
	flags.DurationVar(&o.pace, "pace", 5*time.Second, "the longest time between two events of a GPU")
	flags.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano())&0xffffffff, "seed of the random events; the seed of a run repeats its events")
	flags.StringVar(&o.profile, "profile", "h100-sxm", "the simulated machine")
	flags.IntVar(&o.gpus, "gpus", 8, "number of GPUs of the simulated machine")
	if err := flags.Parse(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(exitUsage)
	}
	if o.bin = os.Getenv("GPUREADY_BIN"); o.bin == "" {
		fmt.Fprintln(os.Stderr, "soak: GPUREADY_BIN must name the folder of the built programs; run make soak")
		os.Exit(exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(exitFailed) //nolint:gocritic // nothing is left to stop
	}
}
