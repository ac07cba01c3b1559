package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/simulator/profile"
)

// options are the options of the command line.
type options struct {
	profile  string
	gpus     int
	breaks   string
	simulate bool // a simulated driver even on a machine with a GPU
	output   string
	verbose  bool
	timeout  time.Duration
	help     bool
}

// breakages are the failures that --break can cause, and their symptoms.
var breakages = []struct{ name, what string }{
	{"driver", "the driver's library and kernel module differ in version"},
	{"cdi", "the folder for CDI specs is read-only"},
	{"memory", "a bit of one GPU's memory is stuck"},
	{"permission", "the container may not open its device nodes"},
}

func parse(args []string) (options, error) {
	var o options
	f := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.profile, "profile", "h100-sxm", "simulated node; `NAME` as `gpusim profiles` lists it")
	f.IntVar(&o.gpus, "gpus", 0, "simulated GPUs; 0: as many as the profile has")
	f.StringVar(&o.breaks, "break", "", "see a failure: driver, cdi, memory or permission")
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show what the programs log")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "give up after this long")
	f.BoolVarP(&o.help, "help", "h", false, "show this help")
	f.Usage = func() {}
	if err := cmdline.Parse(f, args); err != nil {
		return o, cmdline.AddHelp(err, "demo")
	}
	o.simulate = f.Changed("profile") || f.Changed("gpus") || f.Changed("break")
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; see demo --help", f.Arg(0))
	}
	if o.output != "text" && o.output != "json" {
		return o, fmt.Errorf("--output %q: must be text or json", o.output)
	}
	if o.breaks != "" && !slices.ContainsFunc(breakages, func(b struct{ name, what string }) bool { return b.name == o.breaks }) {
		return o, fmt.Errorf("--break %q: must be driver, cdi, memory or permission", o.breaks)
	}
	if o.help {
		help(f)
		return o, nil
	}
	if o.timeout <= 0 {
		return o, fmt.Errorf("--timeout %v: must be above 0", o.timeout)
	}
	p, err := profile.Load(o.profile)
	if err != nil {
		return o, fmt.Errorf("--profile: %w", err)
	}
	if o.gpus < 0 || o.gpus > len(p.GPUs) {
		return o, fmt.Errorf("--gpus %d: profile %s has 1 to %d GPUs", o.gpus, o.profile, len(p.GPUs))
	}
	return o, nil
}

func help(f *pflag.FlagSet) {
	var b strings.Builder
	b.WriteString(`demo: watch a GPU travel from the driver to a CUDA job, on a private node.

Usage:
  make demo [DEMO_ARGS="..."]
  bin/demo [flags]

Where NVML finds a GPU, the machine's own driver is used; elsewhere, and with
--profile, --gpus or --break, a simulated one. Then every result says (SIMULATED).

Examples:
  make demo
  make demo DEMO_ARGS="--profile dgx-2"
  bin/demo --break memory        # what a GPU with bad memory looks like
  bin/demo -o json

Flags:
`)
	b.WriteString(f.FlagUsagesWrapped(100))
	b.WriteString("\nFailures that --break can cause:\n")
	for _, br := range breakages {
		fmt.Fprintf(&b, "  %-12s %s\n", br.name, br.what)
	}
	b.WriteString("\nExit codes:\n  0    the CUDA job passed\n  1    it did not: the step, the reason and what to do are the last lines\n  2    bad usage\n  130  interrupted\n")
	fmt.Fprint(os.Stdout, b.String())
}
