package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
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
  kubectl gpu serve NODE     who offers a node's GPUs: the device plugin, or gpu-dra-driver
  kubectl gpu timers         settings for the Cluster Autoscaler, from measured provisioning times
  kubectl gpu prebuild       build the driver's modules for a future kernel, by a Job
  kubectl gpu migrate        move nodes from NVIDIA's GPU Operator to gpuready's, and back
  kubectl gpu cleanup        list, and remove, what gpuready left on Nodes after it was uninstalled
  kubectl gpu must-gather    collect what support needs in one archive
  kubectl gpu completion     print a script that completes command lines: bash, zsh or fish
  kubectl gpu version        print the version of this program
  kubectl gpu COMMAND --help flags and examples of a command

Exit codes:
  0  success, whatever the state of the cluster
  1  the cluster could not be queried, or another failure; migrate, cleanup: something is in the way
  2  bad usage
  3  timers: too few nodes were measured, or they take too long; migrate: the cluster cannot be
     read; serve --wait: not complete in time
  4  must-gather: something could not be read; errors.txt in the archive lists it
  5  prebuild: the Job has failed
`

// runCommand runs the command line and returns the exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return program.Program{
		Name: "kubectl-gpu", Call: "kubectl gpu", Help: usage,
		Globals: []string{"--kubeconfig", "--context", "--as", "--as-group", "--request-timeout", "--namespace", "-n"},
		Commands: []program.Command{
			{Name: "status", Run: status},
			{Name: "explain", Run: explainNode, Complete: nodeNames},
			{Name: "serve", Run: serveNode, Complete: completeServe},
			{Name: "timers", Run: computeTimers},
			{Name: "prebuild", Run: prebuildModules},
			{Name: "migrate", Run: migrateCluster, Complete: completeMigrate},
			{Name: "cleanup", Run: cleanUp, Complete: allNodeNames},
			{Name: "must-gather", Run: mustGather},
		},
	}.Run(ctx, args, stdout, stderr)
}

// nodeNames returns the names of the GPU nodes, of the cluster that the words before name.
func nodeNames(ctx context.Context, words []string) []string {
	return namesOfNodes(ctx, words, label.Present+"=true")
}

func namesOfNodes(ctx context.Context, words []string, selector string) (names []string) {
	where, _ := parseUnfinished(words)
	c, err := cluster.New(where)
	if err != nil {
		return nil
	}
	defer c.Close()
	nodes, _ := c.Nodes(ctx, selector)
	for i := range nodes {
		names = append(names, nodes[i].Name)
	}
	return names
}

// allNodeNames returns the names of all nodes: labels may be gone.
func allNodeNames(ctx context.Context, words []string) []string {
	return namesOfNodes(ctx, words, "")
}

func completeMigrate(ctx context.Context, words []string) []string {
	if _, args := parseUnfinished(words); len(args) == 0 {
		return []string{"plan", "node", "back"}
	}
	return nodeNames(ctx, words)
}

func completeServe(ctx context.Context, words []string) []string {
	if _, args := parseUnfinished(words); len(args) > 0 {
		return []string{nodestate.ServePlugin, nodestate.ServeDRA}
	}
	return nodeNames(ctx, words)
}

// parseUnfinished returns the cluster and the arguments that the words of an unfinished command line
// name. Flags other than those of every command are left out.
func parseUnfinished(words []string) (where cluster.Options, args []string) {
	c := newCommand("", "", io.Discard)
	c.allNamespacesFlag()
	c.flags.ParseErrorsAllowlist.UnknownFlags = true
	_ = c.flags.Parse(words)
	c.where.Timeout = min(c.where.Timeout, 3*time.Second)
	return c.where, c.flags.Args()
}

// command holds the flags that the commands share.
type command struct {
	flags      *program.Flags
	where      cluster.Options
	namespace  string
	everywhere bool // in all namespaces
	output     string
	formats    []string // the values that --output may have
}

func newCommand(name, text string, stdout io.Writer) *command {
	return newCommandWithExits(name, text, "", stdout)
}

// newCommandWithExits returns a command whose help ends with exit codes of its own.
func newCommandWithExits(name, text, exits string, stdout io.Writer) *command {
	c := &command{flags: program.NewFlags("kubectl gpu "+name, text, exits, stdout)}
	c.flags.StringVar(&c.where.Kubeconfig, "kubeconfig", "", "which kubeconfig (default: $KUBECONFIG, ~/.kube/config)")
	c.flags.StringVar(&c.where.Context, "context", "", "which of its contexts (default: the current one)")
	c.flags.StringVar(&c.where.As, "as", "", "the user to act as: a user, or system:serviceaccount:NAMESPACE:NAME")
	c.flags.StringArrayVar(&c.where.AsGroups, "as-group", nil, "a group of that user; may be repeated")
	c.flags.DurationVar(&c.where.Timeout, "request-timeout", 15*time.Second, "timeout of a request to the API server")
	return c
}

// formatFlag adds the flag --output. The formats of every command are text, json and yaml.
func (c *command) formatFlag(more ...string) {
	c.formats = append([]string{"text", "json", "yaml"}, more...)
	c.flags.StringVarP(&c.output, "output", "o", "text", listFormats(c.formats))
}

// listFormats lists formats as in "text, json or yaml".
func listFormats(all []string) string {
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

func (c *command) namespaceFlag() {
	c.flags.StringVarP(&c.namespace, "namespace", "n", "", "of the operands (default: that of the ClusterPolicy)")
}

// allNamespacesFlag adds the flags --namespace and --all-namespaces, of which the latter wins.
func (c *command) allNamespacesFlag() {
	c.namespaceFlag()
	c.flags.BoolVarP(&c.everywhere, "all-namespaces", "A", false, "the operands' pods of all namespaces")
}

// parse parses the flags; want are the names of the required arguments.
func (c *command) parse(args []string, want ...string) error {
	if err := c.parseNames(args); err != nil {
		return err
	}
	if err := cmdline.CountArguments(c.flags.Command(), c.flags.NArg(), want...); err != nil {
		return program.WithExitCode(program.Usage, cmdline.AddHelp(err, c.flags.Name()))
	}
	return nil
}

// parseNames is like parse, for any number of arguments.
func (c *command) parseNames(args []string) error {
	if err := c.flags.Read(args); err != nil {
		return err
	}
	if c.where.Timeout <= 0 {
		return program.UsageErrorf("--request-timeout is %v; it must be above 0", c.where.Timeout)
	}
	if c.formats != nil && !slices.Contains(c.formats, c.output) {
		return program.UsageErrorf("--output is %q; say %s", c.output, listFormats(c.formats))
	}
	if c.everywhere {
		c.namespace = cluster.AllNamespaces
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

// named is a result with the names of objects.
type named interface{ names() []string }

// write writes the result, for people or for programs.
func (c *command) write(stdout io.Writer, found any, text func(io.Writer, style) error) error {
	look := newStyle(stdout)
	switch c.output {
	case "json":
		return writeJSON(stdout, found)
	case "yaml":
		data, err := yaml.Marshal(found)
		if err == nil {
			_, err = stdout.Write(data)
		}
		return err
	case "name":
		for _, name := range found.(named).names() {
			if _, err := fmt.Fprintln(stdout, name); err != nil {
				return err
			}
		}
		return nil
	case "wide":
		look.Wide, look.Width = true, math.MaxInt
	}
	return text(stdout, look)
}
