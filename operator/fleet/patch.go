package fleet

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
)

const (
	yes    = "true"
	prefix = "nvidia.com/gpu."
)

// Placement is the desired placement on a Node. The Node's own state takes precedence: no GPU,
// operands excluded, not handed over.
type Placement struct {
	HandOver     bool     // NVIDIA's operator runs: the labels below nvidia.com/ are its own
	Operands     []string // enabled, as in nvidia.com/gpu.deploy.<operand>
	Driver       string   // Choice.ID of the Node's driver; "": none
	HostDriver   bool     // the host has its own driver
	Serve        string   // value of label.Serve; "": none
	HasValidator bool     // a validator still runs there and may write to the Node
}

// Equal reports whether p and o are the same placement.
func (p Placement) Equal(o Placement) bool {
	return p.HandOver == o.HandOver && p.Driver == o.Driver && p.HostDriver == o.HostDriver && p.HasValidator == o.HasValidator && p.Serve == o.Serve && slices.Equal(p.Operands, o.Operands)
}

// Patch is a change of a Node's labels and annotations; nil values are removed.
type Patch struct {
	Labels      map[string]*string
	Annotations map[string]*string
	uid         string
	version     string
}

// Empty reports whether the patch changes nothing.
func (p Patch) Empty() bool {
	return len(p.Labels) == 0 && len(p.Annotations) == 0
}

// JSON returns the body of a merge patch (application/merge-patch+json). It contains the
// resourceVersion that it is based on, so that it overwrites no label that a person has set
// since. The API server then responds with 409 Conflict, and the watch delivers the newer Node.
func (p Patch) JSON() ([]byte, error) {
	type meta struct {
		UID             string             `json:"uid,omitempty"`
		ResourceVersion string             `json:"resourceVersion,omitempty"`
		Labels          map[string]*string `json:"labels,omitempty"`
		Annotations     map[string]*string `json:"annotations,omitempty"`
	}
	return json.Marshal(struct {
		Metadata meta `json:"metadata"`
	}{meta{p.uid, p.version, p.Labels, p.Annotations}})
}

// LabelPatch returns the change that brings the Node to the placement. Once applied, the next
// one is empty.
func (n *Node) LabelPatch(p Placement) Patch {
	patch := n.patch(n.wantedLabels(p), p.HasValidator && !n.Served(p.HandOver))
	var driver, injection string
	if n.Served(p.HandOver) {
		driver, injection = p.Driver, string(n.Injection)
		if p.HostDriver {
			driver = label.PreInstalled
		}
	}
	if injection == "" && n.written() {
		n.removeFeatures(&patch)
	}
	n.setLabel(&patch, label.Driver, driver)
	n.setLabel(&patch, label.Injection, injection)
	return patch
}

// wantedLabels returns the labels below nvidia.com/gpu. that the Node should have. While
// NVIDIA's operator runs, none is added but label.Serve on Nodes handed over; an existing
// nvidia.com/gpu.present stays, as nothing else may show that there is a GPU.
func (n *Node) wantedLabels(p Placement) map[string]string {
	wanted := map[string]string{}
	if n.GPU && (!p.HandOver || n.recorded().has(label.Present)) {
		wanted[label.Present] = yes
	}
	if p.Serve != "" && n.Served(p.HandOver) {
		wanted[label.Serve] = p.Serve
	}
	if p.HandOver || !n.Served(false) {
		return wanted
	}
	for _, operand := range p.Operands {
		wanted[label.Deploy+operand] = yes
	}
	if _, ok := wanted[label.Deploy+label.DriverOperand]; ok && p.HostDriver {
		wanted[label.Deploy+label.DriverOperand] = label.PreInstalled
	}
	return wanted
}

// RemovalPatch returns the change that removes everything that the operator wrote to the Node.
// While a validator runs there, the record stays, so that what the validator writes until it
// ends is removed, too.
func (n *Node) RemovalPatch(hasValidator bool) Patch {
	patch := n.patch(nil, hasValidator)
	n.setLabel(&patch, label.Driver, "")
	n.setLabel(&patch, label.Injection, "")
	if !n.written() {
		return patch
	}
	n.removeFeatures(&patch)
	n.setLabel(&patch, label.UpgradeState, "")
	for _, key := range []string{label.UpgradeSince, label.UpgradeReason, label.UpgradeTarget, label.UpgradeCordoned, label.InitiallyCordoned} {
		if _, ok := n.Annotations[key]; ok {
			patch.Annotations[key] = nil
		}
	}
	return patch
}

