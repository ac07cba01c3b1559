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
	"github.com/gpuready/gpuready/operator/road"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// model is what the operator knows of the cluster. It belongs to one goroutine; what was
// seen reaches it through the inbox.
type model struct {
	policies   map[string]*v1.ClusterPolicy
	nodes      map[string]*member
	pods       map[types.NamespacedName]*operand
	placed     map[string]map[types.NamespacedName]*operand // the pods, by node
	objects    map[apply.Key]client.Object                  // the operator's own
	foreign    map[apply.Key]bool                           // objects of others, where ours may be
	toolkit    map[string]string                            // the Driver Toolkit's images by RHCOS version
	unread     string                                       // why that has not been read; "": it was
	other      map[types.NamespacedName]bool                // Deployments of NVIDIA's operator
	siblings   map[types.NamespacedName]bool                // Deployments of this product's operator, this one included, and whether a pod of it is ready
	elsewhere  map[string]map[types.NamespacedName]bool     // pods of operands in other namespaces than namespace
	namespace  string                                       // of the operands
	configMaps map[string]*corev1.ConfigMap                 // without their values
	builds     map[string]prebuild.Build                    // Jobs that build modules
	builders   map[types.NamespacedName]prebuild.Pod        // and their pods

	unwritten map[string]error                  // Nodes that could not be patched, and why
	refused   map[string]upgrade.Refusal        // those that could not for long
	later     map[string]bool                   // those of them that are to be looked at when they may be written again
	classes   map[string]bool                   // RuntimeClasses, and whether they give containers GPUs
	telling   map[string]v1.ClusterPolicyStatus // of policies, on its way to the API server

	openShift bool // the cluster has ImageStreams
	census    *census

	common bool // something has changed that is not about one node
	// Neither of these is cleared, but made anew: a map stays as large as it once was.
	dirty   map[string]bool // nodes about which something has changed since the last pass
	touched map[string]bool // the same, and those that were said anew to be as they were, since the last report
}

// member is a Node and what has been made of it.
type member struct {
	node *fleet.Node
	pods map[types.NamespacedName]*operand

	sent  *upgrade.Patch // on its way to the API server
	again bool           // the patch was refused: the Node has changed, and is to be seen
}

// operand is a pod of one.
type operand struct {
	*progress.Pod
	driver *upgrade.Driver // nil: it is none
}

func newModel(namespace string) *model {
	return &model{
		namespace:  namespace,
		policies:   map[string]*v1.ClusterPolicy{},
		nodes:      map[string]*member{},
		pods:       map[types.NamespacedName]*operand{},
		placed:     map[string]map[types.NamespacedName]*operand{},
		objects:    map[apply.Key]client.Object{},
		foreign:    map[apply.Key]bool{},
		toolkit:    map[string]string{},
		other:      map[types.NamespacedName]bool{},
		siblings:   map[types.NamespacedName]bool{},
		elsewhere:  map[string]map[types.NamespacedName]bool{},
		configMaps: map[string]*corev1.ConfigMap{},
		builds:     map[string]prebuild.Build{},
		builders:   map[types.NamespacedName]prebuild.Pod{},
		unwritten:  map[string]error{},
		refused:    map[string]upgrade.Refusal{},
		later:      map[string]bool{},
		classes:    map[string]bool{},
		telling:    map[string]v1.ClusterPolicyStatus{},
		census:     newCensus(false),
		common:     true,
		dirty:      map[string]bool{},
		touched:    map[string]bool{},
	}
}

// touch takes note that something has changed about a node.
func (m *model) touch(node string) {
	m.dirty[node], m.touched[node] = true, true
}

// touchAll has all nodes be told of anew.
func (m *model) touchAll() {
	for name := range m.nodes {
		m.touched[name] = true
	}
}

