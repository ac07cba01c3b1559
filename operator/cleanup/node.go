package cleanup

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
)

// conditions takes away the validator's: nobody says them any more.
func (c Config) conditions(ctx context.Context, node *corev1.Node) error {
	before := node.DeepCopy()
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(have corev1.NodeCondition) bool {
		return have.Type == "GPUReady" || have.Type == "GPUHealthy"
	})
	if len(node.Status.Conditions) == len(before.Status.Conditions) {
		return nil
	}
	c.say("remove the conditions GPUReady and GPUHealthy of node %s", node.Name)
	if c.DryRun {
		return nil
	}
	return c.Client.Status().Patch(ctx, node, client.StrategicMergeFrom(before), client.FieldOwner(label.FieldManager))
}

// taints takes away those that the product puts on Nodes.
func (c Config) taints(ctx context.Context, node *corev1.Node, keys []string) error {
	before := node.DeepCopy()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(keys, t.Key) })
	if len(node.Spec.Taints) == len(before.Spec.Taints) {
		return nil
	}
	c.say("remove the startup taint of node %s", node.Name)
	if c.DryRun {
		return nil
	}
	return c.Client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(label.FieldManager))
}

// written, an annotation, has the names of the labels below nvidia.com/ that the validator
// wrote, parted by commas.
const written = "gpuready.io/feature-labels"

// features takes away the labels that say what the Node's GPUs are.
func (c Config) features(ctx context.Context, node *corev1.Node) error {
	names, is := node.Annotations[written]
	if !is {
		return nil
	}
	before := node.DeepCopy()
	for name := range strings.SplitSeq(names, ",") {
		delete(node.Labels, "nvidia.com/"+name)
	}
	delete(node.Annotations, written)
	c.say("remove the labels of the GPUs' features of node %s", node.Name)
	if c.DryRun {
		return nil
	}
	return c.Client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(label.FieldManager))
}
