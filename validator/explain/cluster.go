package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/nodestatus"
)

// Bounds of texts from other programs, and of the Events shown.
const (
	maxText   = 4096
	maxEvents = 8
)

// staleAge is the age at which a condition, which is written every five minutes, no longer counts.
const staleAge = 15 * time.Minute

// partOf is the label of all parts of the product.
var partOf = map[string]string{"app.kubernetes.io/part-of": "gpuready"}

// agents lists the DaemonSets behind the stages. The driver's may be missing: then the
// driver is the host's own.
var agents = []struct {
	name, app string
	needed    bool
}{
	{string(readiness.Driver), "nvidia-driver-daemonset", false},
	{string(readiness.Toolkit), "nvidia-container-toolkit-daemonset", true},
	{string(readiness.Plugin), "nvidia-device-plugin-daemonset", true},
	{"", "nvidia-operator-validator", true},
}

// FromCluster reads a Node, its pods and its Events from the API server. Lists that cannot
// be read are left out, with a note.
func FromCluster(ctx context.Context, client *kube.Client, name string, now time.Time) (Report, error) {
	node, err := client.Node(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return Report{}, fmt.Errorf("read Node %s: %w; see kubectl get nodes", name, err)
	case err != nil:
		return Report{}, fmt.Errorf("read Node %s: %w", name, err)
	}
	r := Report{Node: name, Source: "cluster", Time: now.UTC(), GPUs: gpus(node)}
	r.Simulated = strings.HasPrefix(node.Labels["nvidia.com/gpu.product"], "SIMULATED")
	r.addReadiness(node)
	r.addHealth(node)
	r.addKubelet(node)
	r.splitPod()
	r.addTaints(node)
	if pods, err := client.NodePods(ctx, name, partOf); err != nil {
		r.Notes = append(r.Notes, "the agents' pods cannot be listed: "+clean(err.Error()))
	} else {
		r.addAgents(pods)
	}
	if events, err := client.NodeEvents(ctx, name); err != nil {
		r.Notes = append(r.Notes, "the Node's Events cannot be listed: "+clean(err.Error()))
	} else {
		r.addEvents(events)
	}
	r.finish()
	return r, nil
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

// addReadiness evaluates the condition that sums the layers up. Its message begins with the layer
// that it is about.
func (r *Report) addReadiness(node *corev1.Node) {
	for _, l := range readiness.Layers() {
		r.stage(string(l))
	}
	begin := r.stage(string(readiness.Driver))
	c := condition(node, nodestatus.ConditionType)
	if c == nil {
		begin.Message = "the Node has no condition " + string(nodestatus.ConditionType)
		begin.Action = "see that the validator runs on this node (DaemonSet nvidia-operator-validator)"
		return
	}
	message := clean(c.Message)
	if c.Reason == string(check.ReasonNoGPU) {
		for i := range r.Stages {
			r.Stages[i].State = Absent
		}
		begin.Message = message
		return
	}
	if last := c.LastHeartbeatTime.Time; r.Time.Sub(last) > staleAge {
		r.Notes = append(r.Notes, fmt.Sprintf("the condition %s was said %s ago and may not hold any more: see the validator's pod", nodestatus.ConditionType, ago(r.Time.Sub(last))))
	}
	at, rest, _ := strings.Cut(message, ": ")
	found := slices.IndexFunc(r.Stages, func(s Stage) bool { return s.Name == at })
	if l, err := readiness.ParseOptional(at); err == nil {
		r.Beside = []Stage{refusal(string(l), c, rest)}
		found = len(r.Stages)
		message = "the layers of the road are proven"
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
		last := r.stage(string(readiness.Plugin))
		last.Since, last.Message = c.LastTransitionTime.Time, message
		if c.Reason == nodestatus.ReasonDegraded {
			last.Message = ""
			last.Notes = append(last.Notes, message)
		}
		return
	}
	r.Stages[found] = refusal(r.Stages[found].Name, c, rest)
}

// refusal returns a stage described by the condition.
func refusal(name string, c *corev1.NodeCondition, message string) Stage {
	s := Stage{Name: name, State: Broken, Since: c.LastTransitionTime.Time, Reason: c.Reason, Message: message}
	if c.Status == corev1.ConditionUnknown {
		s.State = Waiting
		return s
	}
	s.Message, s.Action = splitAction(message)
	return s
}

// splitAction splits a text that ends with an action.
func splitAction(text string) (message, action string) {
	if i := strings.LastIndex(text, "; "); i >= 0 {
		return text[:i], text[i+2:]
	}
	return text, ""
}

// addHealth adds the broken GPUs to the driver's stage.
func (r *Report) addHealth(node *corev1.Node) {
	c := condition(node, nodestatus.HealthType)
	if c == nil || c.Status == corev1.ConditionTrue {
		return
	}
	text := clean(fmt.Sprintf("%s is %s: %s: %s", nodestatus.HealthType, c.Status, c.Reason, c.Message))
	s := r.stage(string(readiness.Driver))
	if c.Status == corev1.ConditionFalse {
		s.Notes = append(s.Notes, text)
	}
}

// addKubelet sets the kubelet's stage by the Node's allocatable resources.
func (r *Report) addKubelet(node *corev1.Node) {
	s := r.stage(kubelet)
	if r.stage(string(readiness.Driver)).State == Absent {
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
	var offers []string
	for name, capacity := range node.Status.Capacity {
		if allocatable := node.Status.Allocatable[name]; strings.HasPrefix(string(name), "nvidia.com/") {
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
func (r *Report) addTaints(node *corev1.Node) {
	s := r.stage(pod)
	if s.State == Absent && r.stage(string(readiness.Plugin)).State == OK {
		*s = Stage{Name: pod, State: OK, Message: "pods can be given what is allocatable"}
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
			s := r.stage(a.name)
			s.Notes = append(s.Notes, clean(text))
		}
		found := false
		for _, p := range pods {
			if p.Labels["app"] != a.app {
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

// addEvents adds the latest Events that the validator wrote.
func (r *Report) addEvents(events []corev1.Event) {
	for _, e := range events {
		if e.Source.Component == nodestatus.Component {
			r.Events = append(r.Events, Event{e.LastTimestamp.UTC(), e.Type, e.Reason, clean(e.Message), e.Count})
		}
	}
	slices.SortStableFunc(r.Events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	r.Events = r.Events[max(0, len(r.Events)-maxEvents):]
}
