package nodestatus

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

// LabelsAnnotation lists the Node's labels that this validator, or one before it, has set.
// It is kept on the Node, so that a validator after a reboot or a new installation knows
// which to remove. Node Feature Discovery does the same for its labels (pkg/nfd-master,
// nfd.node.kubernetes.io/feature-labels).
const LabelsAnnotation = "gpuready.io/feature-labels"

// labelPrefix is left out in the annotation, whose names are separated by commas.
const labelPrefix = "nvidia.com/"

// labels returns the wanted labels about the GPUs; nil: the Node's labels stay, since the
// device plugin is away, does not know, or has another publisher.
func (f Facts) labels() map[string]string {
	s, ok := f.States[nodestate.DevicePlugin]
	if !ok || s.DevicePlugin == nil {
		return nil
	}
	return s.DevicePlugin.Labels
}

// writeLabels sets the Node's labels to the wanted ones.
func (p *Publisher) writeLabels(ctx context.Context, want map[string]string) error {
	node, err := p.Client.Node(ctx, p.Node)
	if err != nil {
		return fmt.Errorf("read Node %s: %w", p.Node, err)
	}
	if change := labelChange(node, want); change != nil {
		patch, err := json.Marshal(map[string]any{"metadata": change})
		if err != nil {
			return err
		}
		if err := p.Client.MergeNode(ctx, p.Node, patch); err != nil {
			return fmt.Errorf("label Node %s: %w", p.Node, err)
		}
		p.Log.Info("labelled the Node", "labels", len(want), "product", want[labelPrefix+"gpu.product"])
	}
	p.labelled, p.labelledAt = want, p.Now()
	return nil
}

// labelChange returns the merge patch for the Node's metadata; nil: no change. It
// overwrites differing values and removes only our own labels, as Node Feature Discovery
// does (pkg/nfd-master, createPatches).
func labelChange(node *corev1.Node, want map[string]string) map[string]any {
	labels := map[string]any{}
	for name, value := range want {
		if is, ok := node.Labels[name]; !ok || is != value {
			labels[name] = value
		}
	}
	for _, name := range ownLabels(node) {
		_, wanted := want[name]
		if _, ok := node.Labels[name]; ok && !wanted {
			labels[name] = nil
		}
	}
	change := map[string]any{}
	if len(labels) > 0 {
		change["labels"] = labels
	}
	is, ok := node.Annotations[LabelsAnnotation]
	switch now := annotation(want); {
	case now == "" && ok:
		change["annotations"] = map[string]any{LabelsAnnotation: nil}
	case now != is, now != "" && len(labels) > 0: // an uninstallation may remove it meanwhile, and finds our labels by it
		change["annotations"] = map[string]any{LabelsAnnotation: now}
	}
	if len(change) == 0 {
		return nil
	}
	return change
}

// ownLabels returns the labels that the annotation names. Anybody can write it, so names other
// than those of GPU features are ignored.
func ownLabels(node *corev1.Node) []string {
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
