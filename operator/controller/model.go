package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/prebuild"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// model is the operator's view of the cluster. One goroutine owns it; the watches update it
// through the inbox.
type model struct {
	policies        map[string]*v1.ClusterPolicy
	nodes           map[string]*member
	pods            map[types.NamespacedName]*operand
	podsByNode      map[string]map[types.NamespacedName]*operand
	objects         map[apply.Key]client.Object              // the operator's own
	foreign         map[apply.Key]bool                       // other owners' objects with names that ours may need
	toolkit         map[string]string                        // the Driver Toolkit's images by RHCOS version
	toolkitError    string                                   // why those could not be read; "" if they were
	nvidiaOperators map[types.NamespacedName]bool            // Deployments of NVIDIA's operator
	siblings        map[types.NamespacedName]bool            // Deployments of this product's operator, this one included; true if a pod of it is ready
	elsewhere       map[string]map[types.NamespacedName]bool // operands' pods in other namespaces, by namespace
	namespace       string                                   // of the operands
	configMaps      map[string]*corev1.ConfigMap             // without their values
	builds          map[string]prebuild.Build                // Jobs that build modules
	builders        map[types.NamespacedName]prebuild.Pod    // pods of those Jobs

	unwritten     map[string]error                  // why Nodes could not be patched
	refused       map[string]upgrade.Refusal        // Nodes that could not be patched for long
	deferred      map[string]bool                   // refused Nodes to evaluate when they may be patched again
	classes       map[string]bool                   // RuntimeClasses; true if they give containers GPUs
	pendingStatus map[string]v1.ClusterPolicyStatus // of policies, being written to the API server

	openShift bool // the cluster has ImageStreams
	census    *census

	clusterDirty bool // something other than a single node has changed
	// These two are replaced, not cleared: a map never shrinks.
	dirty   map[string]bool // nodes that have changed since the last pass
	touched map[string]bool // nodes that have changed or were updated since the last report
}

// member is a Node, its pods and the patch that is being written.
type member struct {
	node *fleet.Node
	pods map[types.NamespacedName]*operand

	sent   *upgrade.Patch // being written to the API server
	resync bool           // the patch was refused because the Node has changed: wait for the watch
}

// operand is a pod of an operand.
type operand struct {
	*progress.Pod
	driver *upgrade.Driver // nil unless it is a driver's pod
}

func newModel(namespace string) *model {
	return &model{
		namespace:       namespace,
		policies:        map[string]*v1.ClusterPolicy{},
		nodes:           map[string]*member{},
		pods:            map[types.NamespacedName]*operand{},
		podsByNode:      map[string]map[types.NamespacedName]*operand{},
		objects:         map[apply.Key]client.Object{},
		foreign:         map[apply.Key]bool{},
		toolkit:         map[string]string{},
		nvidiaOperators: map[types.NamespacedName]bool{},
		siblings:        map[types.NamespacedName]bool{},
		elsewhere:       map[string]map[types.NamespacedName]bool{},
		configMaps:      map[string]*corev1.ConfigMap{},
		builds:          map[string]prebuild.Build{},
		builders:        map[types.NamespacedName]prebuild.Pod{},
		unwritten:       map[string]error{},
		refused:         map[string]upgrade.Refusal{},
		deferred:        map[string]bool{},
		classes:         map[string]bool{},
		pendingStatus:   map[string]v1.ClusterPolicyStatus{},
		census:          newCensus(false),
		clusterDirty:    true,
		dirty:           map[string]bool{},
		touched:         map[string]bool{},
	}
}

// touch marks a node as changed.
func (m *model) touch(node string) {
	m.dirty[node], m.touched[node] = true, true
}

// touchAll marks all nodes for the next report.
func (m *model) touchAll() {
	for name := range m.nodes {
		m.touched[name] = true
	}
}

