// Package leftover finds what gpuready has written to a Node, and computes the patches that remove
// it. It does no I/O. It serves gpu-operator cleanup, which runs while the product is uninstalled, and
// kubectl gpu cleanup, which runs afterwards.
//
// The annotations in which operator and validator record their labels do not suffice as evidence,
// since anybody who may write to a Node may write them. So a label is kept if the API server records
// that another field manager set it.
package leftover

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// Node describes what gpuready has left on a Node.
type Node struct {
	Name        string            `json:"name"`
	Conditions  []string          `json:"conditions,omitempty"`
	Taints      []string          `json:"taints,omitempty"` // their keys
	Labels      []string          `json:"labels,omitempty"`
	Restored    map[string]string `json:"restored,omitempty"` // labels that get back an earlier value
	Annotations []string          `json:"annotations,omitempty"`
	Uncordon    bool              `json:"uncordon,omitempty"` // an upgrade of gpuready's cordoned the Node
	Kept        []Kept            `json:"kept,omitempty"`

	metadata metadata
	taints   []corev1.Taint    // that are kept
	values   map[string]string // of the Node's labels
}

// Kept describes a condition, taint or label that has a name of gpuready's and is not removed.
type Kept struct {
	What string `json:"what"` // "label nvidia.com/gpu.present"
	Why  string `json:"why"`
}

// conditions are the types of the validator's conditions.
var conditions = []string{"GPUReady", "GPUHealthy"}

// Find returns what is left on a Node. taints are the keys of startup taints.
func Find(node *corev1.Node, taints []string) Node {
	f := finder{node: node, others: readForeign(node)}
	f.left = Node{Name: node.Name, values: node.Labels, metadata: metadata{UID: string(node.UID), ResourceVersion: node.ResourceVersion}}
	f.findConditions()
	f.findTaints(taints)
	f.findLabels()
	slices.SortFunc(f.left.Kept, func(a, b Kept) int { return strings.Compare(a.What, b.What) })
	return f.left
}

// Empty reports whether there is nothing to remove.
func (n Node) Empty() bool {
	return len(n.Conditions)+len(n.Taints)+len(n.Labels)+len(n.Restored)+len(n.Annotations) == 0 && !n.Uncordon
}