// seen says whether a resourceVersion is another's of the same object, or older: what
// comes from a watch may be older than what came with the answer to a write.
func seen(now, have string) bool {
	return now == have && now != "" || older(now, have)
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// seeNode takes over what a watch shows of a Node.
func (m *model) seeNode(n *fleet.Node) {
	have := m.nodes[n.Name]
	if have == nil {
		have = &member{pods: m.podsOn(n.Name), again: true}
		m.nodes[n.Name] = have
	} else if have.node.UID == n.UID && seen(n.Version, have.node.Version) {
		return
	}
	before := have.node
	have.node = n
	m.touched[n.Name] = true
	if have.again || have.sent != nil || !before.Equal(n) || repeated(before, n) {
		have.again = false
		m.dirty[n.Name] = true
		m.count(before, n)
	}
}

// repeated reports whether the validator has said again what an upgrade waits for.
func repeated(before, now *fleet.Node) bool {
	return upgrade.State(now.Labels[label.UpgradeState]).InFlight() && !before.GPUReady.Said.Equal(now.GPUReady.Said)
}

// count takes a Node into the census, in place of what it was.
func (m *model) count(before, now *fleet.Node) {
	if m.census.replace(before, now) {
		m.common = true
	}
}

// served has the census be that of the nodes that are served.
func (m *model) served(handOver bool) *census {
	if m.census.handOver != handOver {
		m.census = newCensus(handOver)
		for _, on := range m.nodes {
			m.census.add(on.node)
		}
	}
	return m.census
}

// refuse takes note that a Node could not be written for long; first is called where that
// is news.
func (m *model) refuse(name string, err error, why upgrade.Refusal, first func()) {
	if m.nodes[name] == nil {
		return
	}
	if _, again := m.refused[name]; !again {
		first()
	}
	m.unwritten[name], m.refused[name] = err, why
	m.touch(name)
}

// answer takes note of what became of a patch: version is what the Node has been since,
// "" where the patch was refused, as the Node is not any more what it was planned on. Until
// that is seen, the patch is on its way.
func (m *model) answer(name string, sent *upgrade.Patch, version string) {
	have := m.nodes[name]
	if have == nil || have.sent != sent {
		return
	}
	switch {
	case version != "" && version != sent.Version && have.node.Version == sent.Version:
		return // it is to be seen
	case version == "" && have.node.Version == sent.Version:
		have.again = true
	default:
		m.dirty[name] = true
	}
	have.sent = nil
}

func (m *model) loseNode(name string) {
	have := m.nodes[name]
	if have == nil {
		return
	}
	delete(m.nodes, name)
	if len(have.pods) == 0 {
		delete(m.placed, name)
	}
	delete(m.unwritten, name)
	delete(m.refused, name)
	m.count(have.node, nil)
	m.touch(name)
}

func (m *model) seePod(o *operand) {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	if have := m.pods[key]; have != nil && have.Node != o.Node {
		m.losePod(key)
	}
	m.pods[key] = o
	m.podsOn(o.Node)[key] = o
	if m.nodes[o.Node] != nil {
		m.touch(o.Node)
	}
}

// seeElsewhere records a pod of an operand in another namespace, or that it is gone. Only
// those of a namespace that serves a policy matter: anybody can make the others.
func (m *model) seeElsewhere(key types.NamespacedName, there bool) {
	pods := m.elsewhere[key.Namespace]
	if pods[key] == there {
		return
	}
	if pods == nil {
		pods = map[types.NamespacedName]bool{}
		m.elsewhere[key.Namespace] = pods
	}
	pods[key] = true
	if !there {
		delete(pods, key)
	}
	if len(pods) == 0 {
		delete(m.elsewhere, key.Namespace)
	}
	for _, p := range m.policies {
		m.common = m.common || p.Status.Namespace == key.Namespace
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

func (m *model) losePod(key types.NamespacedName) {
	o := m.pods[key]
	if o == nil {
		return
	}
	delete(m.pods, key)
	delete(m.placed[o.Node], key)
	if m.nodes[o.Node] != nil {
		m.touch(o.Node)
	} else if len(m.placed[o.Node]) == 0 {
		delete(m.placed, o.Node)
	}
}

// seeBuilder records a pod of a Job that builds modules.
func (m *model) seeBuilder(key types.NamespacedName, b prebuild.Pod) {
	if m.builders[key] != b {
		m.builders[key], m.common = b, true
	}
}

// prebuilt is what became of Jobs that build modules.
func (m *model) prebuilt(look func(image string) driver.Presence) []v1.PrebuiltStatus {
	return prebuild.Report(slices.Collect(maps.Values(m.builds)), slices.Collect(maps.Values(m.builders)), look)
}

// podsOn are the operands' pods on a node, which may be seen before it is, and after it
// has gone.
func (m *model) podsOn(node string) map[types.NamespacedName]*operand {
	if m.placed[node] == nil {
		m.placed[node] = map[types.NamespacedName]*operand{}
	}
	return m.placed[node]
}

func (m *model) seeObject(key apply.Key, o client.Object) {
	if have := m.objects[key]; have != nil && have.GetUID() == o.GetUID() && seen(o.GetResourceVersion(), have.GetResourceVersion()) {
		return
	}
	m.common = true
	if !apply.Ours(o) {
		m.foreign[key] = true
		delete(m.objects, key)
		return
	}
	delete(m.foreign, key)
	m.objects[key] = o
}

// loseObject forgets an object, unless another has taken its name since.
func (m *model) loseObject(key apply.Key, uid types.UID) {
	m.common = true
	delete(m.foreign, key)
	if have := m.objects[key]; have != nil && have.GetUID() == uid {
		delete(m.objects, key)
	}
}

// inForce is the policy that counts, the oldest; nil: there is none. ignored are the others.
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

// live are the operator's own objects, in a fixed order.
func (m *model) live() []client.Object {
	keys := slices.SortedFunc(maps.Keys(m.objects), func(a, b apply.Key) int { return cmp.Compare(a.String(), b.String()) })
	all := make([]client.Object, 0, len(keys))
	for _, key := range keys {
		all = append(all, m.objects[key])
	}
	return all
}

// driver is the driver's pod on the node: of two, the one that is not being deleted.
func (on *member) driver() *upgrade.Driver {
	var found *upgrade.Driver
	for _, o := range on.pods {
		if o.driver != nil && (found == nil || found.Deleting && !o.driver.Deleting) {
			found = o.driver
		}
	}
	return found
}

// hostDriver says whether the host has a driver of its own: the driver's pod has found
// one, or had before, and the validator does not say that there is none.
func (on *member) hostDriver() bool {
	for _, o := range on.pods {
		if o.HostDriver != "" {
			return true
		}
	}
	return on.node.HostDriver() && !driverMissing(on.node)
}

// speaks says whether there is a validator on the node, which may write on its Node.
func (on *member) speaks() bool {
	for _, o := range on.pods {
		if o.State == road.DriverValidation {
			return true
		}
	}
	return false
}

// refusal is that Nodes cannot be patched, and why not the first of them.
func (m *model) refusal() error {
	if len(m.unwritten) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(m.unwritten))
	return fmt.Errorf("%d Nodes cannot be labelled, %s among them: %w", len(names), names[0], m.unwritten[names[0]])
}
