// Package cleanup removes from a cluster what the operator wrote there. It reports what it does.
// Objects that are already gone are no error, so that it can be run again.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// Config configures a cleanup.
type Config struct {
	Client    client.WithWatch // not cached
	Namespace string           // of the operands
	DryRun    bool             // only report
	Force     bool             // even while a ClusterPolicy of another owner exists
	Out       io.Writer
}

// Run cleans up until it is done or ctx ends.
func Run(ctx context.Context, c Config) error {
	foreign, taints, err := c.deletePolicies(ctx)
	if err != nil {
		return err
	}
	if foreign != "" && !c.Force {
		c.printf("ClusterPolicy %s has another owner: it and the operator's objects for it stay; delete it, or stop the operator and set --force", foreign)
		return nil
	}
	if err := c.deleteObjects(ctx); err != nil {
		return err
	}
	return c.cleanNodes(ctx, taints)
}

func (c Config) printf(format string, args ...any) {
	prefix := ""
	if c.DryRun {
		prefix = "(dry run) "
	}
	fmt.Fprintf(c.Out, prefix+format+"\n", args...)
}

// deletePolicies deletes the policies that came with the product. It returns the name of another
// one, if any, and the taints that the operator put on Nodes.
func (c Config) deletePolicies(ctx context.Context) (foreign string, taints []string, err error) {
	var list v1.ClusterPolicyList
	if err := c.list(ctx, &list); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return "", nil, nil // their definition is gone, and they with it
		}
		return "", nil, err
	}
	for i := range list.Items {
		p := &list.Items[i]
		if taint := &p.Spec.Node.StartupTaint; taint.Managed() && taint.Key != "" {
			taints = append(taints, taint.Key)
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
func (c Config) deleteObjects(ctx context.Context) error {
	inNamespace := client.InNamespace(c.Namespace)
	for _, kind := range []struct {
		list  client.ObjectList
		where []client.ListOption
	}{
		{&appsv1.DaemonSetList{}, []client.ListOption{inNamespace, apply.Selector()}},
		{&corev1.ServiceList{}, []client.ListOption{inNamespace, apply.Selector()}},
		{&nodev1.RuntimeClassList{}, []client.ListOption{apply.Selector()}},
	} {
		if err := c.list(ctx, kind.list, kind.where...); err != nil {
			return err
		}
		items, err := meta.ExtractList(kind.list)
		if err != nil {
			return err
		}
		for _, item := range items {
			if err := c.remove(ctx, item.(client.Object)); err != nil {
				return err
			}
		}
	}
	if c.DryRun {
		return nil
	}
	if err := c.waitUntilGone(ctx, &appsv1.DaemonSetList{}, apply.Selector()); err != nil {
		return err
	}
	return c.waitForValidators(ctx)
}

// waitForValidators waits until the validators have ended, which write to their Nodes until
// then. A validator on an unreachable node stays for long, but writes nothing.
func (c Config) waitForValidators(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	err := c.waitUntilGone(short, &corev1.PodList{}, client.MatchingLabels{"app": "nvidia-operator-validator"})
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		c.printf("%v: a validator on an unreachable node may write to its Node again until the kubelet has ended it; then clean up once more", err)
		return nil
	}
	return err
}

// endTimeout bounds how long pods may take to end: four times their grace period.
const endTimeout = time.Minute

// waitUntilGone waits until the operands' namespace has no such objects.
func (c Config) waitUntilGone(ctx context.Context, kind client.ObjectList, where client.MatchingLabels) error {
	for {
		list := kind.DeepCopyObject().(client.ObjectList)
		if err := c.list(ctx, list, client.InNamespace(c.Namespace), where); err != nil {
			return err
		}
		items, err := meta.ExtractList(list)
		if err != nil || len(items) == 0 {
			return err
		}
		since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
		changes, err := c.Client.Watch(ctx, list, since, client.InNamespace(c.Namespace), where)
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

func (c Config) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	if err := c.Client.List(ctx, list, options...); err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	return nil
}

func (c Config) remove(ctx context.Context, o client.Object) error {
	c.printf("delete %T %s", o, o.GetName())
	if c.DryRun {
		return nil
	}
	return apply.Prune(ctx, c.Client, o)
}

// cleanNodes removes from each Node what the operator and its validator wrote.
func (c Config) cleanNodes(ctx context.Context, taints []string) error {
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

func (c Config) cleanNode(ctx context.Context, name string, taints []string) error {
	ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
	defer cancel()
	var node corev1.Node
	if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return err
	}
	others := readForeign(&node)
	if err := c.removeConditions(ctx, &node, others); err != nil {
		return err
	}
	if err := c.removeTaints(ctx, &node, taints); err != nil {
		return err
	}
	if err := c.removeFeatures(ctx, &node, others); err != nil {
		return err
	}
	n := fleet.Observe(&node)
	plan := upgrade.NewPlan(upgrade.Input{Nodes: []*fleet.Node{n}, Now: time.Now()})
	patch, _ := plan.Patch(n, n.RemovalPatch(false))
	c.dropForeign(&node, patch.Labels, others)
	if len(patch.Labels) == 0 && len(patch.Annotations) == 0 && patch.Unschedulable == nil {
		return nil
	}
	body, err := patch.JSON()
	if err != nil {
		return err
	}
	c.printf("patch node %s: %s", name, body)
	if c.DryRun {
		return nil
	}
	return c.Client.Patch(ctx, &node, client.RawPatch(types.MergePatchType, body), client.FieldOwner(label.FieldManager))
}