// metadata is the changed part of a Node's metadata; nil values are removed.
type metadata struct {
	UID             string             `json:"uid,omitempty"`
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	Labels          map[string]*string `json:"labels,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}

// StatusPatch returns the strategic merge patch of the Node's status, nil if it needs none. It is based
// on the resourceVersion of the Node in which n was found: what Patch replaces as a whole, such as
// taints, may have changed since.
func (n Node) StatusPatch() ([]byte, error) {
	if len(n.Conditions) == 0 {
		return nil, nil
	}
	var gone []map[string]string
	for _, kind := range n.Conditions {
		gone = append(gone, map[string]string{"type": kind, "$patch": "delete"})
	}
	return json.Marshal(map[string]any{"metadata": metadata{UID: n.metadata.UID, ResourceVersion: n.metadata.ResourceVersion}, "status": map[string]any{"conditions": gone}})
}

// Patch returns the merge patch of all but the Node's status, nil if it needs none. It is to be
// applied after the status, since with it the records of what gpuready wrote are gone.
func (n Node) Patch() ([]byte, error) {
	rest := n
	rest.Conditions = nil
	if rest.Empty() {
		return nil, nil
	}
	spec := map[string]any{}
	if len(n.Taints) > 0 {
		spec["taints"] = n.taints
	}
	if n.Uncordon {
		spec["unschedulable"] = false
	}
	body := map[string]any{"metadata": n.metadata}
	if len(spec) > 0 {
		body["spec"] = spec
	}
	return json.Marshal(body)
}

// At returns n based on another resourceVersion, that of the Node after the patch of its status.
func (n Node) At(resourceVersion string) Node {
	n.metadata.ResourceVersion = resourceVersion
	return n
}

// KeepOperands returns n without the removal of labels that place operands. NVIDIA's operator does not
// write those again that it finds, and without them its pods are deleted, drivers included.
func (n Node) KeepOperands(why string) Node {
	isPlacing := func(key string) bool {
		return (key == label.Present || strings.HasPrefix(key, label.Deploy)) && n.values[key] != label.Paused
	}
	n.metadata.Labels, n.Kept = maps.Clone(n.metadata.Labels), slices.Clone(n.Kept)
	for _, key := range n.Labels {
		if isPlacing(key) {
			delete(n.metadata.Labels, key)
			n.Kept = append(n.Kept, Kept{"label " + key, why})
		}
	}
	n.Labels = slices.DeleteFunc(slices.Clone(n.Labels), isPlacing)
	slices.SortFunc(n.Kept, func(a, b Kept) int { return strings.Compare(a.What, b.What) })
	return n
}

// finder finds what is left on a Node.
type finder struct {
	node   *corev1.Node
	others foreign
	left   Node
}

func (f *finder) addKept(what, format string, args ...any) {
	f.left.Kept = append(f.left.Kept, Kept{what, fmt.Sprintf(format, args...)})
}

func (f *finder) findConditions() {
	for _, c := range f.node.Status.Conditions {
		kind := string(c.Type)
		if !slices.Contains(conditions, kind) {
			continue
		}
		if manager, is := f.others.conditions[kind]; is {
			f.addKept("condition "+kind, "%s set it", quote(manager))
			continue
		}
		f.left.Conditions = append(f.left.Conditions, kind)
	}
}

// findTaints finds the product's taints: NoSchedule, without a value.
func (f *finder) findTaints(keys []string) {
	f.left.taints = []corev1.Taint{}
	for _, t := range f.node.Spec.Taints {
		switch {
		case !slices.Contains(keys, t.Key):
		case t.Effect == corev1.TaintEffectNoSchedule && t.Value == "":
			f.left.Taints = append(f.left.Taints, t.Key)
			continue
		default:
			f.addKept("taint "+t.ToString(), "gpuready's has the effect NoSchedule and no value")
		}
		f.left.taints = append(f.left.taints, t)
	}
}

// findLabels finds labels, annotations and a cordon.
func (f *finder) findLabels() {
	n := fleet.Observe(f.node)
	plan := upgrade.NewPlan(upgrade.Input{Nodes: []*fleet.Node{n}, Now: time.Now()})
	patch, _ := plan.Patch(n, n.RemovalPatch(false))
	f.left.Uncordon = patch.Unschedulable != nil && !*patch.Unschedulable
	f.left.metadata.Labels, f.left.metadata.Annotations = map[string]*string{}, map[string]*string{}
	maps.Copy(f.left.metadata.Annotations, patch.Annotations)

	wanted := map[string]*string{}
	maps.Copy(wanted, patch.Labels)
	if names, is := f.node.Annotations[label.Features]; is {
		f.left.metadata.Annotations[label.Features] = nil
		for name := range strings.SplitSeq(names, ",") {
			if key := "nvidia.com/" + name; nodestate.IsFeature(key) {
				wanted[key] = nil
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if f.mayRemove(key) {
			f.addLabel(key, wanted[key])
		}
	}
	for key := range f.left.metadata.Annotations {
		if _, has := f.node.Annotations[key]; has {
			f.left.Annotations = append(f.left.Annotations, key)
		}
	}
	slices.Sort(f.left.Annotations)
	for key := range f.node.Labels {
		ours := writtenByUs(key) || strings.HasPrefix(key, "gpuready.io/") || key == label.Operands
		if _, changes := f.left.metadata.Labels[key]; !ours || changes {
			continue
		}
		if manager, is := f.others.labels[key]; is {
			f.addKept("label "+key, "%s set it", quote(manager))
		} else {
			f.addKept("label "+key, "not recorded as gpuready's")
		}
	}
}

func (f *finder) addLabel(key string, value *string) {
	f.left.metadata.Labels[key] = value
	if value == nil {
		f.left.Labels = append(f.left.Labels, key)
		return
	}
	if f.left.Restored == nil {
		f.left.Restored = map[string]string{}
	}
	f.left.Restored[key] = *value
}

// mayRemove reports whether a label has a name that gpuready writes, and nobody else set it.
func (f *finder) mayRemove(key string) bool {
	if _, has := f.node.Labels[key]; !has || !writtenByUs(key) {
		return false
	}
	_, foreign := f.others.labels[key]
	return !foreign
}

// quote quotes the name of a field manager, which anybody may choose.
func quote(manager string) string { return fmt.Sprintf("%q", record.Clean(manager, 80)) }

// writtenByUs reports whether operator or validator write labels of that name on Nodes.
func writtenByUs(key string) bool {
	switch key {
	case label.Present, label.Serve, label.Driver, label.Injection, label.UpgradeState:
		return true
	case label.Operands:
		return false
	}
	return strings.HasPrefix(key, label.Deploy) || nodestate.IsFeature(key)
}
