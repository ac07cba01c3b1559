package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/version"
)

var (
	errDone    = errors.New("nothing more to do") // after --help or --version
	errTimeout = errors.New("no result in time; a GPU that hangs needs a reset: look for Xid lines in dmesg, or give more time with --timeout")
)

// maxElements keeps the kernel's int index from overflowing.
const maxElements = 1 << 30

type options struct {
	elements int
	device   string
	json     bool
	timeout  time.Duration // of each run
	duration time.Duration
	every    time.Duration
}

const help = `Adds two vectors on a GPU and checks every element of the sum.

Usage:
  vectoradd                                  on the first GPU that CUDA sees
  vectoradd --device GPU-7c9d…               on that one
  CUDA_VISIBLE_DEVICES=MIG-3f… vectoradd     on that MIG device
  vectoradd -o json                          for programs
  vectoradd --for 1h --every 10s             again and again, until the first failure

Flags (each also by the environment variable in brackets; the command line wins):
%s
Exit codes: 0 passed; 1 a call of the driver failed; 2 wrong usage; 3 a wrong
result, whose first element is named; 4 no result in time, or interrupted.
`

func parse(args []string, env func(string) string, stdout io.Writer) (options, error) {
	var o options
	var output string
	var wantHelp, wantVersion bool
	f := pflag.NewFlagSet("vectoradd", pflag.ContinueOnError)
	f.Usage = func() {}
	f.SortFlags = false
	f.IntVar(&o.elements, "elements", 50000, "how many elements [VECTORADD_ELEMENTS]")
	f.StringVar(&o.device, "device", "", "index or UUID among the visible devices (default: the first) [VECTORADD_DEVICE]")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "give up on a run after this long [VECTORADD_TIMEOUT]")
	f.DurationVar(&o.duration, "for", 0, "run again and again for this long [VECTORADD_FOR]")
	f.DurationVar(&o.every, "every", time.Second, "time between the runs of --for [VECTORADD_EVERY]")
	f.StringVarP(&output, "output", "o", "text", "text, or json: result, device and seconds of each phase [VECTORADD_OUTPUT]")
	f.BoolVarP(&wantHelp, "help", "h", false, "this text")
	f.BoolVar(&wantVersion, "version", false, "the version")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if wantHelp {
		fmt.Fprintf(stdout, help, f.FlagUsages())
		return o, errDone
	}
	if wantVersion {
		fmt.Fprintln(stdout, "vectoradd", version.String())
		return o, errDone
	}
	for flag, name := range map[string]string{
		"elements": "VECTORADD_ELEMENTS", "device": "VECTORADD_DEVICE",
		"timeout": "VECTORADD_TIMEOUT", "output": "VECTORADD_OUTPUT",
		"for": "VECTORADD_FOR", "every": "VECTORADD_EVERY",
	} {
		if v := env(name); v != "" && !f.Changed(flag) {
			if err := f.Set(flag, v); err != nil {
				return o, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	o.json = output == "json"
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case output != "json" && output != "text":
		return o, fmt.Errorf("--output is %q: it must be text or json", output)
	case o.elements < 1 || o.elements > maxElements:
		return o, fmt.Errorf("--elements is %d: it must be from 1 to %d", o.elements, maxElements)
	case o.timeout <= 0:
		return o, fmt.Errorf("--timeout is %v: it must be positive", o.timeout)
	case o.duration < 0 || o.every < 0:
		return o, fmt.Errorf("--for is %v, --every is %v: they must not be negative", o.duration, o.every)
	}
	return o, nil
}

func exitCode(err error) int {
	wrong := new(wrongError)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		return 3
	case errors.Is(err, errTimeout), errors.Is(err, context.Canceled):
		return 4
	}
	return 1
}
