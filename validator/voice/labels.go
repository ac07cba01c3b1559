package voice

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// LabelsAnnotation names the labels of the Node that this validator, or one before
// it, has put there. It stands on the Node, beside them, so that whoever comes after a
// reboot or a new installation knows what to take away. Node Feature Discovery does so
// with its own (pkg/nfd-master, nfd.node.kubernetes.io/feature-labels).
const LabelsAnnotation = "gpuready.io/feature-labels"

// labelPrefix is left out in the annotation, whose names are separated by commas.
const labelPrefix = "nvidia.com/"

// labels are what the Node is to say of its GPUs; nil: it is left alone, since the
// device plugin is away, does not know, or has another publisher.
func (f Facts) labels() map[string]string {
	s, ok := f.States[nodestate.DevicePlugin]
	if !ok || s.DevicePlugin == nil {
		return nil
	}
	return s.DevicePlugin.Labels
}

// sayLabels makes the Node's labels what they are to be.
func (v *Voice) sayLabels(ctx context.Context, want map[string]string) error {
	node, err := v.Client.Node(ctx, v.Node)
	if err != nil {
		return fmt.Errorf("read Node %s: %w", v.Node, err)
	}
	if change := labelChange(node, want); change != nil {
		patch, err := json.Marshal(map[string]any{"metadata": change})
		if err != nil {
			return err
		}
		if err := v.Client.MergeNode(ctx, v.Node, patch); err != nil {
			return fmt.Errorf("label Node %s: %w", v.Node, err)
		}
		v.Log.Info("labelled the Node", "labels", len(want), "product", want[labelPrefix+"gpu.product"])
	}
	v.labelled, v.labelledAt = want, v.Now()
	return nil
}

// labelChange is what to merge into the Node's metadata; nil: nothing. What somebody
// else set differently is set anew, and only what was put there by us is taken away:
// so does Node Feature Discovery (pkg/nfd-master, createPatches).
func labelChange(node *corev1.Node, want map[string]string) map[string]any {
	labels := map[string]any{}
	for name, value := range want {
		if is, has := node.Labels[name]; !has || is != value {
			labels[name] = value
		}
	}
	for _, name := range ours(node) {
		_, wanted := want[name]
		if _, has := node.Labels[name]; has && !wanted {
			labels[name] = nil
		}
	}
	change := map[string]any{}
	if len(labels) > 0 {
		change["labels"] = labels
	}
	is, has := node.Annotations[LabelsAnnotation]
	switch now := annotation(want); {
	case now == "" && has:
		change["annotations"] = map[string]any{LabelsAnnotation: nil}
	case now != is:
		change["annotations"] = map[string]any{LabelsAnnotation: now}
	}
	if len(change) == 0 {
		return nil
	}
	return change
}

// ours are the labels that the annotation names. It is anybody's to write: names of
// other things than GPUs' features are passed over.
func ours(node *corev1.Node) []string {
	var names []string
	for short := range strings.SplitSeq(node.Annotations[LabelsAnnotation], ",") {
		if name := labelPrefix + short; nodestate.IsFeature(name) {
			names = append(names, name)
		}
	}
	return names
}

func annotation(labels map[string]string) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		names = append(names, strings.TrimPrefix(name, labelPrefix))
	}
	return strings.Join(names, ",")
}
