package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/operator/cleanup"
	"github.com/gpuready/gpuready/operator/controller"
)

const cleanupUsage = `Remove from the cluster what the operator wrote: before it is uninstalled, or after it is
gone. It removes, in this order:

  1. the policies that came with the product (label app.kubernetes.io/part-of=gpuready);
     a running operator then removes its objects and labels itself
  2. the operator's DaemonSets, Services and RuntimeClasses; then it waits up to a minute
     for the validators to end, which write to their Nodes until then
  3. on each Node the operator's labels, annotations and cordon, the startup taint if the
     policy managed it, the conditions GPUReady and GPUHealthy, and the labels of GPU
     features

It removes nothing else: neither labels that a person set, nor the custom resource
definition. If a policy of another owner exists, only step 1 is done without --force, as a
running operator would write everything again.

Examples:
  gpu-operator cleanup --dry-run --kubeconfig ~/.kube/config --namespace gpuready
  gpu-operator cleanup --timeout 5m
`

func runCleanup(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("cleanup", cleanupUsage, stdout)
	c := cleanup.Config{Out: stdout}
	var timeout time.Duration
	o.addNamespaceFlags()
	f := o.flags
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "timeout of the whole command")
	f.BoolVar(&c.DryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&c.Force, "force", false, "even if a ClusterPolicy of another owner exists; stop the operator first")
	maps.Copy(o.flags.Env, map[string]string{"timeout": "TIMEOUT", "dry-run": "DRY_RUN", "force": "FORCE"})
	o.addAPIFlags()
	if err := o.parse(args); err != nil {
		return err
	}
	if o.cluster.Namespace == "" {
		return program.UsageErrorf("cleanup needs --namespace, the operator's own ($POD_NAMESPACE), or --operand-namespace")
	}
	c.Namespace = o.cluster.Namespace
	if _, err := o.logger(stderr); err != nil {
		return err
	}
	kube, err := o.restConfig()
	if err != nil {
		return err
	}
	scheme, err := controller.Scheme()
	if err != nil {
		return err
	}
	if c.Client, err = client.NewWithWatch(kube, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--timeout %s has expired", timeout))
	defer cancel()
	if err := cleanup.Run(ctx, c); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return program.WithExitCode(exitTimeout, fmt.Errorf("%w: %w", context.Cause(ctx), err))
		}
		return err
	}
	return nil
}
