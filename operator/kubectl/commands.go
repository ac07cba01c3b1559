package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
)

const statusUsage = `Show the ClusterPolicies: state, conditions, pools with their drivers, and the
nodes that are not ready, with the reason. Where the agents run without an operator and
without a policy, show the nodes with what they report.

-o wide adds columns and does not wrap lines. -o name prints the names of the policies, and
of the nodes that are not ready.

With --watch it runs until it is interrupted. On a terminal it redraws everything after each
change; otherwise it prints the lines that have changed.

Examples:
  kubectl gpu status
  kubectl gpu status --watch
  kubectl gpu status -o json | jq -r '.policies[0].status.state'
  kubectl gpu status -o name | grep ^node/ | xargs kubectl describe
`

func status(ctx context.Context, args []string, stdout, _ io.Writer) error {
	c := newCommand("status", statusUsage, stdout)
	c.formatFlag("wide", "name")
	watch := c.flags.BoolP("watch", "w", false, "keep running, and show each change")
	if err := c.parse(args); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	policies, err := client.Policies(ctx)
	if err != nil {
		return fmt.Errorf("read ClusterPolicies: %w", err)
	}
	if *watch {
		return c.watchStatus(ctx, client, stdout)
	}
	var nodes []corev1.Node
	if len(policies) == 0 {
		if nodes, err = client.Nodes(ctx, ""); err != nil {
			return fmt.Errorf("read Nodes: %w", err)
		}
	}
	s := summarize(policies, nodes, time.Now())
	return c.write(stdout, s, s.text)
}

const explainUsage = `Show how far a node is on its way to usable GPUs: since when, what holds it up, and what
to do next. First comes what only the cluster knows: how far the operator is with the
node, its driver, the driver's upgrade, the operands' pods and Events. Below is the same
report as gpu-validator explain prints on that node, layer by layer.

It evaluates the node now, by the operator's own rules.

Examples:
  kubectl gpu explain gpu-7
  kubectl gpu explain gpu-7 -o json | jq -r .result
  kubectl gpu explain gpu-7 -o json | jq -r .cluster.reason
`

func explainNode(ctx context.Context, args []string, stdout, _ io.Writer) error {
	c := newCommand("explain", explainUsage, stdout)
	c.formatFlag()
	c.allNamespacesFlag()
	if err := c.parse(args, "NODE"); err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	n, err := client.Explain(ctx, c.flags.Arg(0), c.namespace, time.Now())
	if err != nil {
		return err
	}
	return c.write(stdout, n, explanation(n).text)
}

const timersUsage = `Compute settings of the Cluster Autoscaler from the time that this cluster's GPU nodes
take. The advice is one and a half times the time within which 99 of 100 nodes were ready,
but at least the default. It is based on nodes that were created while the operator ran.
Times are whole minutes.

The operator measures a node from the creation of its Node object. Add the machine's time
before that with --machine. Too few nodes give no advice.

Examples:
  kubectl gpu timers
  kubectl gpu timers --machine 4m
  kubectl gpu timers -o json | jq -r .maxNodeProvisionTime
`

func computeTimers(ctx context.Context, args []string, stdout, _ io.Writer) error {
	c := newCommand("timers", timersUsage, stdout)
	c.formatFlag()
	machine := c.flags.Duration("machine", 0, "time from the request for a machine until its Node object exists")
	least := c.flags.Int64("min-samples", 20, "minimum number of measured nodes")
	if err := c.parse(args); err != nil {
		return err
	}
	if *machine < 0 || *least < 1 {
		return program.UsageErrorf("--machine must not be below 0, nor --min-samples below 1")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	policy, err := client.PolicyInForce(ctx)
	if err != nil {
		return err
	}
	if policy == nil {
		return program.WithExitCode(exitNothing, errors.New("there is no ClusterPolicy, so no node was measured"))
	}
	a, err := computeAdvice(*policy, *machine, *least)
	if err != nil {
		return program.WithExitCode(exitNothing, err)
	}
	return c.write(stdout, a, a.text)
}

const gatherUsage = `Collect what support needs in one archive: ClusterPolicies, GPU nodes (labels,
conditions), the product's DaemonSets, Deployments and pods, their logs, Events and
versions. It reads no Secret, and blanks passwords in URLs and the values of variables
with secret names. Review the archive nevertheless before you share it.

What you may not read is left out and listed in errors.txt; the exit code is then 4.

Examples:
  kubectl gpu must-gather
  kubectl gpu must-gather --to /tmp/gpus.tar.gz --log-nodes 100
`

func mustGather(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c := newCommand("must-gather", gatherUsage, stdout)
	c.namespaceFlag()
	now := time.Now()
	to := c.flags.String("to", "", "the archive (default: gpuready-must-gather-TIME.tar.gz here)")
	var b cluster.GatherBounds
	c.flags.IntVar(&b.LogLines, "log-lines", 5000, "limit for each container, from the end of its log")
	c.flags.IntVar(&b.LogBytes, "log-bytes", 1<<20, "limit for each container, from the end of its log")
	c.flags.IntVar(&b.LogNodes, "log-nodes", 20, "number of nodes whose logs are read; nodes that are not ready come first")
	timeout := c.flags.Duration("timeout", 10*time.Minute, "timeout of the whole command")
	if err := c.parse(args); err != nil {
		return err
	}
	if b.LogLines < 1 || b.LogBytes < 1 || b.LogNodes < 1 || *timeout <= 0 {
		return program.UsageErrorf("--log-lines, --log-bytes, --log-nodes and --timeout must be above 0")
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if *to == "" {
		*to = "gpuready-must-gather-" + now.UTC().Format("20060102-150405") + ".tar.gz"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done within %v (--timeout)", *timeout))
	defer cancel()
	unread, err := writeArchive(ctx, *to, cluster.GatherConfig{Client: client, Namespace: c.namespace, Bounds: b, Now: now, Progress: stderr})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, *to)
	if len(unread) > 0 {
		return program.WithExitCode(exitPartly, fmt.Errorf("%d things could not be read; errors.txt in the archive names them", len(unread)))
	}
	return nil
}

// writeArchive writes a temporary file beside the path and renames it, so that the archive is
// complete. Only its owner may read it.
func writeArchive(ctx context.Context, to string, c cluster.GatherConfig) (unread []string, err error) {
	f, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	unread, err = cluster.Gather(ctx, f, c)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return unread, os.Rename(f.Name(), to)
}
