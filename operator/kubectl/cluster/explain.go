package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/explain"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// maxEvents is the number of the latest Events to show.
const maxEvents = 10

// Explanation holds what kubectl gpu explain NODE prints: the report that gpu-validator explain prints about
// a node, with what only the cluster knows.
type Explanation struct {
	explain.Report
	Cluster State `json:"cluster"`
}

// State describes how far the operator is with a node, and what holds it up.
type State struct {
	Policy   string          `json:"policy,omitempty"` // in force
	Pool     string          `json:"pool"`
	Status   progress.Status `json:"status"`
	State    progress.State  `json:"state,omitempty"` // the first of the operator's states that the node has not reached
	Reason   string          `json:"reason,omitempty"`
	Message  string          `json:"message,omitempty"`
	Since    time.Time       `json:"since,omitzero"`
	Action   string          `json:"action,omitempty"`
	Steps    []Step          `json:"states"`
	Driver   Driver          `json:"driver"`
	Upgrade  *Upgrade        `json:"upgrade,omitempty"`
	Pods     []Pod           `json:"pods"`
	Events   []explain.Event `json:"events"` // the oldest first, without the validator's, which the report has
	Notes    []string        `json:"notes,omitempty"`
	Taints   []string        `json:"taints,omitempty"`
	Cordoned bool            `json:"cordoned,omitempty"`
}

// Step is one state of the operator's sequence, and whether the node has reached it.
type Step struct {
	State   progress.State `json:"state"`
	Reached bool           `json:"reached"`
}

// Driver describes the node's driver.
type Driver struct {
	ID        string `json:"id,omitempty"` // the label gpuready.io/driver
	Host      bool   `json:"host"`         // the host has its own
	Variant   string `json:"variant,omitempty"`
	DaemonSet string `json:"daemonSet,omitempty"` // the one that should run on the pool
	// NVIDIADriver is the NVIDIADriver that selects the node; several are a conflict.
	NVIDIADriver string `json:"nvidiaDriver,omitempty"`
	Image        string `json:"image,omitempty"`
	Reason       string `json:"reason,omitempty"` // why it is not the driver that the policy requires
	Message      string `json:"message,omitempty"`
}

// Upgrade describes the node's driver upgrade.
type Upgrade struct {
	State string `json:"state"`
	Since string `json:"since,omitempty"`
	Why   string `json:"why,omitempty"`   // why it failed
	Waits string `json:"waits,omitempty"` // what it waits for, as the policy's status says
}

