package step

import (
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// WorkloadLabel is on the pods that this program creates as workloads; its value is
// the sample that they belong to.
const WorkloadLabel = "gpuready.io/provision-sample"

// readyCondition is the Node's condition of gpuready's validator.
const readyCondition corev1.NodeConditionType = "GPUReady"

// Change is one thing that the API server told: exactly one of Node, Pod, Event and
// Result is set.
type Change struct {
	At     time.Duration // since the observer began, on its monotonic clock
	Late   time.Duration // how much earlier it may have happened: the API server was away
	Node   *corev1.Node
	Pod    *corev1.Pod
	Event  *corev1.Event
	Result types.UID // the workload pod whose log has shown its first result
	Gone   bool      // Node or Pod was deleted
}

// Moment is when something was first seen.
type Moment struct {
	At   time.Duration
	Late time.Duration
	Old  bool // it was so before the sample began
}

// Note is something finer than a step, seen on a node.
type Note struct {
	Moment
	Text string
}

// Tracker follows one sample. It is not safe for concurrent use.
type Tracker struct {
	// Resource is what the device plugin advertises: nvidia.com/gpu.
	Resource corev1.ResourceName
	// Selectors tell the operands' pods.
	Selectors Selectors
	// Sample is the value of WorkloadLabel of the sample's workloads.
	Sample string
	// Reboot reports whether nodes are expected with another boot ID.
	Reboot bool

	begun bool
	nodes map[string]*node
	pods  map[types.UID]*pod
	on    map[string]map[types.UID]*pod // those of each node
	pulls map[types.UID][]Moment        // when images had been pulled for a pod
}

// node holds what was observed of a Node.
type node struct {
	uid      types.UID
	boot     string // at the beginning
	steps    map[ID]Moment
	notes    []Note
	said     string                // the last note's text
	leftover bool                  // its capacity is that of a plugin that has gone
	ready    *corev1.NodeCondition // readyCondition at the beginning
	gone     bool
}

// pod holds what was observed of a Pod.
type pod struct {
	name                             string
	node                             string
	operand                          Operand // "": a workload
	ours                             bool    // gpuready's
	old                              string  // its main container's ID at the beginning
	scheduled, started, ready, ended *Moment
	failure                          string
	waits                            string // why it is not ready
	image                            string
	gone                             bool
}

// Begin says that the sample begins: what has been observed is how things were before.
func (t *Tracker) Begin() {
	t.begun = true
	for uid, p := range t.pods {
		if p.gone {
			t.forget(uid, p)
		}
	}
}

// Observe takes a change in.
func (t *Tracker) Observe(c Change) {
	if t.nodes == nil {
		t.nodes, t.pods, t.on, t.pulls = map[string]*node{}, map[types.UID]*pod{}, map[string]map[types.UID]*pod{}, map[types.UID][]Moment{}
	}
	m := Moment{At: c.At, Late: c.Late, Old: !t.begun}
	switch {
	case c.Node != nil:
		t.observeNode(c.Node, c.Gone, m)
	case c.Pod != nil:
		t.observePod(c.Pod, c.Gone, m)
	case c.Event != nil:
		t.observeEvent(c.Event, m)
	case c.Result != "":
		if p := t.pods[c.Result]; p != nil {
			first(&p.ended, m)
		}
	}
}

// first keeps the earliest moment, but prefers one after the beginning to one before.
func first(slot **Moment, m Moment) {
	if *slot == nil || (*slot).Old && !m.Old {
		*slot = &m
	}
}

func (n *node) reach(id ID, m Moment) {
	if _, before := n.steps[id]; !before {
		n.steps[id] = m
	}
}

func (t *Tracker) observeNode(seen *corev1.Node, gone bool, m Moment) {
	n := t.nodes[seen.Name]
	if gone && (n == nil || n.uid != seen.UID) {
		return // another Node has its name by now
	}
	if n == nil || n.gone && !gone || n.uid != seen.UID {
		n = &node{uid: seen.UID, boot: seen.Status.NodeInfo.BootID, steps: map[ID]Moment{}}
		if t.begun {
			n.boot = ""
		}
		t.nodes[seen.Name] = n
	}
	n.gone = gone
	if gone {
		return
	}
	ready := readyConditionOf(seen)
	if m.Old { // only how it is at the beginning counts
		n.boot, n.steps, n.notes, n.ready = seen.Status.NodeInfo.BootID, map[ID]Moment{}, nil, ready
	}
	if t.Reboot && (m.Old || n.boot == seen.Status.NodeInfo.BootID) {
		return
	}
	n.reach(Registered, m)
	for id, is := range map[ID]bool{
		Ready:       conditionIs(seen.Status.Conditions, corev1.NodeReady),
		Labelled:    labelled(seen.Labels),
		Capacity:    n.hasCapacity(seen, t.Resource, m.Old || t.Reboot && len(n.steps) == 1),
		Allocatable: positive(seen.Status.Allocatable, t.Resource),
		Validated:   n.validated(ready),
	} {
		if is {
			n.reach(id, m)
		}
	}
	n.note(seen, m)
}

func positive(list corev1.ResourceList, resource corev1.ResourceName) bool {
	q := list[resource]
	return q.Sign() > 0
}

// hasCapacity reports whether the Node has capacity that a plugin advertises now. For
// five minutes after a plugin has gone the kubelet keeps the capacity, and only
// allocatable is 0.
func (n *node) hasCapacity(seen *corev1.Node, resource corev1.ResourceName, old bool) bool {
	capacity, allocatable := positive(seen.Status.Capacity, resource), positive(seen.Status.Allocatable, resource)
	if old || !capacity {
		n.leftover = capacity && !allocatable
	}
	return allocatable || capacity && !n.leftover
}

func readyConditionOf(seen *corev1.Node) *corev1.NodeCondition {
	for i := range seen.Status.Conditions {
		if c := &seen.Status.Conditions[i]; c.Type == readyCondition {
			return c
		}
	}
	return nil
}

// validated reports whether gpuready's condition is True, and was set since the
// beginning: when the validator goes it leaves its last word.
func (n *node) validated(ready *corev1.NodeCondition) bool {
	return ready != nil && ready.Status == corev1.ConditionTrue && (n.ready == nil || *ready != *n.ready)
}

// note keeps how gpuready's condition changes: it names the layer that is not proven.
func (n *node) note(seen *corev1.Node, m Moment) {
	c := readyConditionOf(seen)
	if c == nil {
		return
	}
	text := bounded(strings.TrimSuffix(string(c.Type)+"="+string(c.Status)+" "+c.Reason+": "+c.Message, ": "))
	const most = 64 // of one node
	if text != n.said && !m.Old && len(n.notes) < most {
		n.notes = append(n.notes, Note{m, text})
	}
	n.said = text
}

// pciLabel is NFD's label of a PCI device of NVIDIA: pci-10de.present, or with its class
// pci-0302_10de.present.
var pciLabel = regexp.MustCompile(`^feature\.node\.kubernetes\.io/pci-([0-9a-f]{4}_)?10de(_[0-9a-f]{4})*\.present$`)

func labelled(have map[string]string) bool {
	for key, value := range have {
		if value == "true" && (key == "nvidia.com/gpu.present" || pciLabel.MatchString(key)) {
			return true
		}
	}
	return false
}

func conditionIs(all []corev1.NodeCondition, kind corev1.NodeConditionType) bool {
	return slices.ContainsFunc(all, func(c corev1.NodeCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

func podConditionIs(all []corev1.PodCondition, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(all, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

func (t *Tracker) observePod(seen *corev1.Pod, gone bool, m Moment) {
	operand := t.Selectors.Of(seen)
	workload := seen.Labels[WorkloadLabel] != "" && seen.Labels[WorkloadLabel] == t.Sample
	if operand == "" && !workload {
		return
	}
	if workload {
		operand = ""
	}
	p := t.pods[seen.UID]
	if p == nil {
		p = &pod{name: seen.Namespace + "/" + seen.Name, operand: operand}
		t.pods[seen.UID] = p
	}
	if len(seen.Spec.Containers) > 0 {
		p.image = bounded(seen.Spec.Containers[0].Image)
	}
	p.waits = waits(seen)
	p.ours = seen.Labels["app.kubernetes.io/part-of"] == "gpuready"
	if p.node == "" && seen.Spec.NodeName != "" { // which does not change
		p.node = seen.Spec.NodeName
		if t.on[p.node] == nil {
			t.on[p.node] = map[types.UID]*pod{}
		}
		t.on[p.node][seen.UID] = p
	}
	p.gone = gone || seen.DeletionTimestamp != nil
	main := mainContainer(seen)
	if m.Old {
		p.old, p.scheduled, p.started, p.ready = main.ContainerID, nil, nil, nil
	}
	if podConditionIs(seen.Status.Conditions, corev1.PodScheduled) {
		if p.scheduled == nil { // which a reboot does not change
			p.scheduled = &m
		}
	}
	if p.gone && operand != "" && (p.ready == nil || p.ready.Old) {
		t.forget(seen.UID, p)
		return
	}
	if p.gone || t.begun && main.ContainerID == p.old && p.old != "" {
		p.fail(seen)
		return // a container from before
	}
	ended := main.State.Terminated
	if main.State.Running != nil || ended != nil && ended.Reason != "ContainerCannotRun" && ended.Reason != "StartError" {
		first(&p.started, m)
	}
	if podConditionIs(seen.Status.Conditions, corev1.PodReady) {
		first(&p.ready, m)
	}
	if ended != nil && ended.ExitCode == 0 {
		first(&p.ended, m)
	}
	p.fail(seen)
}

// forget lets go of a pod.
func (t *Tracker) forget(uid types.UID, p *pod) {
	delete(t.pods, uid)
	delete(t.on[p.node], uid)
}

// fail notes why a workload will not end well.
func (p *pod) fail(seen *corev1.Pod) {
	switch main := mainContainer(seen); {
	case p.operand != "" || p.ended != nil:
	case seen.Status.Phase == corev1.PodFailed && seen.Status.Reason != "":
		p.failure = bounded("the workload " + p.name + " was ended by the cluster (" + seen.Status.Reason + "): " + seen.Status.Message)
	case seen.Status.Phase == corev1.PodFailed && main.State.Terminated != nil:
		p.failure = bounded("the workload " + p.name + " ended without success (" + main.State.Terminated.Reason + "); see kubectl logs")
	case seen.Status.Phase == corev1.PodFailed:
		p.failure = "the workload " + p.name + " failed"
	case p.gone:
		p.failure = "the workload " + p.name + " was deleted by someone else"
	}
}

// waits says why a pod is not ready: it was not scheduled, or a container waits.
func waits(seen *corev1.Pod) string {
	if podConditionIs(seen.Status.Conditions, corev1.PodReady) || seen.Status.Phase == corev1.PodSucceeded {
		return ""
	}
	for _, c := range seen.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return bounded("is not scheduled: " + c.Message)
		}
	}
	for _, s := range slices.Concat(seen.Status.InitContainerStatuses, seen.Status.ContainerStatuses) {
		switch w := s.State.Waiting; {
		case w != nil && w.Reason != "PodInitializing":
			return bounded("waits in container " + s.Name + " (" + w.Reason + "): " + w.Message)
		case s.State.Running != nil && !s.Ready:
			return bounded("runs container " + s.Name + ", which is not ready")
		}
	}
	return "is " + string(seen.Status.Phase)
}

// mainContainer returns the status of the first container of the specification.
func mainContainer(p *corev1.Pod) corev1.ContainerStatus {
	if len(p.Spec.Containers) == 0 {
		return corev1.ContainerStatus{}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == p.Spec.Containers[0].Name {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

func (t *Tracker) observeEvent(e *corev1.Event, m Moment) {
	if e.Reason != "Pulled" || e.InvolvedObject.Kind != "Pod" || m.Old {
		return
	}
	const mostPods, most = 1 << 16, 32 // a busy cluster has Events of many other pods
	uid := e.InvolvedObject.UID
	if of := t.pulls[uid]; len(of) < most && (len(of) > 0 || len(t.pulls) < mostPods) {
		t.pulls[uid] = append(of, m) // its pod may be seen later
	}
}

// maxText bounds what others wrote, in bytes.
const maxText = 256

func bounded(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "�")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}
