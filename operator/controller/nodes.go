package controller

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// member is a Node and what the operator remembers of it.
type member struct {
	node     *fleet.Node
	placed   *fleet.Placement // the last placement that the Node's labels matched; nil: none
	sent     *upgrade.Patch   // being written to the API server
	reported *status.Node     // in the last report; nil: it was not in it
}

// writing reports whether a patch of the latest known version of the Node is being written.
func (on *member) writing() bool { return on.sent != nil && on.sent.Version == on.node.Version }

// nodesOf returns the Nodes of members.
func nodesOf(members []*member) iter.Seq[*fleet.Node] {
	return func(yield func(*fleet.Node) bool) {
		for _, on := range members {
			if !yield(on.node) {
				return
			}
		}
	}
}

// operand is a pod of an operand.
type operand struct {
	*progress.Pod
	driver *upgrade.Driver // nil unless it is a driver's pod
}

// updateNode stores a Node that a watch has delivered.
func (m *model) updateNode(n *fleet.Node) {
	have := m.nodes[n.Name]
	if have == nil {
		have = &member{}
		m.nodes[n.Name] = have
	} else if have.node.UID == n.UID && notNewer(n.Version, have.node.Version) {
		return
	}
	n = m.withDrivers(n)
	before := have.node
	if have.node = n; !before.Equal(n) {
		have.placed = nil
	}
	m.changed = m.changed || have.sent != nil || consequential(before, n)
}

// consequential reports whether a Node's change may have consequences. The reports that kubelet
// and validator repeat every five minutes have none, unless they stop, or an upgrade waits for
// the validator's.
func consequential(before, now *fleet.Node) bool {
	if !before.Equal(now) || before.Stale() != now.Stale() {
		return true
	}
	return upgrade.State(now.Labels[label.UpgradeState]).InFlight() && !before.GPUReady.Renewed.Equal(now.GPUReady.Renewed)
}

func (m *model) removeNode(name string) {
	if m.nodes[name] == nil {
		return
	}
	delete(m.nodes, name)
	delete(m.unwritten, name)
	delete(m.refused, name)
	m.changed = true
}

// members returns the Nodes in any order.
func (m *model) members() []*member {
	return slices.AppendSeq(make([]*member, 0, len(m.nodes)), maps.Values(m.nodes))
}

// updatePod stores an operand's pod. It may arrive before its Node does and outlive it.
func (m *model) updatePod(o *operand) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	m.removePod(key)
	m.pods[key] = o
	m.podsOn[o.Node] = append(m.podsOn[o.Node], o)
	m.changed = m.changed || m.nodes[o.Node] != nil
}

func (m *model) removePod(key types.NamespacedName) {
	o := m.pods[key]
	if o == nil {
		return
	}
	delete(m.pods, key)
	left := slices.DeleteFunc(m.podsOn[o.Node], func(other *operand) bool { return other == o })
	if m.podsOn[o.Node] = left; len(left) == 0 {
		delete(m.podsOn, o.Node)
	}
	m.changed = m.changed || m.nodes[o.Node] != nil
}

// driverAmong returns the driver's pod among a node's, preferring one that is not being deleted.
func driverAmong(pods []*operand) (found *upgrade.Driver) {
	for _, o := range pods {
		if o.driver != nil && (found == nil || found.Deleting && !o.driver.Deleting) {
			found = o.driver
		}
	}
	return found
}

// hasHostDriver reports whether the host has a driver of its own: the driver's pod has found
// one, now or before, and the validator does not report that there is none.
func hasHostDriver(n *fleet.Node, pods []*operand) bool {
	found := slices.ContainsFunc(pods, func(o *operand) bool { return o.HostDriver != "" })
	return found || n.HostDriver() && !driverMissing(n)
}

// noDriverReasons are the validator's reasons for a node that has no driver at all
// (validator/step).
var noDriverReasons = []string{"DriverLibraryMissing", "KernelModuleNotLoaded"}

// driverMissing reports whether the validator finds no driver on the Node.
func driverMissing(n *fleet.Node) bool {
	condition := n.GPUReady
	message, about := strings.CutPrefix(condition.Message, string(readiness.Driver)+": ")
	return condition.Status == corev1.ConditionFalse && about && (slices.Contains(noDriverReasons, condition.Reason) || strings.HasPrefix(message, readiness.NoDriver))
}

// hasValidator reports whether a validator, which may write to the Node, is among its pods.
func hasValidator(pods []*operand) bool {
	return slices.ContainsFunc(pods, func(o *operand) bool { return o.State == progress.DriverValidation })
}

// completePatch records the result of a patch. version is the Node's new resourceVersion, or
// "" if the patch was refused. A patch that changed the Node counts as being written until the
// watch has delivered that change.
func (m *model) completePatch(name string, sent *upgrade.Patch, version string) {
	have := m.nodes[name]
	if have == nil || have.sent != sent || version != "" && version != sent.Version && have.node.Version == sent.Version {
		return
	}
	have.sent, m.changed = nil, true
}

// recordRefusal records that a Node could not be patched for long. It calls first unless
// the Node was refused already.
func (m *model) recordRefusal(name string, err error, why upgrade.Refusal, first func()) {
	if m.nodes[name] == nil {
		return
	}
	if _, again := m.refused[name]; !again {
		first()
	}
	m.unwritten[name], m.refused[name], m.changed = err, why, true
}

// unwrittenError returns an error with the number of Nodes that cannot be patched and why
// the first of them cannot.
func (m *model) unwrittenError() error {
	if len(m.unwritten) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(m.unwritten))
	return fmt.Errorf("%d Nodes cannot be labelled, %s among them: %w", len(names), names[0], m.unwritten[names[0]])
}
