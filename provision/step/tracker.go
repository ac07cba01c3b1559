package step

import (
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// WorkloadLabel labels the workload pods of this program. Its value is the sample to which
// a pod belongs.
const WorkloadLabel = "gpuready.io/provision-sample"

// readyCondition is the Node's condition of gpuready's validator.
const readyCondition corev1.NodeConditionType = "GPUReady"

// Change is one observed change. Exactly one of Node, Pod, Event and Result is set.
type Change struct {
	At     time.Duration // since the observer began, on its monotonic clock
	Late   time.Duration // how much earlier it may have happened, while the API server was away
	Node   *corev1.Node
	Pod    *corev1.Pod
	Event  *corev1.Event
	Result types.UID // the workload pod whose log has shown its first result
	Gone   bool      // Node or Pod was deleted
}

// Moment is the time at which something was first seen.
type Moment struct {
	At   time.Duration
	Late time.Duration
	Old  bool // before the sample began
}

// Note is a detail between steps, seen on a node.
type Note struct {
	Moment
	Text string
}

// Tracker tracks one sample. It is not safe for concurrent use.
type Tracker struct {
	// Resource is the resource that the device plugin advertises: nvidia.com/gpu.
	Resource corev1.ResourceName
	// Selectors find the operands' pods.
	Selectors Selectors
	// Sample is the value of WorkloadLabel of the sample's workloads.
	Sample string
	// Reboot makes the Tracker wait for another boot ID of each node.
	Reboot bool

	begun      bool
	nodes      map[string]*node
	pods       map[types.UID]*pod
	podsByNode map[string]map[types.UID]*pod // pods by node
	pulls      map[types.UID][]Moment        // completed image pulls by pod
}

// node holds the observations of a Node.
type node struct {
	uid      types.UID
	boot     string // at the beginning
	steps    map[ID]Moment
	notes    []Note
	lastNote string                // the last note's text
	leftover bool                  // its capacity was advertised by a plugin that is gone
	ready    *corev1.NodeCondition // readyCondition at the beginning
	gone     bool
}

// pod holds the observations of a Pod.
type pod struct {
	name                             string
	node                             string
	operand                          Operand // "": a workload
	ours                             bool    // gpuready's
	old                              string  // its main container's ID at the beginning
	scheduled, started, ready, ended *Moment
	failure                          string
	waitReason                       string // why it is not ready
	image                            string
	gone                             bool
}

// Begin begins the sample. All earlier observations describe the state before it.
func (t *Tracker) Begin() {
	t.begun = true
	for uid, p := range t.pods {
		if p.gone {
			t.forget(uid, p)
		}
	}
}

// Observe records a change.
func (t *Tracker) Observe(c Change) {
	if t.nodes == nil {
		t.nodes, t.pods, t.podsByNode, t.pulls = map[string]*node{}, map[types.UID]*pod{}, map[string]map[types.UID]*pod{}, map[types.UID][]Moment{}
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
			setFirst(&p.ended, m)
		}
	}
}

// setFirst keeps the earliest moment, but prefers one within the sample to one before it.
func setFirst(slot **Moment, m Moment) {
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
		return // a new Node has its name already
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
	if m.Old { // only the state at the beginning counts
		n.boot, n.steps, n.notes, n.ready = seen.Status.NodeInfo.BootID, map[ID]Moment{}, nil, ready
	}
	if t.Reboot && (m.Old || n.boot == seen.Status.NodeInfo.BootID) {
		return
	}
	n.reach(Registered, m)
	for id, reached := range map[ID]bool{
		Ready:       conditionIs(seen.Status.Conditions, corev1.NodeReady),
		Labelled:    isLabelled(seen.Labels),
		Capacity:    n.hasCapacity(seen, t.Resource, m.Old || t.Reboot && len(n.steps) == 1),
		Allocatable: isPositive(seen.Status.Allocatable, t.Resource),
		Validated:   n.validated(ready),
	} {
		if reached {
			n.reach(id, m)
		}
	}
	n.recordNote(seen, m)
}

func isPositive(list corev1.ResourceList, resource corev1.ResourceName) bool {
	q := list[resource]
	return q.Sign() > 0
}