// patch changes the labels below nvidia.com/gpu. to the wanted ones, as far as they are the
// operator's. If none of them remains, the record is removed, too, but not before the
// validator has ended.
func (n *Node) patch(wanted map[string]string, hasValidator bool) Patch {
	patch := Patch{map[string]*string{}, map[string]*string{}, n.UID, n.Version}
	old, now := n.recorded(), record{}
	for key, value := range wanted {
		has, exists := n.Labels[key]
		before, mine := old[key]
		switch {
		case mine && has == label.Paused:
			now[key] = before // paused by package upgrade, which resumes it
			continue
		case !exists:
			now[key] = ""
		case mine && isOwnValue(key, has):
			now[key] = before
		case has == yes && value == label.PreInstalled:
			now[key] = yes // another owner's "true" only means that there may be a driver
		default:
			continue
		}
		n.setLabel(&patch, key, value)
	}
	for key, before := range old {
		if _, ok := wanted[key]; !ok && isOwnValue(key, n.Labels[key]) {
			n.setLabel(&patch, key, before)
		}
	}
	if n.Excluded() {
		n.clearOperands(&patch)
	}
	text := now.String()
	has, is := n.Annotations[label.OwnLabels]
	switch {
	case text != "" || hasValidator && n.written():
		if !is || text != has {
			patch.Annotations[label.OwnLabels] = &text
		}
	case is:
		patch.Annotations[label.OwnLabels] = nil
	}
	return patch
}

// clearOperands removes every label that places an operand, whoever wrote it. A person wants
// none on the Node, and labels that NVIDIA's operator left would keep them there.
func (n *Node) clearOperands(patch *Patch) {
	for key, value := range n.Labels {
		_, changed := patch.Labels[key]
		if strings.HasPrefix(key, label.Deploy) && key != label.Operands && (value == yes || value == label.Paused || changed) {
			patch.Labels[key] = nil
		}
	}
}

// written reports whether the operator has written to the Node.
func (n *Node) written() bool {
	_, recorded := n.Annotations[label.OwnLabels]
	return recorded || n.Labels[label.Driver] != "" || n.Labels[label.Injection] != ""
}

// removeFeatures removes the labels by which the validator describes the Node's GPUs. The
// validator is leaving the Node, and nobody else would remove them.
func (n *Node) removeFeatures(patch *Patch) {
	text, has := n.Annotations[label.Features]
	if !has {
		return
	}
	for short := range strings.SplitSeq(text, ",") {
		if key := "nvidia.com/" + short; nodestate.IsFeature(key) {
			patch.Labels[key] = nil
		}
	}
	patch.Annotations[label.Features] = nil
}

// setLabel changes a label; "" removes it.
func (n *Node) setLabel(patch *Patch, key, value string) {
	if has, exists := n.Labels[key]; exists != (value != "") || has != value {
		patch.Labels[key] = pointer(value)
	}
}

func pointer(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// isOwnValue reports whether a label has a value that the operator gives it.
func isOwnValue(key, value string) bool {
	if key == label.Serve {
		return value == string(v1.ServeDRA)
	}
	return value == yes || value == label.Paused || value == label.PreInstalled && key == label.Deploy+label.DriverOperand
}

// record maps the full names of labels that the operator wrote, as listed in the annotation,
// to their values before that, "" for none.
type record map[string]string

func (r record) has(key string) bool {
	_, ok := r[key]
	return ok
}

// recorded reads the annotation. It skips names that the operator does not write, so that the
// annotation can only cause the removal of the operator's labels.
func (n *Node) recorded() record {
	text := n.Annotations[label.OwnLabels]
	if text == "" {
		return nil
	}
	r := record{}
	for entry := range strings.SplitSeq(text, ",") {
		name, before, _ := strings.Cut(entry, "=")
		key := prefix + name
		if (key == label.Present || key == label.Serve || strings.HasPrefix(key, label.Deploy) && key != label.Operands) && (before == "" || before == yes) {
			r[key] = before
		}
	}
	return r
}

func (r record) String() string {
	var entries []string
	for _, key := range slices.Sorted(maps.Keys(r)) {
		entry := strings.TrimPrefix(key, prefix)
		if before := r[key]; before != "" {
			entry += "=" + before
		}
		entries = append(entries, entry)
	}
	return strings.Join(entries, ",")
}