// notNewer reports whether a resourceVersion equals another of the same object or is older.
// An event from a watch may be older than the response to a write.
func notNewer(now, have string) bool {
	return now == have && now != "" || older(now, have)
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// updateNode stores a Node that a watch has delivered.
func (m *model) updateNode(n *fleet.Node) {
	have := m.nodes[n.Name]
	if have == nil {
		have = &member{pods: m.podsOn(n.Name), resync: true}
		m.nodes[n.Name] = have
	} else if have.node.UID == n.UID && notNewer(n.Version, have.node.Version) {
		return
	}
	before := have.node
	have.node = n
	m.touched[n.Name] = true
	if have.resync || have.sent != nil || !before.Equal(n) || validatedAgain(before, n) {
		have.resync = false
		m.dirty[n.Name] = true
		m.updateCensus(before, n)
	}
}

// validatedAgain reports whether the validator has renewed the condition that an upgrade
// waits for.
func validatedAgain(before, now *fleet.Node) bool {
	return upgrade.State(now.Labels[label.UpgradeState]).InFlight() && !before.GPUReady.Renewed.Equal(now.GPUReady.Renewed)
}

// updateCensus replaces a Node in the census.
func (m *model) updateCensus(before, now *fleet.Node) {
	if m.census.replace(before, now) {
		m.clusterDirty = true
	}
}

// censusFor returns the census of the served nodes, rebuilt if handOver has changed.
func (m *model) censusFor(handOver bool) *census {
	if m.census.handOver != handOver {
		m.census = newCensus(handOver)
		for _, on := range m.nodes {
			m.census.add(on.node)
		}
	}
	return m.census
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
	m.unwritten[name], m.refused[name] = err, why
	m.touch(name)
}

// completePatch records the result of a patch. version is the Node's new resourceVersion, or
// "" if the patch was refused because the Node had changed since it was planned. The patch
// counts as being written until the watch has delivered that change.
func (m *model) completePatch(name string, sent *upgrade.Patch, version string) {
	have := m.nodes[name]
	if have == nil || have.sent != sent {
		return
	}
	switch {
	case version != "" && version != sent.Version && have.node.Version == sent.Version:
		return // the watch delivers it
	case version == "" && have.node.Version == sent.Version:
		have.resync = true
	default:
		m.dirty[name] = true
	}
	have.sent = nil
}

func (m *model) removeNode(name string) {
	have := m.nodes[name]
	if have == nil {
		return
	}
	delete(m.nodes, name)
	if len(have.pods) == 0 {
		delete(m.podsByNode, name)
	}
	delete(m.unwritten, name)
	delete(m.refused, name)
	m.updateCensus(have.node, nil)
	m.touch(name)
}

func (m *model) updatePod(o *operand) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if have := m.pods[key]; have != nil && have.Node != o.Node {
		m.removePod(key)
	}
	m.pods[key] = o
	m.podsOn(o.Node)[key] = o
	if m.nodes[o.Node] != nil {
		m.touch(o.Node)
	}
}

// updateElsewhere records whether an operand's pod exists in another namespace. Only the
// namespace that serves a policy matters: anybody can create such pods elsewhere.
func (m *model) updateElsewhere(key types.NamespacedName, exists bool) {
	pods := m.elsewhere[key.Namespace]
	if pods[key] == exists {
		return
	}
	if pods == nil {
		pods = map[types.NamespacedName]bool{}
		m.elsewhere[key.Namespace] = pods
	}
	pods[key] = true
	if !exists {
		delete(pods, key)
	}
	if len(pods) == 0 {
		delete(m.elsewhere, key.Namespace)
	}
	for _, p := range m.policies {
		m.clusterDirty = m.clusterDirty || p.Status.Namespace == key.Namespace
	}
}

// servedElsewhere returns the namespace in which operands that another operator made for a
// policy still run; "" where there are none.
func (m *model) servedElsewhere(p *v1.ClusterPolicy) string {
	if ns := p.Status.Namespace; ns != m.namespace && len(m.elsewhere[ns]) > 0 {
		return ns
	}
	return ""
}

