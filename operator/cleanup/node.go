package cleanup

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/operator/label"
)

// removeConditions removes the validator's conditions, which nobody renews any more.
func (c Config) removeConditions(ctx context.Context, node *corev1.Node, others foreign) error {
	before := node.DeepCopy()
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(have corev1.NodeCondition) bool {
		_, theirs := others.conditions[string(have.Type)]
		return !theirs && (have.Type == "GPUReady" || have.Type == "GPUHealthy")
	})
	if len(node.Status.Conditions) == len(before.Status.Conditions) {
		return nil
	}
	c.printf("remove the conditions GPUReady and GPUHealthy of node %s", node.Name)
	if c.DryRun {
		return nil
	}
	return c.Client.Status().Patch(ctx, node, client.StrategicMergeFrom(before), client.FieldOwner(label.FieldManager))
}

// removeTaints removes the product's taints: NoSchedule, without a value.
func (c Config) removeTaints(ctx context.Context, node *corev1.Node, keys []string) error {
	before := node.DeepCopy()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return slices.Contains(keys, t.Key) && t.Effect == corev1.TaintEffectNoSchedule && t.Value == ""
	})
	if len(node.Spec.Taints) == len(before.Spec.Taints) {
		return nil
	}
	c.printf("remove the startup taint of node %s", node.Name)
	if c.DryRun {
		return nil
	}
	return c.Client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(label.FieldManager))
}

// removeFeatures removes the labels that describe the Node's GPUs, as listed in the annotation.
func (c Config) removeFeatures(ctx context.Context, node *corev1.Node, others foreign) error {
	names, is := node.Annotations[label.Features]
	if !is {
		return nil
	}
	before := node.DeepCopy()
	for name := range strings.SplitSeq(names, ",") {
		if key := "nvidia.com/" + name; nodestate.IsFeature(key) && c.mayRemove(node, key, others) {
			delete(node.Labels, key)
		}
	}
	delete(node.Annotations, label.Features)
	c.printf("remove the labels of the GPUs' features of node %s", node.Name)
	if c.DryRun {
		return nil
	}
	return c.Client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(label.FieldManager))
}