// hasCapacity reports whether the Node has capacity that a plugin advertises now. When a
// plugin goes, the kubelet keeps its capacity for five minutes and sets only allocatable
// to 0.
func (n *node) hasCapacity(seen *corev1.Node, resource corev1.ResourceName, old bool) bool {
	capacity, allocatable := isPositive(seen.Status.Capacity, resource), isPositive(seen.Status.Allocatable, resource)
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

// validated reports whether gpuready's condition is True and was set within the sample. A
// validator that goes leaves its last condition behind.
func (n *node) validated(ready *corev1.NodeCondition) bool {
	return ready != nil && ready.Status == corev1.ConditionTrue && (n.ready == nil || *ready != *n.ready)
}

// recordNote records changes of gpuready's condition, which names the layer that is not validated.
func (n *node) recordNote(seen *corev1.Node, m Moment) {
	c := readyConditionOf(seen)
	if c == nil {
		return
	}
	text := truncateText(strings.TrimSuffix(string(c.Type)+"="+string(c.Status)+" "+c.Reason+": "+c.Message, ": "))
	const most = 64 // of one node
	if text != n.lastNote && !m.Old && len(n.notes) < most {
		n.notes = append(n.notes, Note{m, text})
	}
	n.lastNote = text
}

// pciLabel is NFD's label of a PCI device of NVIDIA: pci-10de.present, or with its class
// pci-0302_10de.present.
var pciLabel = regexp.MustCompile(`^feature\.node\.kubernetes\.io/pci-([0-9a-f]{4}_)?10de(_[0-9a-f]{4})*\.present$`)

func isLabelled(have map[string]string) bool {
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
		p.image = truncateText(seen.Spec.Containers[0].Image)
	}
	p.waitReason = waitReason(seen)
	p.ours = seen.Labels["app.kubernetes.io/part-of"] == "gpuready"
	if p.node == "" && seen.Spec.NodeName != "" { // it never changes
		p.node = seen.Spec.NodeName
		if t.podsByNode[p.node] == nil {
			t.podsByNode[p.node] = map[types.UID]*pod{}
		}
		t.podsByNode[p.node][seen.UID] = p
	}
	p.gone = gone || seen.DeletionTimestamp != nil
	main := mainContainer(seen)
	if m.Old {
		p.old, p.scheduled, p.started, p.ready = main.ContainerID, nil, nil, nil
	}
	if podConditionIs(seen.Status.Conditions, corev1.PodScheduled) {
		if p.scheduled == nil { // a reboot does not change it
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
		setFirst(&p.started, m)
	}
	if podConditionIs(seen.Status.Conditions, corev1.PodReady) {
		setFirst(&p.ready, m)
	}
	if ended != nil && ended.ExitCode == 0 {
		setFirst(&p.ended, m)
	}
	p.fail(seen)
}

// forget removes a pod.
func (t *Tracker) forget(uid types.UID, p *pod) {
	delete(t.pods, uid)
	delete(t.podsByNode[p.node], uid)
}

// fail records why a workload has failed.
func (p *pod) fail(seen *corev1.Pod) {
	switch main := mainContainer(seen); {
	case p.operand != "" || p.ended != nil:
	case seen.Status.Phase == corev1.PodFailed && seen.Status.Reason != "":
		p.failure = truncateText("the workload " + p.name + " was ended by the cluster (" + seen.Status.Reason + "): " + seen.Status.Message)
	case seen.Status.Phase == corev1.PodFailed && main.State.Terminated != nil:
		p.failure = truncateText("the workload " + p.name + " ended without success (" + main.State.Terminated.Reason + "); see kubectl logs")
	case seen.Status.Phase == corev1.PodFailed:
		p.failure = "the workload " + p.name + " failed"
	case p.gone:
		p.failure = "the workload " + p.name + " was deleted by someone else"
	}
}

// waitReason returns why a pod is not ready: it was not scheduled, or a container waits.
func waitReason(seen *corev1.Pod) string {
	if podConditionIs(seen.Status.Conditions, corev1.PodReady) || seen.Status.Phase == corev1.PodSucceeded {
		return ""
	}
	for _, c := range seen.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return truncateText("is not scheduled: " + c.Message)
		}
	}
	for _, s := range slices.Concat(seen.Status.InitContainerStatuses, seen.Status.ContainerStatuses) {
		switch w := s.State.Waiting; {
		case w != nil && w.Reason != "PodInitializing":
			return truncateText("waits in container " + s.Name + " (" + w.Reason + "): " + w.Message)
		case s.State.Running != nil && !s.Ready:
			return truncateText("runs container " + s.Name + ", which is not ready")
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
	if pulls := t.pulls[uid]; len(pulls) < most && (len(pulls) > 0 || len(t.pulls) < mostPods) {
		t.pulls[uid] = append(pulls, m) // its pod may be seen later
	}
}

// maxText bounds texts from the cluster, in bytes.
const maxText = 256

func truncateText(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "�")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}