// Pod is an operand's pod on the node.
type Pod struct {
	Name    string    `json:"name"`
	State   string    `json:"state,omitempty"`
	Ready   bool      `json:"ready"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Explain reads a node and determines its progress from the same facts and by the same rules as the
// operator. namespace is the operands' namespace: "" means that of the policy, and AllNamespaces
// means all. What the user has no right to read is named in a note; only the Node must be readable.
func (c *Client) Explain(ctx context.Context, name, namespace string, now time.Time) (Explanation, error) {
	object, err := c.Node(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return Explanation{}, fmt.Errorf("read Node %s: %w; see kubectl get nodes", name, err)
	case err != nil:
		return Explanation{}, fmt.Errorf("read Node %s: %w", name, err)
	}
	n := State{Steps: []Step{}, Pods: []Pod{}, Events: []explain.Event{}}
	observed := fleet.Observe(object)
	policies, err := c.Policies(ctx)
	if err != nil {
		n.addNote("ClusterPolicies", err)
	}
	policy := InForce(policies)
	if policy == nil {
		policy = &v1.ClusterPolicy{}
	}
	observed, noDriver := n.selectDriver(ctx, c, observed, policy)
	n.Policy, n.Pool = policy.Name, observed.Pool.String()
	n.readLabels(object, observed, policy)
	if namespace == "" {
		namespace = c.defaultNamespace(ctx, policy)
	}
	facts := explain.Cluster{Node: object}
	var pods []*progress.Pod
	pods, facts.Pods, facts.PodsErr = n.readPods(ctx, c, name, namespace)
	facts.Events, facts.EventsErr = c.Events(ctx, corev1.NamespaceDefault, "involvedObject.kind=Node,involvedObject.name="+name)
	facts.Offer = c.offer(ctx, name)
	report := explain.FromCluster(facts, now)
	if policy.Name == "" && len(pods) > 0 {
		n.followAgents(report)
	} else {
		n.evaluate(observed, pods, policy)
	}
	if have, want := fleet.SimilarGPULabel(object.Labels); have != "" && n.Reason == ReasonNoGPU {
		n.Message, n.Action = "its label "+have+" does not say that it has an NVIDIA GPU", "label the node "+want
	}
	if noDriver != nil && n.Reason == progress.ReasonNoPod {
		n.Reason, n.Message = string(noDriver.Reason), noDriver.Message
		_, n.Action, _ = strings.Cut(noDriver.Message, ": ") // the message is "what is wrong: what to do"
	}
	if facts.PodsErr != nil && n.Reason == progress.ReasonNoPod {
		n.Status, n.Reason, n.Message, n.Action = progress.Unknown, ReasonUnread, "the operands' pods cannot be read", "ask for the right to list pods in the operands' namespace"
	}
	n.checkClass(ctx, c, observed, cmp.Or(policy.Spec.Operator.RuntimeClass, "nvidia"))
	n.addEvents(facts.Events)
	return Explanation{report, n}, nil
}

// selectDriver returns the observed node with the NVIDIADriver that selects it, if the policy leaves
// drivers to NVIDIADrivers. problem says why no NVIDIADriver gives it a driver.
func (n *State) selectDriver(ctx context.Context, c *Client, observed *fleet.Node, policy *v1.ClusterPolicy) (selected *fleet.Node, problem *driver.Problem) {
	if !policy.Spec.Driver.UsesNVIDIADrivers() || !observed.GPU {
		return observed, nil
	}
	found, err := c.NVIDIADrivers(ctx)
	unread := ""
	if err != nil {
		n.addNote("NVIDIADrivers", err)
		unread = err.Error()
	}
	var all []*v1alpha1.NVIDIADriver
	for i := range found {
		all = append(all, &found[i])
	}
	selection := driver.NewSelection(&policy.Spec, all, unread)
	selected = observed.WithDrivers(selection.Of(observed.Name, observed.AllLabels))
	if selected.Pool.NVIDIADriver() == "" {
		problem = selection.Choose(&policy.Spec, selected.Pool, observed.Name, nil).Problem
	}
	return selected, problem
}

// checkClass adds a note if pods with the RuntimeClass do not start on the node, because its
// container runtime lacks the class's handler.
func (n *State) checkClass(ctx context.Context, c *Client, observed *fleet.Node, name string) {
	if !observed.GPU || observed.Handlers == nil {
		return // the kubelet reports no handlers
	}
	class, err := c.RuntimeClass(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		n.addNote("RuntimeClass "+name, err)
	case !slices.Contains(observed.Handlers, class.Handler):
		n.Notes = append(n.Notes, fmt.Sprintf("pods with runtimeClassName: %s do not start here: the RuntimeClass has the handler %s, and the container runtime has %s; omit it, or have the toolkit add the handler, with toolkit.env CONTAINERD_RUNTIME_CLASS=%s of the policy",
			name, class.Handler, strings.Join(observed.Handlers, ", "), class.Handler))
	}
}

func (n *State) addNote(what string, err error) {
	n.Notes = append(n.Notes, record.Clean(fmt.Sprintf("%s cannot be read: %v", what, err), 512))
}

// InForce returns the oldest policy that is not being deleted, or nil.
func InForce(policies []v1.ClusterPolicy) *v1.ClusterPolicy {
	policies = slices.DeleteFunc(slices.Clone(policies), func(p v1.ClusterPolicy) bool { return p.DeletionTimestamp != nil })
	if len(policies) == 0 {
		return nil
	}
	oldest := slices.MinFunc(policies, func(a, b v1.ClusterPolicy) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return &oldest
}

// readLabels adds what labels, annotations and taints of the Node, and the status of the policy, say.
func (n *State) readLabels(object *corev1.Node, observed *fleet.Node, policy *v1.ClusterPolicy) {
	n.Cordoned = observed.Cordoned
	for _, t := range observed.Taints {
		n.Taints = append(n.Taints, t.ToString())
	}
	n.Driver = Driver{ID: object.Labels[label.Driver], Host: observed.HostDriver()}
	if i := slices.IndexFunc(policy.Status.Pools, func(p v1.PoolStatus) bool { return p.Name == n.Pool }); i >= 0 {
		p := policy.Status.Pools[i]
		n.Driver.Variant, n.Driver.DaemonSet, n.Driver.Image, n.Driver.Reason, n.Driver.Message = p.Variant, p.DaemonSet, p.Image, p.Reason, p.Message
		n.Driver.NVIDIADriver = p.NVIDIADriver
	}
	if lines := policy.Status.Unserved; len(lines) > 0 {
		n.Notes = append(n.Notes, fmt.Sprintf("fields of ClusterPolicy %s that have no effect: %d; kubectl gpu status lists them", policy.Name, len(lines)))
	}
	if s := object.Labels[label.UpgradeState]; s != "" {
		n.Upgrade = &Upgrade{s, object.Annotations[label.UpgradeSince], record.Clean(object.Annotations[label.UpgradeReason], 512), upgradeWait(policy.Status.Upgrade, object.Name)}
	}
}

// upgradeWait returns what the node's driver upgrade waits for.
func upgradeWait(all *v1.UpgradeStatus, node string) string {
	if all == nil {
		return ""
	}
	for _, w := range all.Waiting {
		if w.Node == node {
			return w.Message
		}
	}
	return ""
}

// readPods reads the pods on a node, and pods that a DaemonSet made for it and that are not scheduled
// yet. It returns the operands' pods, which it also adds to n, and all pods that were read.
func (n *State) readPods(ctx context.Context, c *Client, node, namespace string) (operands []*progress.Pod, all []corev1.Pod, err error) {
	for _, fields := range []string{"spec.nodeName=" + node, "spec.nodeName=,status.phase=Pending"} {
		found, err := c.Pods(ctx, namespace, fields, "")
		if err != nil {
			if namespace != AllNamespaces {
				err = fmt.Errorf("namespace %s: %w", namespace, err)
			}
			return operands, all, err
		}
		for i := range found {
			if p := progress.ObservePod(&found[i]); p.Node == node && (p.State != "" || found[i].Labels[label.PartOf] == label.Product) {
				operands = append(operands, p)
				n.addPod(p, found[i].Status.Phase)
			}
		}
		all = append(all, found...)
	}
	slices.SortFunc(n.Pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	return operands, all, nil
}

func (n *State) addPod(p *progress.Pod, phase corev1.PodPhase) {
	pod := Pod{Name: p.Namespace + "/" + p.Name, State: string(p.State), Ready: p.Ready}
	switch {
	case phase == corev1.PodSucceeded: // a validation pod that has passed is kept for its log
		pod.Reason = string(phase)
	case !p.Ready:
		pod.Reason, pod.Message, pod.Since = p.Problem.Reason, p.Problem.Message, p.Problem.Since.UTC()
	}
	n.Pods = append(n.Pods, pod)
}

// evaluate determines the node's progress as the operator does.
func (n *State) evaluate(observed *fleet.Node, pods []*progress.Pod, policy *v1.ClusterPolicy) {
	handOver := policy.Status.State == v1.Disabled || policy.Status.Foreign() || observed.HandedOver()
	p := progress.Of(observed, pods, progress.NewWanted(&policy.Spec, handOver))
	switch {
	case policy.Name == "":
		p.Status, p.State, p.Reason, p.Message = progress.Unknown, "", ReasonNoPolicy, "there is no ClusterPolicy, or none that may be read"
	case !observed.GPU:
		p = progress.Progress{Status: progress.Excluded, Reason: ReasonNoGPU, Message: "no label says that the node has an NVIDIA GPU"}
	}
	n.Status, n.State, n.Reason = p.Status, p.State, p.Reason
	n.Message, n.Action = action(p)
	if !p.Since.IsZero() {
		n.Since = p.Since.UTC()
	}
	for _, s := range progress.Sequence() {
		if slices.Contains(progress.States(&policy.Spec), s) {
			n.Steps = append(n.Steps, Step{s, slices.Contains(p.Steps, s)})
		}
	}
	for _, t := range p.Others {
		n.Notes = append(n.Notes, fmt.Sprintf("%s: pod %s: %s: %s", t.State, t.Pod, t.Reason, t.Message))
	}
}

// followAgents sets the state of a node whose agents (device plugin, toolkit, validator) were installed
// without an operator. It takes it from the node's report.
func (n *State) followAgents(r explain.Report) {
	n.Notes = append(n.Notes, "there is no ClusterPolicy, or none that may be read: the node's agents say how far it is")
	n.Status = progress.Ready
	if end := r.End(); end != nil {
		n.Status = map[explain.State]progress.Status{explain.Broken: progress.Failed, explain.Absent: progress.Excluded}[end.State]
		n.Status = cmp.Or(n.Status, progress.Waiting)
		n.Reason, n.Message, n.Action, n.Since = end.Reason, end.Message, end.Action, end.Since.UTC()
	}
}

// Reasons that only this program reports.
const (
	ReasonNoPolicy = "NoClusterPolicy"
	ReasonNoGPU    = "NoGPULabel"
	ReasonUnread   = "PodsUnread"
)

// action returns the message of a node's progress, and the next action.
func action(p progress.Progress) (message, next string) {
	switch p.Reason {
	case ReasonNoPolicy:
		return p.Message, "apply a ClusterPolicy"
	case ReasonNoGPU:
		return p.Message, "nothing, or install NFD; where NFD cannot see the GPU, label the node nvidia.com/gpu.present=true"
	}
	if a := progress.Action(p.Reason); a != "" || p.Status == progress.Ready {
		return p.Message, a
	}
	if message, next = readiness.SplitAction(p.Message); next != "" { // the validator's messages have their action
		return message, next
	}
	return p.Message, "kubectl gpu must-gather, and look for the reason in docs/reasons.md"
}

// addEvents adds the latest maxEvents Events of the Node that the report does not have, without those
// that Kubernetes writes for every node that starts.
func (n *State) addEvents(events []corev1.Event) {
	for _, e := range events {
		routine := e.Type == corev1.EventTypeNormal && slices.Contains([]string{"kubelet", "node-controller", "kube-proxy"}, cmp.Or(e.Source.Component, e.ReportingController))
		if routine || explain.IsReported(e) {
			continue
		}
		last := e.LastTimestamp.Time
		if last.IsZero() {
			last = e.EventTime.Time
		}
		n.Events = append(n.Events, explain.Event{Time: last.UTC(), Type: e.Type, Reason: record.Clean(e.Reason, 128), Message: record.Clean(e.Message, 512), Count: e.Count})
	}
	slices.SortStableFunc(n.Events, func(a, b explain.Event) int { return a.Time.Compare(b.Time) })
	n.Events = n.Events[max(0, len(n.Events)-maxEvents):]
}
