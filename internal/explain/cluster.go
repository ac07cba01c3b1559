package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
)

// Bounds of texts from other programs, and of the Events shown.
const (
	maxText   = 4096
	maxReason = 128
	maxEvents = 8
)

// staleAge is the age at which a condition, which is written every five minutes, no longer counts.
const staleAge = 15 * time.Minute

// Names that the validator's daemon writes in the cluster (validator/nodestatus).
const (
	readyCondition  corev1.NodeConditionType = "GPUReady"
	healthCondition corev1.NodeConditionType = "GPUHealthy"
	reasonReady                              = "Ready"
	reasonDegraded                           = "Degraded"
	reasonNoGPU                              = "NoGPU"
	eventSource                              = "gpu-validator"
)

// partOf and product are the label of all parts of the product.
const (
	partOf  = "app.kubernetes.io/part-of"
	product = "gpuready"
)

// agents lists the DaemonSets whose pods do the work of a stage; name is the stage, "" for all. The
// driver's may be missing: then the driver is the host's own.
var agents = []struct {
	name, app string
	needed    bool
}{
	{string(readiness.Driver), "nvidia-driver-daemonset", false},
	{string(readiness.Toolkit), "nvidia-container-toolkit-daemonset", true},
	{string(readiness.Plugin), "nvidia-device-plugin-daemonset", true},
	{Kubelet, draApp, false},
	{"", "nvidia-operator-validator", true},
}

// Cluster holds what the API server knows about a node. PodsErr and EventsErr say why a list is
// missing.
type Cluster struct {
	Node      *corev1.Node
	Pods      []corev1.Pod // all but the agents' pods on the node are ignored
	PodsErr   error
	Events    []corev1.Event // all but the validator's are ignored
	EventsErr error
	Offer     *Offer // of the DRA driver; nil: it was not read
}

// FromCluster returns the Report of a Node. Lists that could not be read are left out, with a
// note.
func FromCluster(c Cluster, now time.Time) Report {
	r := Report{Node: c.Node.Name, Source: "cluster", Time: now.UTC(), GPUs: gpus(c.Node)}
	r.Simulated = strings.HasPrefix(c.Node.Labels["nvidia.com/gpu.product"], "SIMULATED")
	r.addReadiness(c.Node)
	r.addHealth(c.Node)
	r.addKubelet(c)
	r.SplitPod()
	r.addTaints(c)
	if c.PodsErr != nil {
		r.Notes = append(r.Notes, "the agents' pods cannot be listed: "+clean(c.PodsErr.Error()))
	} else {
		r.addAgents(c.Pods)
	}
	if c.EventsErr != nil {
		r.Notes = append(r.Notes, "the Node's Events cannot be listed: "+clean(c.EventsErr.Error()))
	} else {
		r.addEvents(c.Events)
	}
	r.Finish()
	return r
}

func clean(text string) string { return record.Clean(text, maxText) }

func condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// gpus describes the GPUs by the Node's labels.
func gpus(node *corev1.Node) string {
	count, product := node.Labels["nvidia.com/gpu.count"], node.Labels["nvidia.com/gpu.product"]
	if count == "" || product == "" {
		return ""
	}
	return count + " × " + product
}

