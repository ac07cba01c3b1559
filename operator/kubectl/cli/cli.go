// Package cli implements the command line of kubectl-gpu: its commands, and what they print.
package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
)

// Exit codes besides those of every program; they are listed in --help and are a contract.
const (
	exitNothing = 3
	exitPartly  = 4
	exitFailed  = 5
)

const usage = `kubectl gpu shows the progress of a cluster's GPU nodes, and what holds them up.

Usage:
  kubectl gpu status         the ClusterPolicy, its pools, and the nodes that are not ready
  kubectl gpu explain NODE   the progress of a node, since when, why, and what to do
  kubectl gpu timers         settings for the Cluster Autoscaler, from measured provisioning times
  kubectl gpu prebuild       build the driver's modules for a future kernel, by a Job
  kubectl gpu must-gather    collect what support needs in one archive
  kubectl gpu version        of this program
  kubectl gpu COMMAND --help flags and examples of a command

Exit codes:
  0  success, whatever the state of the cluster
  1  the cluster could not be queried, or another failure
  2  bad usage
  3  timers: too few nodes were measured, or they take too long
  4  must-gather: something could not be read; errors.txt in the archive lists it
  5  prebuild: the Job has failed
`

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "kubectl-gpu", Help: usage,
		Commands: []program.Command{
			{Name: "status", Run: status},
			{Name: "explain", Run: explainNode},
			{Name: "timers", Run: computeTimers},
			{Name: "prebuild", Run: prebuildModules},
			{Name: "must-gather", Run: mustGather},
		},
	}.Run(ctx, args, stdout, stderr)
}

// command holds the flags that the commands share.
type command struct {
	flags     *program.Flags
	where     cluster.Options
	namespace string
	output    string
}

func newCommand(name, text string, stdout io.Writer) *command {
	c := &command{flags: program.NewFlags("kubectl gpu "+name, text, "", stdout)}
	c.flags.StringVar(&c.where.Kubeconfig, "kubeconfig", "", "which kubeconfig (default: $KUBECONFIG, ~/.kube/config)")
	c.flags.StringVar(&c.where.Context, "context", "", "which of its contexts (default: the current one)")
	c.flags.DurationVar(&c.where.Timeout, "request-timeout", 15*time.Second, "timeout of a request to the API server")
	return c
}

func (c *command) formatFlag() {
	c.flags.StringVarP(&c.output, "output", "o", "text", "text or json")
}

func (c *command) namespaceFlag() {
	c.flags.StringVarP(&c.namespace, "namespace", "n", "", "of the operands (default: that of the ClusterPolicy)")
}

// parse parses the flags; want are the names of the required arguments.
func (c *command) parse(args []string, want ...string) error {
	if err := c.flags.Read(args); err != nil {
		return err
	}
	if c.flags.NArg() != len(want) {
		return program.UsageErrorf("%s takes %d arguments (%s), not %d; see %s --help", c.flags.Command(), len(want), strings.Join(want, " "), c.flags.NArg(), c.flags.Name())
	}
	if c.where.Timeout <= 0 {
		return program.UsageErrorf("--request-timeout is %v; it must be above 0", c.where.Timeout)
	}
	if f := c.flags.ShorthandLookup("o"); f != nil && c.output != "text" && c.output != "json" {
		return program.UsageErrorf("--output is %q; say text or json", c.output)
	}
	return nil
}

func (c *command) client() (*cluster.Client, error) {
	client, err := cluster.New(c.where)
	if err != nil {
		return nil, program.UsageErrorf("%w", err)
	}
	return client, nil
}

// write writes the result, for people or for programs.
func (c *command) write(stdout io.Writer, found any, text func(io.Writer, style) error) error {
	if c.output == "json" {
		return writeJSON(stdout, found)
	}
	return text(stdout, newStyle(stdout))
}
