package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/preflight"
	"github.com/gpuready/gpuready/validator/report"
)

// Exit codes of preflight, by the worst verdict.
var preflightCodes = map[preflight.Verdict]int{
	preflight.OK: program.OK, preflight.Unhealthy: 40, preflight.Wrong: 41, preflight.Slow: 42, preflight.NotRun: 43,
}

const preflightUsage = `Check within seconds whether every GPU of this node is healthy, correct, and as fast
as it should be, and name each GPU that is not by UUID, PCI address and slot.
It reads memory errors, throttled clocks, PCIe link, NVLinks and XIDs from NVML; then
vectoradd, reduction, gemm, bandwidth, memtest and compute run on all
GPUs and MIG devices at once. The GPUs should have nothing else to do.

The exit code is 40 where a GPU is unhealthy, else 41 where one computes or
stores wrong values, else 42 where one is slow, else 43 where some checks could not run;
10 where the driver is not ready.

Examples:
  gpu-validator preflight
  gpu-validator preflight --html gpus.html       a page with bars and the matrix of peers
  gpu-validator preflight -o junit > gpus.xml    a job in CI
  gpu-validator preflight --thresholds ours.yaml --timeout 30s
`

// preflightOptions holds the flags of preflight only.
type preflightOptions struct {
	format, html, thresholds, results string
	timeout                           time.Duration
}

func (p *preflightOptions) addFlags(o *options) {
	f := o.flags
	f.StringVarP(&p.format, "output", "o", "text", "text, json or junit")
	f.StringVar(&p.html, "html", "", "also write an HTML page to this file")
	f.DurationVar(&p.timeout, "timeout", 10*time.Second, "time limit of the preflight")
	f.StringVar(&p.thresholds, "thresholds", "", "a file that overrides the table of expected figures (docs/preflight.md)")
	f.StringVar(&p.results, "results-dir", "/var/lib/gpuready/preflight", "folder of earlier results for comparison, on the host; empty: none are stored")
	f.StringVar(&o.hostRoot, "host-root", "/", "where the host's root is seen")
	f.StringVar(&o.stateDir, "state-dir", "/run/nvidia/gpuready", "folder of the components' states, on the host")
	for flag, variable := range map[string]string{
		"output": "PREFLIGHT_OUTPUT", "html": "PREFLIGHT_HTML", "timeout": "PREFLIGHT_TIMEOUT", "thresholds": "PREFLIGHT_THRESHOLDS",
		"results-dir": "PREFLIGHT_RESULTS_DIR", "host-root": "HOST_ROOT", "state-dir": "GPUREADY_STATE_DIR",
	} {
		o.bindEnv(flag, variable)
	}
}

func (p *preflightOptions) verify() error {
	switch {
	case !slices.Contains(report.Formats(), p.format):
		return program.UsageErrorf("--output %q: want text, json or junit", p.format)
	case p.timeout < 2*time.Second:
		return program.UsageErrorf("--timeout %v: want 2s or more", p.timeout)
	case p.results != "" && !filepath.IsAbs(p.results):
		return program.UsageErrorf("--results-dir %q: want an absolute path", p.results)
	}
	return nil
}

func runPreflight(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := command("preflight", preflightUsage, stdout)
	p := &preflightOptions{}
	p.addFlags(o)
	o.addDriverFlags()
	rest, err := o.parse(args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return program.UsageErrorf("preflight takes no arguments, have %q", rest[0])
	}
	if err := p.verify(); err != nil {
		return err
	}
	table, err := preflight.LoadThresholds(p.thresholds)
	if err != nil {
		return program.WithExitCode(program.Usage, err)
	}
	node, err := o.node()
	if err != nil {
		return err
	}
	defer func() { _ = node.Root.Close() }()
	host, err := nodeName()
	if err != nil {
		return err
	}
	r, outcome := preflight.Run(ctx, preflight.Options{
		Node: node, Host: host, Version: version.String(), Table: table, Find: findSample, Timeout: p.timeout,
		Progress: func(phase string) { fmt.Fprintln(stderr, "gpu-validator: preflight:", phase) },
	})
	if ctx.Err() != nil {
		return errors.New("preflight was interrupted")
	}
	if outcome.Kind != check.Passed {
		outcome.Layer = readiness.Driver
		rep := report.Report{Node: host, Version: version.String(), Time: time.Now(), Outcomes: []check.Outcome{outcome}}
		return errors.Join(rep.Write(stdout, p.format, isTerminal(stdout)), failureError(rep))
	}
	if s, err := node.State(nodestate.DevicePlugin); err == nil && s.DevicePlugin != nil && s.DevicePlugin.Serve == nodestate.ServeDRA {
		r.Notes = append(r.Notes, "pods get these GPUs by ResourceClaims; this looks at the host's GPUs and makes no claim, so that pods with claims may have used them meanwhile")
	}
	return p.report(r, node, stdout, stderr)
}

// report compares the result with earlier ones, stores it, and shows it. It is shown even if
// it cannot be stored.
func (p *preflightOptions) report(r preflight.Result, node check.Node, stdout, stderr io.Writer) error {
	if p.results != "" {
		dir := node.Root.Path(p.results)
		past, err := preflight.ReadHistory(dir)
		if err == nil {
			preflight.CompareHistory(&r, past)
			err = preflight.WriteHistory(dir, r)
		}
		if err != nil {
			fmt.Fprintf(stderr, "gpu-validator: preflight: %v; name a folder that can be written to with --results-dir\n", err)
		}
	}
	if err := report.WritePreflight(stdout, r, p.format, isTerminal(stdout)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return errors.Join(verdictError(r), p.page(r))
}

// page writes the HTML report of --html, if the flag is set.
func (p *preflightOptions) page(r preflight.Result) error {
	if p.html == "" {
		return nil
	}
	var page bytes.Buffer
	err := report.WritePreflightHTML(&page, r)
	if err == nil {
		err = record.Write(p.html, page.Bytes())
	}
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// verdictError returns an error with the worst finding, nil if all is well.
func verdictError(r preflight.Result) error {
	g, f := r.Worst()
	if f == nil {
		return nil
	}
	name := r.Node
	if g != nil {
		name = g.Name()
	}
	return program.WithExitCode(preflightCodes[r.Verdict], fmt.Errorf("preflight: %s is %s: %s: %s; %s", name, f.Verdict, f.Reason, f.Message, f.Action))
}