// addReadiness adds the stages of the layers by the condition GPUReady. Its message begins with the
// layer that is not proven.
func (r *Report) addReadiness(node *corev1.Node) {
	for _, l := range readiness.Layers() {
		r.Stage(string(l))
	}
	begin := r.Stage(string(readiness.Driver))
	c := condition(node, readyCondition)
	if c == nil {
		begin.Message, begin.Action = readiness.Unknown, SilentAction
		r.Notes = append(r.Notes, "the Node has no condition "+string(readyCondition))
		return
	}
	message := clean(c.Message)
	if c.Reason == reasonNoGPU {
		for i := range r.Stages {
			r.Stages[i].State = Absent
		}
		begin.Message = message
		return
	}
	if last := c.LastHeartbeatTime.Time; r.Time.Sub(last) > staleAge {
		r.Notes = append(r.Notes, fmt.Sprintf("the condition %s was last written %s ago and may be out of date: see the validator's pod", readyCondition, ago(r.Time.Sub(last))))
	}
	at, rest, _ := strings.Cut(message, ": ")
	found := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == at })
	if l, err := readiness.ParseOptional(at); err == nil {
		r.Beside = []Stage{refusal(string(l), c, rest)}
		found = len(r.Stages)
		message = "all required layers are proven"
	}
	switch {
	case c.Status == corev1.ConditionTrue:
		found = len(r.Stages)
	case found < 0: // a condition that is not about a layer is about all of them
		found, rest = 0, message
	}
	for i := range r.Stages[:found] {
		r.Stages[i].State = OK
	}
	if found == len(r.Stages) {
		last := r.Stage(string(readiness.Plugin))
		last.Since, last.Message = c.LastTransitionTime.Time, message
		switch {
		case c.Reason == reasonDegraded:
			last.Message = ""
			last.Notes = append(last.Notes, message)
		case c.Status == corev1.ConditionTrue && c.Reason != reasonReady: // such as StateNotWritable
			last.Message = ""
			last.Notes = append(last.Notes, record.Clean(c.Reason, maxReason)+": "+message)
		}
		return
	}
	r.Stages[found] = refusal(r.Stages[found].Name, c, rest)
}

// refusal returns a stage described by the condition.
func refusal(name string, c *corev1.NodeCondition, message string) Stage {
	s := Stage{Name: name, State: Broken, Since: c.LastTransitionTime.Time, Reason: record.Clean(c.Reason, maxReason), Message: message}
	if c.Status == corev1.ConditionUnknown {
		s.State = Waiting
		if name == string(readiness.Plugin) {
			s.Reason = Running
		}
		return s
	}
	if strings.HasPrefix(message, readiness.NoDriver) && readiness.IsDriverTransition(gpu.Reason(c.Reason)) {
		s.State = Waiting
	}
	message, driver, _ := strings.Cut(message, readiness.DriverPhase)
	if driver != "" {
		s.Notes = []string{readiness.DriverNote + driver}
	}
	s.Message, s.Action = readiness.SplitAction(message)
	return s
}

// addHealth adds the broken GPUs to the driver's stage.
func (r *Report) addHealth(node *corev1.Node) {
	c := condition(node, healthCondition)
	if c == nil || c.Status == corev1.ConditionTrue {
		return
	}
	text := clean(fmt.Sprintf("%s is %s: %s: %s", healthCondition, c.Status, c.Reason, c.Message))
	s := r.Stage(string(readiness.Driver))
	if c.Status == corev1.ConditionFalse {
		s.Notes = append(s.Notes, text)
	}
}

// addKubelet sets the kubelet's stage by the Node's allocatable resources, or by its ResourceSlices.
func (r *Report) addKubelet(c Cluster) {
	s, node := r.Stage(Kubelet), c.Node
	if r.Stage(string(readiness.Driver)).State == Absent {
		s.State = Absent
		return
	}
	if c := condition(node, corev1.NodeReady); c == nil || c.Status != corev1.ConditionTrue {
		s.State, s.Reason, s.Message, s.Action = Broken, "NodeNotReady", "the Node is not Ready", "see the kubelet's log on the node"
		if c != nil {
			s.Since, s.Message = c.LastTransitionTime.Time, clean(cmp.Or(c.Message, s.Message))
		}
		return
	}
	if c.servedByDRA() {
		r.addOffer(c)
		return
	}
	var offers []string
	for name, capacity := range node.Status.Capacity {
		if allocatable := node.Status.Allocatable[name]; nodestate.IsGPUResource(string(name)) {
			offers = append(offers, fmt.Sprintf("%s: %s of %s allocatable", name, allocatable.String(), capacity.String()))
		}
	}
	slices.Sort(offers)
	if len(offers) == 0 {
		s.Message = "the Node offers no nvidia.com resource"
		return
	}
	s.State, s.Message = OK, strings.Join(offers, ", ")
}

