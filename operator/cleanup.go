package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/controller"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/leftover"
)

const cleanupUsage = `Remove from the cluster what the operator wrote: before it is uninstalled, or after it is
gone. It removes, in this order:

  1. the policies that came with the product (label app.kubernetes.io/part-of=gpuready);
     a running operator then removes its objects and labels itself
  2. the operator's DaemonSets, Services, RuntimeClasses and DeviceClasses; then it waits up
     to a minute for the validators to end, which write to their Nodes until then
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
	c := cleanup{out: stdout}
	var timeout time.Duration
	o.addNamespaceFlags()
	f := o.flags
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "timeout of the whole command")
	f.BoolVar(&c.dryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&c.force, "force", false, "even if a ClusterPolicy of another owner exists; stop the operator first")
	maps.Copy(o.flags.Env, map[string]string{"timeout": "TIMEOUT", "dry-run": "DRY_RUN", "force": "FORCE"})
	o.addAPIFlags()
	if err := o.parse(args); err != nil {
		return err
	}
	if o.cluster.Namespace == "" {
		return program.UsageErrorf("cleanup needs --namespace, the operator's own ($POD_NAMESPACE), or --operand-namespace")
	}
	c.namespace = o.cluster.Namespace
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
	if c.client, err = client.NewWithWatch(kube, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--timeout %s has expired", timeout))
	defer cancel()
	if err := c.run(ctx); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return program.WithExitCode(exitTimeout, fmt.Errorf("%w: %w", context.Cause(ctx), err))
		}
		return err
	}
	return nil
}

// cleanup removes from a cluster what the operator wrote there. It reports what it does. Objects
// that are already gone are no error, so that it can be run again.
type cleanup struct {
	client    client.WithWatch // not cached
	namespace string           // of the operands
	dryRun    bool             // only report
	force     bool             // even while a ClusterPolicy of another owner exists
	out       io.Writer
}

// run cleans up until it is done or ctx ends.
func (c cleanup) run(ctx context.Context) error {
	foreign, taints, err := c.deletePolicies(ctx)
	if err != nil {
		return err
	}
	if foreign != "" && !c.force {
		c.printf("ClusterPolicy %s has another owner: it and the operator's objects for it stay; delete it, or stop the operator and set --force", foreign)
		return nil
	}
	if err := c.deleteObjects(ctx); err != nil {
		return err
	}
	return c.cleanNodes(ctx, taints)
}

func (c cleanup) printf(format string, args ...any) {
	prefix := ""
	if c.dryRun {
		prefix = "(dry run) "
	}
	fmt.Fprintf(c.out, prefix+format+"\n", args...)
}

// deletePolicies deletes the policies that came with the product. It returns the name of another
// one, if any, and the taints that the operator put on Nodes.
func (c cleanup) deletePolicies(ctx context.Context) (foreign string, taints []string, err error) {
	var list v1.ClusterPolicyList
	if err := c.list(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return "", nil, nil // their definition is gone, and they with it
		}
		return "", nil, err
	}
	for i := range list.Items {
		p := &list.Items[i]
		if taint := &p.Spec.Node.StartupTaint; taint.Managed() {
			taints = append(taints, cmp.Or(taint.Key, readiness.StartupTaints()[0]))
		}
		if p.Labels[label.PartOf] != label.Product {
			foreign = p.Name
			continue
		}
		if err := c.remove(ctx, p); err != nil {
			return "", nil, err
		}
	}
	return foreign, taints, nil
}

// deleteObjects deletes the operator's objects. It waits until the DaemonSets are gone, which
// create pods until then, and then for the pods that write to Nodes.
func (c cleanup) deleteObjects(ctx context.Context) error {
	inNamespace := client.InNamespace(c.namespace)
	for _, kind := range []struct {
		list  client.ObjectList
		where []client.ListOption
	}{
		{&appsv1.DaemonSetList{}, []client.ListOption{inNamespace, apply.Selector()}},
		{&corev1.ServiceList{}, []client.ListOption{inNamespace, apply.Selector()}},
		{&nodev1.RuntimeClassList{}, []client.ListOption{apply.Selector()}},
		{&resourcev1.DeviceClassList{}, []client.ListOption{apply.Selector()}},
	} {
		if err := c.list(ctx, kind.list, kind.where...); meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // Kubernetes before 1.34 has no such DeviceClasses
		} else if err != nil {
			return err
		}
		items, err := meta.ExtractList(kind.list)
		if err != nil {
			return err
		}
		for _, item := range items {
			if d, is := item.(*resourcev1.DeviceClass); is && !slices.Contains(deployments.DeviceClassNames(), d.Name) {
				continue // somebody's copy of one of ours, with its labels
			}
			if err := c.remove(ctx, item.(client.Object)); err != nil {
				return err
			}
		}
	}
	if c.dryRun {
		return nil
	}
	if err := c.waitUntilGone(ctx, &appsv1.DaemonSetList{}, apply.Selector()); err != nil {
		return err
	}
	return c.waitForValidators(ctx)
}

// waitForValidators waits until the validators have ended, which write to their Nodes until
// then. A validator on an unreachable node cannot write until the node is reachable again: after
// endTimeout it is reported, and the cleanup goes on.
func (c cleanup) waitForValidators(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := c.waitUntilGone(short, &corev1.PodList{}, client.MatchingLabels{"app": "nvidia-operator-validator", label.PartOf: label.Product})
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		c.printf("%v: a validator on an unreachable node may write to its Node again until the kubelet has ended it; then clean up once more", err)
		return nil
	}
	return err
}

// endTimeout bounds how long pods may take to end: four times their grace period.
const endTimeout = time.Minute

// waitUntilGone waits until the operands' namespace has no such objects.
func (c cleanup) waitUntilGone(ctx context.Context, kind client.ObjectList, where client.MatchingLabels) error {
	for {
		list := kind.DeepCopyObject().(client.ObjectList)
		if err := c.list(ctx, list, client.InNamespace(c.namespace), where); err != nil {
			return err
		}
		items, err := meta.ExtractList(list)
		if err != nil || len(items) == 0 {
			return err
		}
		since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
		changes, err := c.client.Watch(ctx, list, since, client.InNamespace(c.namespace), where)
		if err != nil {
			return fmt.Errorf("watch %T: %w", list, err)
		}
		select {
		case <-changes.ResultChan():
		case <-ctx.Done():
			changes.Stop()
			return fmt.Errorf("of %T %d are still there, %s among them: %w", list, len(items), items[0].(client.Object).GetName(), ctx.Err())
		}
		changes.Stop()
	}
}

func (c cleanup) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	if err := c.client.List(ctx, list, options...); err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	return nil
}

func (c cleanup) remove(ctx context.Context, o client.Object) error {
	c.printf("delete %T %s", o, o.GetName())
	if c.dryRun {
		return nil
	}
	return apply.Prune(ctx, c.client, o)
}

// cleanNodes removes from each Node what the operator and its validator wrote.
func (c cleanup) cleanNodes(ctx context.Context, taints []string) error {
	var list corev1.NodeList
	if err := c.list(ctx, &list); err != nil {
		return err
	}
	var problems []error
	for i := range list.Items {
		name := list.Items[i].Name
		err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return apierrors.IsConflict(err) }, func() error {
			return c.cleanNode(ctx, name, taints)
		})
		if client.IgnoreNotFound(err) != nil {
			problems = append(problems, fmt.Errorf("node %s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

func (c cleanup) cleanNode(ctx context.Context, name string, taints []string) error {
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	var node corev1.Node
	if err := c.client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	left := leftover.Find(&node, taints)
	if left.Empty() {
		return nil
	}
	for _, k := range left.Kept {
		c.printf("%s of node %s stays: %s", k.What, name, k.Why)
	}
	if len(left.Conditions) > 0 {
		c.printf("remove the conditions %s of node %s", strings.Join(left.Conditions, " and "), name)
		body, err := left.StatusPatch()
		if err != nil {
			return err
		}
		if !c.dryRun {
			if err := c.client.Status().Patch(ctx, &node, client.RawPatch(types.StrategicMergePatchType, body), client.FieldOwner(label.FieldManager)); err != nil {
				return err
			}
			left = left.At(node.ResourceVersion)
		}
	}
	body, err := left.Patch()
	if body == nil || err != nil {
		return err
	}
	c.printf("patch node %s: %s", name, body)
	if c.dryRun {
		return nil
	}
	return c.client.Patch(ctx, &node, client.RawPatch(types.MergePatchType, body), client.FieldOwner(label.FieldManager))
}
