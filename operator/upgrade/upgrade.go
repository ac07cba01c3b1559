// Package upgrade plans how a change of the driver goes through the cluster. It is
// pure: what is observed goes in, what to do next comes out, and all that is remembered
// lies in labels and annotations of the Nodes, so that whoever plans next goes on.
//
// A node whose driver is not the one that it should have goes through the states of
// NVIDIA's k8s-operator-libs (pkg/upgrade), which the label
// nvidia.com/gpu-driver-upgrade-state shows:
//
//	upgrade-required → wait-for-jobs-required → pod-deletion-required → drain-required
//	→ pod-restart-required → validation-required → uncordon-required → upgrade-done
//
// and upgrade-failed from any of them. Leaving upgrade-required and cordoning are one
// write, and so are uncordoning and upgrade-done; states with nothing to wait for are
// passed within one plan. See docs/operator-upgrade.md.
package upgrade

import (
	"slices"
	"time"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// State is how far a node's upgrade is, the value of label.UpgradeState.
type State string

// The states, as the reference spells them.
const (
	Unknown            State = ""
	Required           State = "upgrade-required"       // outdated, and waits for its turn; with label.UpgradeWhy: it gave one back
	CordonRequired     State = "cordon-required"        // understood, never written: the reference's
	WaitForJobs        State = "wait-for-jobs-required" // cordoned; waits for pods of waitForCompletion
	PodDeletion        State = "pod-deletion-required"  // pods that use GPUs are evicted
	DrainRequired      State = "drain-required"         // all other pods are
	PodRestart         State = "pod-restart-required"   // the old driver pod goes, the new one comes
	ValidationRequired State = "validation-required"    // the driver pod is ready, its proof is waited for
	UncordonRequired   State = "uncordon-required"      // understood, never written: the reference's
	Done               State = "upgrade-done"
	Failed             State = "upgrade-failed" // the new driver is to blame: no other node starts; label.UpgradeWhy says why
)

// InFlight says that the node's upgrade has begun and has neither ended nor failed.
func (s State) InFlight() bool {
	switch s {
	case CordonRequired, WaitForJobs, PodDeletion, DrainRequired, PodRestart, ValidationRequired, UncordonRequired:
		return true
	}
	return false
}

// evicts says that what the upgrade does next depends on the node's pods.
func (s State) evicts() bool {
	return s == CordonRequired || s == WaitForJobs || s == PodDeletion || s == DrainRequired
}

// Target is the driver that the nodes of a pool are to have.
type Target struct {
	ID     string // driver.Choice.ID; "": the operator gives these nodes no driver
	Name   string // of the DaemonSet, driver.Choice.Name
	Digest string // of its pod template, label.DriverDigest
	Keep   bool   // driver.Problem.Keep: what serves these nodes goes on doing so
}

// Input is all that a plan is made of.
type Input struct {
	Policy Policy
	Nodes  []*fleet.Node // the GPU nodes that are this operator's, in any order
	// Settled is what those of them come to that are left out, as there is nothing to do for
	// them: the sum of what plans before have said of them.
	Settled Share
	// Leaving are nodes that are not this operator's, or not any more: what an upgrade left
	// there is undone.
	Leaving []*fleet.Node
	Targets map[fleet.Pool]Target // pools that are not in it keep what they have; nil: there is no policy, and all nodes are leaving
	Sets    map[string]Set        // by ID
	Drivers map[string]*Driver    // driver pods, by node; one that is being deleted gives way to one that is not
	// Pods are those of the nodes in Plan.Watch of the plan before, by node. A node that
	// is not in it waits until its pods are known; an empty list means that there are none.
	Pods map[string][]*Pod
	// Classes are the RuntimeClasses that there are, and whether they give containers GPUs.
	Classes map[string]bool
	// Writing are nodes to which a write is on its way, made of the Node that is in Nodes;
	// true: their upgrade begins by it (Patch.Begins).
	Writing map[string]bool
	// Refused are nodes that could not be written, or whose driver pod could not be deleted,
	// for WriteDeadline or longer. That is no evidence against a driver: their upgrade gives
	// its turn back, and is tried again when another is free.
	Refused map[string]Refusal
	Now     time.Time
	// Serves says whether the DaemonSet of an ID is made for the nodes of a pool, whatever
	// its node selector (driver.Serves). nil: each is for all.
	Serves func(id string, pool fleet.Pool) bool
}

// Plan is what to do now. Carried out in part, or twice, or by another process, it does
// no harm; planning again after it was carried out yields nothing new, but for evictions
// that were refused.
type Plan struct {
	Patches []Patch           // of Nodes, by name; at most one each, see Plan.Patch
	Assign  map[string]string // new value of label.Driver by node, where it changes; "": remove it
	Evict   []Removal         // through the Eviction API; a refusal (429) is tried again later
	Delete  []Removal         // driver pods
	Watch   []string          // nodes, by name, whose pods the next plan has to know, the first ones first
	Wake    time.Time         // when to plan again although nothing changes: the next timeout; zero: never
	Waiting map[string]string // what the nodes in flight wait for, one sentence
	// Settled are nodes for which nothing is to be done until something changes about them
	// or their driver pod, or about the policy, the targets or the sets: until then plans
	// may be made without them. Thousands cost as little as a few.
	Settled map[string]Share
	Failed  []Failure // by node; while there is one, no node starts
	// Unwritten are nodes of Input.Refused that wait for another turn; they count as failed,
	// and others start all the same. Blocked are the same for nodes on which a pod stands in
	// the way, which is no evidence against a driver either.
	Unwritten, Blocked []Failure
	Counts             Counts
}

// Driver is the value of label.Driver that the node is to carry from now on.
func (p *Plan) Driver(n *fleet.Node) string {
	if id, ok := p.Assign[n.Name]; ok {
		return id
	}
	if id := assigned(n); id != label.PreInstalled {
		return id
	}
	return "" // the host's driver has gone: the next plan assigns one
}

// Refusal is a write that failed again and again.
type Refusal struct {
	Why   string    // one sentence
	Since time.Time // when it failed first
	Next  time.Time // when it may be tried again; zero: when something has changed about it
}

// WriteDeadline is for how long a write of a node's upgrade may fail before the upgrade
// gives its turn back, and WriteAgain is the pause before it is tried again then. PodsAgain
// is the pause where a pod was evicted in vain, and is still there: trying again costs the
// node's other pods their place.
const (
	WriteDeadline = 2 * time.Minute
	WriteAgain    = time.Minute
	PodsAgain     = time.Hour
)

// Waits reports whether a node could not be written, and waits for another turn.
func (p *Plan) Waits(node string) bool {
	return slices.ContainsFunc(p.Unwritten, func(f Failure) bool { return f.Node == node })
}

// Removal is a pod to be removed, by its UID.
type Removal struct {
	Node, NodeUID        string
	Namespace, Name, UID string
}

// Event is one to be told of a Node.
type Event struct {
	Warning bool
	Reason  string
	Message string
}

// Reason is that of all Events of upgrades, as in the reference.
const Reason = "GPUDriverUpgrade"

// Failure is a node whose upgrade failed.
type Failure struct {
	Node  string
	Why   string
	Since time.Time
}

// Share is what a node adds to a plan in which it is not looked at, or what several do.
type Share struct {
	Counts
	Unavailable int // cordoned or not ready
}

// Add returns the sum.
func (s Share) Add(o Share) Share { return s.combine(o, 1) }

// Less returns s without o, which is part of it.
func (s Share) Less(o Share) Share { return s.combine(o, -1) }

func (s Share) combine(o Share, sign int) Share {
	s.Total += sign * o.Total
	s.Done += sign * o.Done
	s.InProgress += sign * o.InProgress
	s.Pending += sign * o.Pending
	s.Skipped += sign * o.Skipped
	s.Failed += sign * o.Failed
	s.Unavailable += sign * o.Unavailable
	return s
}

// Counts are of the nodes that have a target.
type Counts struct {
	Total      int
	Done       int // have the driver that they should have
	InProgress int
	Pending    int // outdated, not begun; of those skipped too
	Skipped    int // of the pending: a person's label keeps them as they are
	Failed     int
}
