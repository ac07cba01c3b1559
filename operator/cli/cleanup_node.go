package cli

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/operator/label"
)

// removeConditions removes the validator's conditions, which nobody renews any more.
func (c cleanup) removeConditions(ctx context.Context, node *corev1.Node, others foreign) error {
	before := node.DeepCopy()
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(have corev1.NodeCondition) bool {
		_, theirs := others.conditions[string(have.Type)]
		return !theirs && (have.Type == "GPUReady" || have.Type == "GPUHealthy")
	})
	if len(node.Status.Conditions) == len(before.Status.Conditions) {
		return nil
	}
	c.printf("remove the conditions GPUReady and GPUHealthy of node %s", node.Name)
	if c.dryRun {
		return nil
	}
	return c.client.Status().Patch(ctx, node, client.StrategicMergeFrom(before), client.FieldOwner(label.FieldManager))
}

// removeTaints removes the product's taints: NoSchedule, without a value.
func (c cleanup) removeTaints(ctx context.Context, node *corev1.Node, keys []string) error {
	before := node.DeepCopy()
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return slices.Contains(keys, t.Key) && t.Effect == corev1.TaintEffectNoSchedule && t.Value == ""
	})
	if len(node.Spec.Taints) == len(before.Spec.Taints) {
		return nil
	}
	c.printf("remove the startup taint of node %s", node.Name)
	if c.dryRun {
		return nil
	}
	return c.client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(label.FieldManager))
}

// removeFeatures removes the labels that describe the Node's GPUs, as listed in the annotation.
func (c cleanup) removeFeatures(ctx context.Context, node *corev1.Node, others foreign) error {
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
	if c.dryRun {
		return nil
	}
	return c.client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(label.FieldManager))
}

// writers are the field managers of the operator and the validator on Nodes.
var writers = []string{label.FieldManager, "gpu-validator"}

// foreign holds labels and conditions of a Node that others than operator and validator set, alone
// or together with them, each with its field manager.
type foreign struct{ labels, conditions map[string]string }

func readForeign(node *corev1.Node) foreign {
	found := foreign{map[string]string{}, map[string]string{}}
	for _, entry := range node.ManagedFields {
		if entry.FieldsV1 == nil || slices.Contains(writers, entry.Manager) {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
			Status struct {
				Conditions map[string]json.RawMessage `json:"f:conditions"`
			} `json:"f:status"`
		}
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields) != nil {
			continue // the API server wrote it; without fields it has no owner
		}
		for field := range fields.Metadata.Labels {
			if key, is := strings.CutPrefix(field, "f:"); is {
				found.labels[key] = entry.Manager
			}
		}
		for field := range fields.Status.Conditions {
			var condition struct{ Type string }
			if key, is := strings.CutPrefix(field, "k:"); is && json.Unmarshal([]byte(key), &condition) == nil {
				found.conditions[condition.Type] = entry.Manager
			}
		}
	}
	return found
}

// mayRemove reports whether a Node's label has a name that gpuready writes, and nobody else set
// it. The annotations that list such labels are no evidence: anybody who may write to a Node may
// write them.
func (c cleanup) mayRemove(node *corev1.Node, key string, others foreign) bool {
	if _, has := node.Labels[key]; !has || !writtenByUs(key) {
		return false
	}
	if manager, is := others.labels[key]; is {
		c.printf("label %s of node %s stays: %.80q set it", key, node.Name, manager)
		return false
	}
	return true
}

// writtenByUs reports whether operator or validator write labels of that name on Nodes.
func writtenByUs(key string) bool {
	switch key {
	case label.Present, label.Driver, label.Injection, label.UpgradeState:
		return true
	case label.Operands:
		return false
	}
	return strings.HasPrefix(key, label.Deploy) || nodestate.IsFeature(key)
}

// dropForeign removes from a patch the changes of labels that gpuready must not change.
func (c cleanup) dropForeign(node *corev1.Node, labels map[string]*string, others foreign) {
	for key := range labels {
		if !c.mayRemove(node, key, others) {
			delete(labels, key)
		}
	}
}