// addTaints adds what keeps pods off a Node with free GPUs.
func (r *Report) addTaints(c Cluster) {
	s, node := r.Stage(Pod), c.Node
	if s.State == Absent && r.Stage(string(readiness.Plugin)).State == OK {
		*s = Stage{Name: Pod, State: OK, Message: "pods can be given what is allocatable"}
		if c.servedByDRA() {
			s.Message = "pods with a ResourceClaim can be given the devices without a taint"
		}
	}
	if node.Spec.Unschedulable {
		s.Notes = append(s.Notes, "the Node is cordoned: no pod comes until kubectl uncordon "+node.Name)
	}
	for _, t := range node.Spec.Taints {
		if strings.Contains(t.Key, "not-ready") && !strings.HasPrefix(t.Key, "node.kubernetes.io/") {
			s.Notes = append(s.Notes, fmt.Sprintf("the startup taint %s:%s keeps pods away until all layers are proven", t.Key, t.Effect))
		}
	}
}

// addAgents adds the problems of the pods behind the stages.
func (r *Report) addAgents(pods []corev1.Pod) {
	if r.Stages[0].State == Absent {
		return
	}
	for _, a := range agents {
		add := func(text string) {
			if a.name == "" {
				r.Notes = append(r.Notes, clean(text))
				return
			}
			s := r.Stage(a.name)
			s.Notes = append(s.Notes, clean(text))
		}
		found := false
		for _, p := range pods {
			if p.Labels["app"] != a.app || p.Labels[partOf] != product || p.Spec.NodeName != r.Node {
				continue
			}
			found = true
			if wrong := podProblem(p); wrong != "" {
				add(fmt.Sprintf("pod %s/%s: %s", p.Namespace, p.Name, wrong))
			}
		}
		if !found && a.needed {
			add("no pod of DaemonSet " + a.app + " is on this node: see its tolerations, its node selector, and kubectl describe of it")
		}
	}
}

// podProblem returns why a pod does not run as it should; "" if it does.
func podProblem(p corev1.Pod) string {
	for _, c := range append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...) {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "PodInitializing" && c.State.Waiting.Reason != "ContainerCreating":
			text := c.Name + ": " + c.State.Waiting.Reason + ": " + c.State.Waiting.Message
			if t := c.LastTerminationState.Terminated; t != nil {
				text += fmt.Sprintf("; it ended last with %d: %s", t.ExitCode, t.Message)
			}
			return text
		case c.State.Terminated != nil && c.State.Terminated.ExitCode != 0:
			return fmt.Sprintf("%s: ended with %d: %s", c.Name, c.State.Terminated.ExitCode, c.State.Terminated.Message)
		}
	}
	if p.Status.Phase != corev1.PodRunning {
		return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", p.Status.Phase, p.Status.Reason, p.Status.Message), " : ")
	}
	for _, c := range p.Status.ContainerStatuses {
		if !c.Ready {
			return c.Name + " runs and is not ready"
		}
	}
	return ""
}

// IsReported reports whether the validator wrote an Event. A Report lists no others.
func IsReported(e corev1.Event) bool { return e.Source.Component == eventSource }

// addEvents adds the latest Events that the validator wrote.
func (r *Report) addEvents(events []corev1.Event) {
	for _, e := range events {
		if IsReported(e) {
			r.Events = append(r.Events, Event{e.LastTimestamp.UTC(), e.Type, record.Clean(e.Reason, maxReason), clean(e.Message), e.Count})
		}
	}
	slices.SortStableFunc(r.Events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	r.Events = r.Events[max(0, len(r.Events)-maxEvents):]
}
