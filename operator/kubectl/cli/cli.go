// Package cli is the command line of kubectl-gpu.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/kubectl/show"
)

// Exit codes; they stand in --help and are a contract.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitNothing = 3
	exitPartly  = 4
)

const usage = `kubectl gpu shows how far the GPUs of a cluster are, and why not farther.

Usage:
  kubectl gpu status         the ClusterPolicy, its pools, and the nodes that are not ready
  kubectl gpu explain NODE   how far a node is, since when, why, and what to do
  kubectl gpu timers         what to tell the Cluster Autoscaler, from how long nodes took here
  kubectl gpu must-gather    what others need to help, in one archive
  kubectl gpu version        of this program
  kubectl gpu COMMAND --help flags and examples of a command

Exit codes:
  0  it was shown, whatever it shows
  1  the cluster could not be asked, or something else failed
  2  bad usage
  3  timers: too few nodes were measured, or they take too long
  4  must-gather: something could not be read, and the archive says what
`

const commands = "say status, explain, timers, must-gather or version, or --help"

// A coded error carries the exit code that it ends the program with.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

func usageError(format string, args ...any) error {
	return &coded{exitUsage, fmt.Errorf(format, args...)}
}

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	fmt.Fprintf(stderr, "kubectl-gpu: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	if c, is := errors.AsType[*coded](err); is {
		return c.code
	}
	return exitFailed
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usageError("no command; %s", commands)
	}
	switch args[0] {
	case "status":
		return status(ctx, args[1:], stdout)
	case "explain":
		return explainNode(ctx, args[1:], stdout)
	case "timers":
		return advise(ctx, args[1:], stdout)
	case "must-gather":
		return mustGather(ctx, args[1:], stdout, stderr)
	case "version", "--version":
		fmt.Fprintln(stdout, "kubectl-gpu", version.String())
		return nil
	case "--help", "-h", "help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	return usageError("no command %q; %s", args[0], commands)
}

// command is what the commands have in common.
type command struct {
	flags     *pflag.FlagSet
	where     cluster.Where
	namespace string
	output    string
}

func newCommand(name, text string, stdout io.Writer) *command {
	c := &command{flags: pflag.NewFlagSet(name, pflag.ContinueOnError)}
	c.flags.SortFlags = false
	c.flags.SetOutput(io.Discard)
	c.flags.Usage = func() { fmt.Fprint(stdout, text+"\nFlags:\n"+c.flags.FlagUsages()) }
	c.flags.StringVar(&c.where.Kubeconfig, "kubeconfig", "", "which kubeconfig (default: $KUBECONFIG, ~/.kube/config)")
	c.flags.StringVar(&c.where.Context, "context", "", "which of its contexts (default: the current one)")
	c.flags.DurationVar(&c.where.Timeout, "request-timeout", 15*time.Second, "how long an answer of the API server is waited for")
	return c
}

func (c *command) formatFlag() {
	c.flags.StringVarP(&c.output, "output", "o", "text", "text or json")
}

func (c *command) namespaceFlag() {
	c.flags.StringVarP(&c.namespace, "namespace", "n", "", "of the operands (default: that of the ClusterPolicy)")
}

// parse reads the flags; want are the arguments' names.
func (c *command) parse(args []string, want ...string) error {
	if err := c.flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return usageError("%w; see kubectl gpu %s --help", err, c.flags.Name())
	}
	if c.flags.NArg() != len(want) {
		return usageError("%s takes %d arguments (%s), not %d; see kubectl gpu %s --help", c.flags.Name(), len(want), strings.Join(want, " "), c.flags.NArg(), c.flags.Name())
	}
	if c.where.Timeout <= 0 {
		return usageError("--request-timeout is %v; it must be above 0", c.where.Timeout)
	}
	if f := c.flags.ShorthandLookup("o"); f != nil && c.output != "text" && c.output != "json" {
		return usageError("--output is %q; say text or json", c.output)
	}
	return nil
}

func (c *command) client() (*cluster.Client, error) {
	client, err := cluster.New(c.where)
	if err != nil {
		return nil, usageError("%w", err)
	}
	return client, nil
}

// write writes what was found, for people or for programs.
func (c *command) write(stdout io.Writer, found any, text func(io.Writer, show.Look) error) error {
	if c.output == "json" {
		return show.JSON(stdout, found)
	}
	return text(stdout, show.LookOf(stdout))
}
