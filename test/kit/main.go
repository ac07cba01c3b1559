// Program gpu-kit proves gpuready on a bare Linux machine with a GPU, without a network: it brings up a cluster of one
// node that has the machine's own GPUs, installs gpuready by its manifests, uses the GPUs as jobs do, breaks what can
// be broken, and writes a page with what it saw.
//
// `make gpu-kit` packs it with all that it needs into one file (package pack), which unpacks itself (package starter).
// The cluster is the tests' own (test/lab/cluster).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/kit/nvml"
	"github.com/gpuready/gpuready/test/lab/cluster"
	"github.com/gpuready/gpuready/test/lab/faultykernel"
)

const usage = `Prove gpuready on this machine's own GPUs, without a network.

It brings up Kubernetes with one node, installs gpuready by its manifests, and runs
and breaks jobs on the GPUs, which must have nothing else to do. All of it is in
memory, about 2 GB, and gone at its end. It needs root and, in a container,
--privileged --cgroupns=host.

Usage:
  gpu-kit [flags]

Flags:
`

const codes = `
Exit codes: 0 all steps passed, or could not be done here; 1 a step failed; 2 wrong use
`

type options struct {
	out      string
	output   string
	simulate string
	limit    time.Duration
}

func main() {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	if len(os.Args) > 1 && os.Args[1] == inside {
		if err := runInside(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "gpu-kit:", err)
			os.Exit(1)
		}
		return
	}
	o := options{}
	flags := pflag.NewFlagSet("gpu-kit", pflag.ContinueOnError)
	flags.Usage = func() { fmt.Print(usage, flags.FlagUsages(), codes) }
	flags.StringVar(&o.out, "out", ".", "folder for the page, gpu-kit.md, and the same as gpu-kit.json")
	flags.StringVarP(&o.output, "output", "o", "text", "text or json: what to print at the end")
	flags.StringVar(&o.simulate, "simulate", "", "folder with the simulated driver's image and manifest, instead of a GPU")
	flags.DurationVar(&o.limit, "timeout", 8*time.Minute, "time limit of all steps together")
	err := flags.Parse(os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("%.100q is no flag", flags.Arg(0))
	case err == nil && o.output != "text" && o.output != "json":
		err = fmt.Errorf("--output: %.100q is neither text nor json", o.output)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "gpu-kit: %v; see gpu-kit --help\n", err)
		os.Exit(2)
	}
	passed, err := prove(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-kit:", err)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

// prove runs all steps, and writes the page.
func prove(o options) (passed bool, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	limited, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	k := &kit{options: o, dir: filepath.Dir(self), report: report{Began: time.Now().UTC()}}
	k.run(limited)
	k.report.Seconds = time.Since(k.report.Began).Seconds()
	if err := k.report.write(o.out); err != nil {
		return false, err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return k.report.hasPassed(), encoder.Encode(k.report)
	}
	fmt.Printf("%s: %s\n", filepath.Join(o.out, pageName+".md"), k.report.summary())
	return k.report.hasPassed(), nil
}

// inside is the command by which the kit runs itself on the node.
const inside = "inside-kit"

// runInside does on the node what needs the driver: it reads NVML, sets the compute mode, or runs a faulty kernel.
func runInside(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "read":
		times, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		m, err := nvml.Read(times)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(m)
	case len(args) == 2 && args[0] == "mode":
		mode, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil {
			return err
		}
		return nvml.SetMode(uint32(mode))
	case len(args) == 1 && args[0] == "fault":
		return faultykernel.Run()
	}
	return fmt.Errorf("%q is no command", args)
}
