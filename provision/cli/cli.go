// Package cli is the command line of gpu-provision.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/report"
)

// Exit codes beside those of every program. They are documented in --help and are a contract.
const (
	exitPartial = 3
	exitNothing = 4
)

const usage = `gpu-provision measures the time from the request for a node to a running GPU workload.

Usage:
  gpu-provision measure            request GPUs repeatedly and record when each step was reached
  gpu-provision report FILE...     show a report: table, JSON, CSV, SVG or page (two side by side)
  gpu-provision compare A B        ratios of two reports, with confidence intervals
  gpu-provision history FILE...    one line for each of many reports
  gpu-provision cleanup            remove what a killed run has left in the cluster
  gpu-provision steps              the steps, and what in the API shows each
  gpu-provision version            of this program
  gpu-provision completion SHELL   a script that completes command lines: bash, zsh or fish
  gpu-provision COMMAND --help     flags and examples of a command
`

const exitCodes = `
Exit codes:
  0  done
  1  the cluster could not be asked, or something else failed
  2  bad usage
  3  measure: the report is partial, or no sample is complete; it says why
  4  compare: the reports have nothing in common
`

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "gpu-provision", Help: usage + exitCodes,
		Commands: []program.Command{
			{Name: "measure", Run: runMeasure},
			{Name: "report", Run: runReport},
			{Name: "compare", Run: runCompare},
			{Name: "history", Run: runHistory},
			{Name: "cleanup", Run: runCleanup},
			{Name: "steps", Run: runSteps},
		},
	}.Run(ctx, args, stdout, stderr)
}

// clusterFlags adds the flags that select the cluster.
func clusterFlags(f *program.Flags, w *cluster.Options) {
	f.StringVar(&w.Kubeconfig, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, ~/.kube/config, in a pod its own)")
	f.StringVar(&w.Context, "context", "", "which of its contexts (default: the current one)")
	f.DurationVar(&w.Timeout, "request-timeout", 15*time.Second, "how long an answer of the API server is waited for")
}

func connectCluster(w cluster.Options) (*cluster.Client, error) {
	if w.Timeout <= 0 {
		return nil, program.UsageErrorf("--request-timeout is %v; it must be above 0", w.Timeout)
	}
	c, err := cluster.New(w)
	if err != nil {
		return nil, program.UsageErrorf("%w", err)
	}
	return c, nil
}

// checkOutput rejects an output format that is not among known.
func checkOutput(output string, known ...string) error {
	if !slices.Contains(known, output) {
		return program.UsageErrorf("--output is %q; it must be one of %s", output, strings.Join(known, ", "))
	}
	return nil
}

// readReport reads a report from a file; "-" is standard input.
func readReport(name string) (*report.Report, error) {
	if name == "-" {
		return report.Read(os.Stdin, "standard input")
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return report.Read(f, name)
}

func readReports(names []string) ([]*report.Report, error) {
	all := make([]*report.Report, len(names))
	for i, name := range names {
		r, err := readReport(name)
		if err != nil {
			return nil, err
		}
		all[i] = r
	}
	return all, nil
}

// writeFile writes a file whole or not at all.
func writeFile(path string, mode os.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // fails if the file was renamed
	}()
	if err := write(f); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}