func (m *model) removePod(key types.NamespacedName) {
	o := m.pods[key]
	if o == nil {
		return
	}
	delete(m.pods, key)
	delete(m.podsByNode[o.Node], key)
	if m.nodes[o.Node] != nil {
		m.touch(o.Node)
	} else if len(m.podsByNode[o.Node]) == 0 {
		delete(m.podsByNode, o.Node)
	}
}

// updateBuilder records a pod of a Job that builds modules.
func (m *model) updateBuilder(key types.NamespacedName, b prebuild.Pod) {
	if m.builders[key] != b {
		m.builders[key], m.clusterDirty = b, true
	}
}

// prebuildStatus returns the results of the Jobs that build modules.
func (m *model) prebuildStatus(lookup func(image string) driver.Presence) []v1.PrebuiltStatus {
	return prebuild.Report(slices.Collect(maps.Values(m.builds)), slices.Collect(maps.Values(m.builders)), lookup)
}

// podsOn returns the operands' pods on a node. They may arrive before the node does and
// outlive it.
func (m *model) podsOn(node string) map[types.NamespacedName]*operand {
	if m.podsByNode[node] == nil {
		m.podsByNode[node] = map[types.NamespacedName]*operand{}
	}
	return m.podsByNode[node]
}

func (m *model) updateObject(key apply.Key, o client.Object) {
	if have := m.objects[key]; have != nil && have.GetUID() == o.GetUID() && notNewer(o.GetResourceVersion(), have.GetResourceVersion()) {
		return
	}
	m.clusterDirty = true
	if !apply.Ours(o) {
		m.foreign[key] = true
		delete(m.objects, key)
		return
	}
	delete(m.foreign, key)
	m.objects[key] = o
}

// removeObject forgets an object, unless another has taken its name since.
func (m *model) removeObject(key apply.Key, uid types.UID) {
	m.clusterDirty = true
	delete(m.foreign, key)
	if have := m.objects[key]; have != nil && have.GetUID() == uid {
		delete(m.objects, key)
	}
}

// inForce returns the oldest policy, which is the one that counts, or nil. ignored are the
// others.
func (m *model) inForce() (policy *v1.ClusterPolicy, ignored []*v1.ClusterPolicy) {
	var all []*v1.ClusterPolicy
	for _, p := range m.policies {
		if p.DeletionTimestamp == nil {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *v1.ClusterPolicy) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if len(all) == 0 {
		return nil, nil
	}
	return all[0], all[1:]
}

// ownedObjects returns the operator's own objects in a fixed order.
func (m *model) ownedObjects() []client.Object {
	keys := slices.SortedFunc(maps.Keys(m.objects), func(a, b apply.Key) int { return cmp.Compare(a.String(), b.String()) })
	all := make([]client.Object, 0, len(keys))
	for _, key := range keys {
		all = append(all, m.objects[key])
	}
	return all
}

// driver returns the driver's pod on the node, preferring one that is not being deleted.
func (on *member) driver() *upgrade.Driver {
	var found *upgrade.Driver
	for _, o := range on.pods {
		if o.driver != nil && (found == nil || found.Deleting && !o.driver.Deleting) {
			found = o.driver
		}
	}
	return found
}

// hostDriver reports whether the host has a driver of its own: the driver's pod has found
// one, now or before, and the validator does not report that there is none.
func (on *member) hostDriver() bool {
	for _, o := range on.pods {
		if o.HostDriver != "" {
			return true
		}
	}
	return on.node.HostDriver() && !driverMissing(on.node)
}

// hasValidator reports whether a validator, which may write to the Node, runs there.
func (on *member) hasValidator() bool {
	for _, o := range on.pods {
		if o.State == progress.DriverValidation {
			return true
		}
	}
	return false
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
