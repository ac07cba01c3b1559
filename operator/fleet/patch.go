package fleet

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/operator/label"
)

const (
	yes    = "true"
	prefix = "nvidia.com/gpu."
)

// Placement is what a Node is to have. What the Node itself says (no GPU, operands kept
// away, not handed over) goes before it.
type Placement struct {
	HandOver   bool     // NVIDIA's operator runs: the labels below nvidia.com/ are its own
	Operands   []string // enabled, as in nvidia.com/gpu.deploy.<operand>
	Driver     string   // Choice.ID of the driver that is to serve the Node, "": none
	HostDriver bool     // the host has its own driver
	Speaks     bool     // a validator still runs there, and may write on the Node
}

// Patch is what changes of a Node's labels and annotations; nil values are removed.
type Patch struct {
	Labels      map[string]*string
	Annotations map[string]*string
	uid         string
	version     string
}

// Empty says that there is nothing to do.
func (p Patch) Empty() bool {
	return len(p.Labels) == 0 && len(p.Annotations) == 0
}

// JSON returns the body of a merge patch (application/merge-patch+json). It names the
// resourceVersion that it was made from, so that a label that a person has set since is
// not overwritten: the API server then answers 409 Conflict, and the newer Node is on its way.
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

// LabelPatch returns what brings the Node to the placement. Applied twice, it is empty
// the second time.
func (n *Node) LabelPatch(p Placement) Patch {
	patch := n.patch(n.wantedLabels(p), p.Speaks && !n.Served(p.HandOver))
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

// wantedLabels are the labels below nvidia.com/gpu. that the Node is to have. While NVIDIA's
// operator runs there are none to add; that a GPU is there stays said where it was, as it
// may be the only thing that says so.
func (n *Node) wantedLabels(p Placement) map[string]string {
	wanted := map[string]string{}
	if n.GPU && (!p.HandOver || n.recorded().has(label.Present)) {
		wanted[label.Present] = yes
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

// RemovalPatch returns what takes from the Node all that the operator wrote there. While a
// validator speaks, that the operator was there stays said: what the validator writes until
// it ends is then taken away, too.
func (n *Node) RemovalPatch(speaks bool) Patch {
	patch := n.patch(nil, speaks)
	n.setLabel(&patch, label.Driver, "")
	n.setLabel(&patch, label.Injection, "")
	if !n.written() {
		return patch
	}
	n.removeFeatures(&patch)
	n.setLabel(&patch, label.UpgradeState, "")
	for _, key := range []string{label.UpgradeSince, label.UpgradeWhy, label.UpgradeTarget, label.UpgradeCordoned, label.InitiallyCordoned} {
		if _, ok := n.Annotations[key]; ok {
			patch.Annotations[key] = nil
		}
	}
	return patch
}

// patch brings the labels below nvidia.com/gpu. to what is wanted, as far as they are
// the operator's to change. Of a Node that keeps none of them the record of them goes, too,
// but not before the validator.
func (n *Node) patch(wanted map[string]string, speaks bool) Patch {
	patch := Patch{map[string]*string{}, map[string]*string{}, n.UID, n.Version}
	old, now := n.recorded(), record{}
	for key, value := range wanted {
		has, exists := n.Labels[key]
		before, mine := old[key]
		switch {
		case mine && has == label.Paused:
			now[key] = before // package upgrade's, until it says otherwise
			continue
		case !exists:
			now[key] = ""
		case mine && isOwnValue(key, has):
			now[key] = before
		case has == yes && value == label.PreInstalled:
			now[key] = yes // somebody else's "true" says no more than that there may be a driver
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
	if n.Away() {
		n.clearOperands(&patch)
	}
	text := now.String()
	has, is := n.Annotations[label.Wrote]
	switch {
	case text != "" || speaks && n.written():
		if !is || text != has {
			patch.Annotations[label.Wrote] = &text
		}
	case is:
		patch.Annotations[label.Wrote] = nil
	}
	return patch
}

// clearOperands removes whatever "true" places an operand, whoever wrote it: a person wants none
// on the Node, and labels that NVIDIA's operator left would hold them there.
func (n *Node) clearOperands(patch *Patch) {
	for key, value := range n.Labels {
		_, changed := patch.Labels[key]
		if strings.HasPrefix(key, label.Deploy) && key != label.Operands && (value == yes || value == label.Paused || changed) {
			patch.Labels[key] = nil
		}
	}
}

// written says whether the operator has written on the Node.
func (n *Node) written() bool {
	_, recorded := n.Annotations[label.Wrote]
	return recorded || n.Labels[label.Driver] != "" || n.Labels[label.Injection] != ""
}

// removeFeatures removes the labels by which the validator says what the Node's GPUs are: it is
// taken off the Node, and nobody else would.
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

// isOwnValue says whether a label that the operator wrote still has a value that it gives it.
func isOwnValue(key, value string) bool {
	return value == yes || value == label.Paused || value == label.PreInstalled && key == label.Deploy+label.DriverOperand
}

// record is what the annotation says of the labels that the operator wrote: whole name to
// the value that was there before, "" for none.
type record map[string]string

func (r record) has(key string) bool {
	_, ok := r[key]
	return ok
}

// recorded reads the annotation. What is no name of a label that the operator writes is
// passed over: the annotation is only ever a reason to remove one of those.
func (n *Node) recorded() record {
	text := n.Annotations[label.Wrote]
	if text == "" {
		return nil
	}
	r := record{}
	for entry := range strings.SplitSeq(text, ",") {
		name, before, _ := strings.Cut(entry, "=")
		key := prefix + name
		if (key == label.Present || strings.HasPrefix(key, label.Deploy) && key != label.Operands) && (before == "" || before == yes) {
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
