// Package upgrade plans how a driver change rolls through the cluster. It is pure: Input
// holds what was observed and Plan holds what to do next. All state is in labels and
// annotations of the Nodes, so that any later plan continues where this one stopped.
//
// A node with another driver than its target goes through the states of NVIDIA's
// k8s-operator-libs (pkg/upgrade), which the label nvidia.com/gpu-driver-upgrade-state
// shows:
//
//	upgrade-required → wait-for-jobs-required → pod-deletion-required → drain-required
//	→ pod-restart-required → validation-required → uncordon-required → upgrade-done
//
// and upgrade-failed from any of them. Leaving upgrade-required and cordoning are one
// write, and so are uncordoning and upgrade-done. One plan passes through all states that
// have nothing to wait for. See docs/upgrade.md.
package upgrade

import (
	"slices"
	"time"

	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// State is the progress of a node's upgrade, the value of label.UpgradeState.
type State string

// The states, as the reference spells them.
const (
	Unknown            State = ""
	Required           State = "upgrade-required"       // outdated, waits for its turn; with label.UpgradeReason: deferred after an earlier turn
	CordonRequired     State = "cordon-required"        // read but never written: a state of the reference
	WaitForJobs        State = "wait-for-jobs-required" // cordoned; waits for pods of waitForCompletion
	PodDeletion        State = "pod-deletion-required"  // pods that use GPUs are evicted
	DrainRequired      State = "drain-required"         // all other pods are evicted
	PodRestart         State = "pod-restart-required"   // the old driver pod is replaced by the new one
	ValidationRequired State = "validation-required"    // the driver pod is ready but not validated
	UncordonRequired   State = "uncordon-required"      // read but never written: a state of the reference
	Done               State = "upgrade-done"
	Failed             State = "upgrade-failed" // the new driver failed, so that no other node starts; label.UpgradeWhy holds the reason
)

// InFlight reports whether the node's upgrade has begun and has neither ended nor failed.
func (s State) InFlight() bool {
	switch s {
	case CordonRequired, WaitForJobs, PodDeletion, DrainRequired, PodRestart, ValidationRequired, UncordonRequired:
		return true
	}
	return false
}

// evicts reports whether the upgrade's next step depends on the node's pods.
func (s State) evicts() bool {
	return s == CordonRequired || s == WaitForJobs || s == PodDeletion || s == DrainRequired
}

// Target is the driver that the nodes of a pool should have.
type Target struct {
	ID     string // driver.Choice.ID; "" if the operator gives these nodes no driver
	Name   string // of the DaemonSet, driver.Choice.Name
	Digest string // of its pod template, label.DriverDigest
	Keep   bool   // driver.Problem.Keep: these nodes keep the driver they have
}

// Input holds everything that a plan depends on.
type Input struct {
	Policy Policy
	Nodes  []*fleet.Node // GPU nodes of this operator, in any order
	// HandOver reports whether NVIDIA's operator runs as well: a node without a driver of this operator
	// was handed over by a person, who has decided about the pods that use the loaded one.
	HandOver bool
	// Leaving are nodes that do not or no longer belong to this operator: what an upgrade
	// left there is undone.
	Leaving []*fleet.Node
	Targets map[fleet.Pool]Target // absent pools keep what they have; nil: there is no policy, and all nodes are leaving
	Sets    map[string]Set        // by ID
	Drivers map[string]*Driver    // driver pods, by node; of two, the one that is not being deleted
	// Pods holds the pods of the nodes in the previous Plan.Watch, by node. An absent node
	// waits until its pods are known; an empty list means that it has no pods.
	Pods map[string][]*Pod
	// Classes are the existing RuntimeClasses; true if they give containers GPUs.
	Classes map[string]bool
	// Writing are nodes with a pending write that was planned on the Node in Nodes. The value
	// is true if the write begins their upgrade (Patch.Begins).
	Writing map[string]bool
	// Refused are nodes that could not be written, or whose driver pod could not be deleted,
	// for WriteDeadline or longer. That is no evidence against the driver: their upgrade
	// yields its turn and is retried when another turn is free.
	Refused map[string]Refusal
	Now     time.Time
	// Serves reports whether the DaemonSet of an ID is made for the nodes of a pool, apart
	// from its node selector (driver.Serves). If it is nil, every DaemonSet serves all pools.
	Serves func(id string, pool fleet.Pool) bool
	// IsOf reports whether the DaemonSet of an ID installs the driver of the NVIDIADriver that
	// selects the nodes of a pool (driver.IsOf). If it is nil, every DaemonSet does.
	IsOf func(id string, pool fleet.Pool) bool
}

// Plan holds what to do now. Carrying it out in part, twice or in another process does no
// harm. Planning again after it was carried out yields nothing new, except evictions that
// were refused.
type Plan struct {
	Patches  []Patch           // of Nodes, by name; at most one each, see Plan.Patch
	Assign   map[string]string // new value of label.Driver by node, where it changes; "": remove it
	Evict    []Removal         // through the Eviction API; a refusal (429) is retried later
	Delete   []Removal         // driver pods
	Watch    []string          // nodes whose pods the next plan must know, the most important first
	idle     int               // number of nodes at the end of Watch whose upgrade has not begun
	NextPlan time.Time         // when to plan again without a change: the next timeout; zero: never
	Waiting  map[string]string // what the nodes in flight wait for, one sentence
	Failed   []Failure         // by node; while there is one, no other node starts
	// Unwritten are nodes of Input.Refused that wait for another turn. They count as failed,
	// but do not stop other nodes from starting. Blocked are the same for nodes on which a
	// pod blocks the upgrade, which is no evidence against the driver either.
	Unwritten, Blocked []Failure
	Counts             Counts
}

// Driver returns the value of label.Driver that the node should carry.
func (p *Plan) Driver(n *fleet.Node) string {
	if id, ok := p.Assign[n.Name]; ok {
		return id
	}
	if id := assigned(n); id != label.PreInstalled {
		return id
	}
	return "" // the host's driver is gone: the next plan assigns one
}

// Refusal describes a write that failed repeatedly.
type Refusal struct {
	Why   string    // one sentence
	Since time.Time // of the first failure
	Next  time.Time // when it may be retried; zero: when its subject has changed
}

// WriteDeadline bounds how long a write of a node's upgrade may fail before the upgrade yields
// its turn, and WriteRetry is the pause before the next attempt. PodsRetry is the pause after
// a pod was evicted in vain and is still there: each attempt costs the node's other pods
// their place.
const (
	WriteDeadline = 2 * time.Minute
	WriteRetry    = time.Minute
	PodsRetry     = time.Hour
)

// IsUnwritten reports whether a node could not be written and waits for another turn.
func (p *Plan) IsUnwritten(node string) bool {
	return slices.ContainsFunc(p.Unwritten, func(f Failure) bool { return f.Node == node })
}

// Removal identifies a pod to remove by its UID.
type Removal struct {
	Node, NodeUID        string
	Namespace, Name, UID string
}

// Event is a Kubernetes Event to record for a Node.
type Event struct {
	Warning bool
	Reason  string
	Message string
}

// Reason is the reason of all Events of upgrades, as in the reference.
const Reason = "GPUDriverUpgrade"

// Failure is a node whose upgrade failed.
type Failure struct {
	Node  string
	Why   string
	Since time.Time
}

// Counts counts the nodes that have a target.
type Counts struct {
	Total      int
	Done       int // have their target's driver
	InProgress int
	Pending    int // outdated, not begun; includes Skipped
	Skipped    int // pending because of a person's label
	Failed     int
}
