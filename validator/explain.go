package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/report"
)

const explainUsage = `Show for each layer from the driver to a pod whether it is ready on a node, since
when, and if not, why, and what to do. On the node it reads the files of proofs and
components, which needs no privileges; with --node it reads from the cluster.

It proves nothing and exits with 0 whatever it shows; scripts should use run
or wait.

Examples:
  gpu-validator explain
  gpu-validator explain --node gpu-7        from anywhere, by your kubeconfig
  gpu-validator explain -o json | jq .result
`

func runExplain(ctx context.Context, args []string, stdout, _ io.Writer) error {
	o := command("explain", explainUsage, stdout)
	var node, kubeconfig, contextName, format string
	var timeout time.Duration
	f := o.flags
	f.StringVar(&node, "node", "", "name of a Node, read from the cluster; empty: this node, read from its own files")
	f.StringVar(&kubeconfig, "kubeconfig", "", "with --node (default: $KUBECONFIG, ~/.kube/config, or that of the pod)")
	f.StringVar(&contextName, "context", "", "context of the kubeconfig (default: the current one)")
	f.StringVarP(&format, "output", "o", "text", "text or json")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "time limit of all requests to the cluster")
	o.bindEnv("output", "OUTPUT")
	o.bindEnv("timeout", "TIMEOUT")
	o.addPathFlags()
	rest, err := o.parse(args)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return program.UsageErrorf("explain takes no arguments; did you mean --node %s?", rest[0])
	case format != "text" && format != "json":
		return program.UsageErrorf("--output %q: want text or json", format)
	case node == "" && (kubeconfig != "" || contextName != ""):
		return program.UsageErrorf("--kubeconfig and --context need --node, the name of the Node")
	case timeout <= 0:
		return program.UsageErrorf("--timeout must be positive")
	}
	var r explain.Report
	if node == "" {
		r, err = o.explainNode()
	} else {
		r, err = explainCluster(ctx, node, kubeconfig, contextName, timeout)
	}
	if err != nil {
		return err
	}
	if format == "json" {
		return r.JSON(stdout)
	}
	return r.Text(stdout, explain.Style{Width: width(stdout), Color: isTerminal(stdout)})
}

func (o *options) explainNode() (explain.Report, error) {
	n, err := o.node()
	if err != nil {
		return explain.Report{}, err
	}
	defer func() { _ = n.Root.Close() }()
	name, err := nodeName()
	if err != nil {
		return explain.Report{}, err
	}
	return report.ExplainNode(n, n.Root.Path(o.outputDir), name, time.Now()), nil
}

func explainCluster(ctx context.Context, node, kubeconfig, name string, timeout time.Duration) (explain.Report, error) {
	late := fmt.Errorf("the cluster has not answered within %v", timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, late)
	defer cancel()
	config, err := kube.Kubeconfig(kubeconfig, name)
	if err != nil {
		return explain.Report{}, program.UsageErrorf("%w", err)
	}
	client, err := kube.New(config)
	if err != nil {
		return explain.Report{}, err
	}
	defer client.Close()
	r, err := report.ExplainCluster(ctx, client, node, time.Now())
	if err != nil && errors.Is(context.Cause(ctx), late) {
		return r, fmt.Errorf("%w: %w", late, err)
	}
	return r, err
}

// width returns the width of the terminal. For a file or pipe it is $COLUMNS, or else a width
// that is easy to read.
func width(w io.Writer) int {
	const usual = 100
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	return usual
}
