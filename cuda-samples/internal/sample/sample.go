// Package sample is the framework of every CUDA sample: flags with environment variables,
// help, exit codes, the report, a time limit, repeated runs, and a progress line. A
// program defines a Sample, and its main is
//
//	func main() { os.Exit(sample.Main(newSample())) }
//
// The framework calls Sample.Run on a thread of its own, as CUDA keeps the current context by
// thread, and a call that hangs must not stop the time limit. Sample.Run calls Run.Open once
// for the device that --device names. While it works it calls Printf for people, EndPhase after
// each part (for its seconds), Progress within long parts, and Field, Figure, Peer and
// Note for the report. It returns nil when it passed, a *WrongError for a wrong result,
// NotPossible(…) where the device cannot do the requested work, and any other error for a
// failed call. The framework prints the last line ("Test PASSED") and the JSON. Each run of
// --for is a new Run.
package sample

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
)

// Sample is one program.
type Sample struct {
	Name  string // "reduction"
	About string // what it does, a sentence or more; the head of --help
	// Examples are additional lines of --help below Usage: "--elements 1000  a small one".
	Examples []Example
	// Flags declares the sample's own flags. Each also gets the environment variable NAME_FLAG.
	Flags func(f *pflag.FlagSet)
	// Check validates the sample's own flags; nil: nothing to check.
	Check func() error
	// Run does the work once; ctx ends when the time is up.
	Run func(ctx context.Context, r *Run) error
}

// Example is a line of --help.
type Example struct{ Command, Meaning string }

// Main runs the sample with this process's arguments, environment and signals and
// returns the exit code.
func Main(s Sample) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return s.Start(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
}

// Start is Main with explicit arguments, environment and output.
func (s Sample) Start(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	o, err := s.parse(args, env, stdout)
	if errors.Is(err, errDone) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", s.Name, cmdline.AddHelp(err, s.Name))
		return exitUsage
	}
	lines := stdout
	if o.json {
		lines = io.Discard
	}
	report, err := s.repeat(ctx, o, lines, newProgress(s.Name, stderr))
	report.conclude(err)
	if err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", s.Name, report.errorLine())
	}
	if o.report != "" {
		if e := report.writeFile(o.report); e != nil {
			fmt.Fprintf(stderr, "%s: --report: %v\n", s.Name, e)
			return exitFailed
		}
	}
	switch {
	case o.json:
		if e := json.NewEncoder(stdout).Encode(report); e != nil {
			return exitFailed
		}
	case report.Passed && report.Simulated:
		fmt.Fprint(stdout, "Test PASSED (SIMULATED)\nDone\n")
	case report.Passed:
		fmt.Fprint(stdout, "Test PASSED\nDone\n")
	default:
		fmt.Fprintln(stdout, "Test FAILED")
	}
	return exitCode(err)
}
