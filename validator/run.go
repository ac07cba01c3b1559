package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/term"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/report"
	"github.com/gpuready/gpuready/validator/step"
)

const runUsage = `Check the layers of this node once, report, and exit with the code of the first
that failed. Nothing is written on the node.

Examples:
  gpu-validator run
  gpu-validator run --layers driver,cuda     a machine without Kubernetes
  gpu-validator run -o junit > gpu.xml       a job in CI
  gpu-validator run --expect-gpus 8          a node with eight GPUs, all of them usable
`

func runOnce(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := command("run", runUsage, stdout)
	var names []string
	var format string
	var timeout time.Duration
	o.flags.StringSliceVar(&names, "layers", nil, "check only these layers, and always driver: driver,toolkit,cuda,plugin, or optional ones")
	o.flags.StringVarP(&format, "output", "o", "text", "text, json or junit")
	o.flags.DurationVar(&timeout, "timeout", 10*time.Minute, "for all layers together")
	expected := o.flags.Int("expect-gpus", 0, "fail unless at least this many GPUs are usable (default: one)")
	strict := o.flags.Bool("strict", false, "fail unless each GPU on the PCI bus or known to the driver is usable")
	o.bindEnv("expect-gpus", "EXPECT_GPUS")
	o.bindEnv("strict", "STRICT")
	o.bindEnv("layers", "LAYERS")
	o.bindEnv("output", "OUTPUT")
	o.bindEnv("timeout", "TIMEOUT")
	o.addPathFlags()
	o.addCheckFlags()
	rest, err := o.parse(args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return program.UsageErrorf("run takes no arguments; did you mean --layers %s?", rest[0])
	}
	if *expected < 0 {
		return program.UsageErrorf("--expect-gpus %d: want a number of GPUs from 1", *expected)
	}
	if !slices.Contains(report.Formats(), format) {
		return program.UsageErrorf("--output %q: want text, json or junit", format)
	}
	layers, err := parseLayers(names)
	if err != nil {
		return err
	}
	asked := slices.Concat(o.asked, layers)
	if layers != nil {
		layers = asked
	}
	node, err := o.node()
	if err != nil {
		return err
	}
	defer func() { _ = node.Root.Close() }()
	node.ExpectGPUs, node.Strict = *expected, *strict
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%v are over", timeout))
	defer cancel()

	r := step.WithUnwanted(step.NewPipeline(probe.Read, nil, asked))
	r.Begin = func(l readiness.Layer) { fmt.Fprintf(stderr, "gpu-validator: checking %s\n", l) }
	host, err := nodeName()
	if err != nil {
		return err
	}
	rep := report.Report{Node: host, Version: version.String(), Time: time.Now()}
	rep.Outcomes = r.Run(ctx, node, layers)
	if err := rep.Write(stdout, format, isTerminal(stdout)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return failureError(rep)
}

// failureError returns the error of the first layer that failed; nil if none did.
func failureError(rep report.Report) error {
	f := rep.Failed()
	if f == nil {
		return nil
	}
	return program.WithExitCode(exitCode(*f), fmt.Errorf("%s: %s: %s; %s", f.Layer, f.NotReady.Reason, f.NotReady.Message, f.NotReady.Action))
}

func exitCode(o check.Outcome) int {
	if o.NotReady.Reason == check.ReasonInterrupted {
		return program.Failed
	}
	return layerCodes[o.Layer]
}

func parseLayers(names []string) ([]readiness.Layer, error) {
	var layers []readiness.Layer
	for _, name := range names {
		l, err := readiness.ParseLayer(name)
		if err != nil {
			return nil, program.UsageErrorf("%w", err)
		}
		layers = append(layers, l)
	}
	return layers, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == ""
}
