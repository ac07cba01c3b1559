package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// maxEvents is the number of the latest Events to show.
const maxEvents = 10

// Explanation tells how far a node is on its way to usable GPUs, and what holds it up.
type Explanation struct {
	Node     string          `json:"node"`
	Time     time.Time       `json:"time"`
	Policy   string          `json:"policy,omitempty"` // in force
	GPUs     string          `json:"gpus,omitempty"`   // "8 × NVIDIA H200"
	Pool     string          `json:"pool"`
	Status   progress.Status `json:"status"`
	State    progress.State  `json:"state,omitempty"` // the first that is not reached
	Reason   string          `json:"reason,omitempty"`
	Message  string          `json:"message,omitempty"`
	Since    time.Time       `json:"since,omitzero"`
	Action   string          `json:"action,omitempty"`
	Road     []Step          `json:"road"`
	Driver   Driver          `json:"driver"`
	Upgrade  *Upgrade        `json:"upgrade,omitempty"`
	Pods     []Pod           `json:"pods"`
	Events   []Event         `json:"events"` // oldest first
	Notes    []string        `json:"notes,omitempty"`
	Taints   []string        `json:"taints,omitempty"`
	Cordoned bool            `json:"cordoned,omitempty"`
}

// Step is a state of the road.
type Step struct {
	State   progress.State `json:"state"`
	Reached bool           `json:"reached"`
}

// Driver describes the node's driver.
type Driver struct {
	ID        string `json:"id,omitempty"` // the label gpuready.io/driver
	Host      bool   `json:"host"`         // the host has its own
	Variant   string `json:"variant,omitempty"`
	DaemonSet string `json:"daemonSet,omitempty"` // that the pool is to have
	Image     string `json:"image,omitempty"`
	Reason    string `json:"reason,omitempty"` // why it is not the driver that the policy requires
	Message   string `json:"message,omitempty"`
}

// Upgrade describes the node's driver upgrade.
type Upgrade struct {
	State string `json:"state"`
	Since string `json:"since,omitempty"`
	Why   string `json:"why,omitempty"`   // it failed
	Waits string `json:"waits,omitempty"` // for what, as the policy's status says
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

// Event is an Event of the Node.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int32     `json:"count,omitempty"`
}

// Explain reads a node and determines its progress from the same facts and by the same rules as the
// operator. namespace is the operands' namespace; "" means that of the policy. A note names what
// the user may not read, apart from the Node.
func (c *Client) Explain(ctx context.Context, name, namespace string, now time.Time) (Explanation, error) {
	object, err := c.Node(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return Explanation{}, fmt.Errorf("read Node %s: %w; see kubectl get nodes", name, err)
	case err != nil:
		return Explanation{}, fmt.Errorf("read Node %s: %w", name, err)
	}
	n := Explanation{Node: name, Time: now.UTC(), Pods: []Pod{}, Events: []Event{}}
	observed := fleet.Observe(object)
	policies, err := c.Policies(ctx)
	if err != nil {
		n.addNote("ClusterPolicies", err)
	}
	policy := InForce(policies)
	if policy == nil {
		policy = &v1.ClusterPolicy{}
	}
	n.Policy, n.Pool = policy.Name, observed.Pool.String()
	n.readLabels(object, observed, policy)
	pods, err := n.readPods(ctx, c, firstNonEmpty(namespace, policy.Status.OperandNamespace(), c.Namespace))
	if err != nil {
		n.addNote("Pods", err)
	}
	n.evaluate(observed, pods, policy)
	if err != nil && n.Reason == progress.ReasonNoPod {
		n.Status, n.Reason, n.Message, n.Action = progress.Unknown, ReasonUnread, "the operands' pods cannot be read", "ask for the right to list pods in the operands' namespace"
	}
	n.checkClass(ctx, c, observed, firstNonEmpty(policy.Spec.Operator.RuntimeClass, "nvidia"))
	events, err := c.Events(ctx, corev1.NamespaceDefault, "involvedObject.kind=Node,involvedObject.name="+name)
	if err != nil {
		n.addNote("Events of the Node", err)
	}
	n.addEvents(events)
	return n, nil
}

// checkClass adds a note if pods with the RuntimeClass do not start on the node, because its
// container runtime lacks the class's handler.
func (n *Explanation) checkClass(ctx context.Context, c *Client, observed *fleet.Node, name string) {
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

func (n *Explanation) addNote(what string, err error) {
	n.Notes = append(n.Notes, record.Clean(fmt.Sprintf("%s cannot be read: %v", what, err), 512))
}

func firstNonEmpty(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return corev1.NamespaceDefault
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

func (n *Explanation) readLabels(object *corev1.Node, observed *fleet.Node, policy *v1.ClusterPolicy) {
	if product := object.Labels[label.GPUProduct]; product != "" {
		n.GPUs = strings.TrimPrefix(object.Labels["nvidia.com/gpu.count"]+" × ", " × ") + product
	}
	n.Cordoned = observed.Cordoned
	for _, t := range observed.Taints {
		n.Taints = append(n.Taints, t.ToString())
	}
	n.Driver = Driver{ID: object.Labels[label.Driver], Host: observed.HostDriver()}
	if i := slices.IndexFunc(policy.Status.Pools, func(p v1.PoolStatus) bool { return p.Name == n.Pool }); i >= 0 {
		p := policy.Status.Pools[i]
		n.Driver.Variant, n.Driver.DaemonSet, n.Driver.Image, n.Driver.Reason, n.Driver.Message = p.Variant, p.DaemonSet, p.Image, p.Reason, p.Message
	}
	if lines := policy.Status.Unserved; len(lines) > 0 {
		n.Notes = append(n.Notes, fmt.Sprintf("fields of ClusterPolicy %s that have no effect: %d; kubectl gpu status lists them", policy.Name, len(lines)))
	}
	if s := object.Labels[label.UpgradeState]; s != "" {
		n.Upgrade = &Upgrade{s, object.Annotations[label.UpgradeSince], record.Clean(object.Annotations[label.UpgradeReason], 512), upgradeWait(policy.Status.Upgrade, n.Node)}
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

// readPods reads the pods on the node and those that are still to be scheduled to it.
func (n *Explanation) readPods(ctx context.Context, c *Client, namespace string) (all []*progress.Pod, err error) {
	for _, fields := range []string{"spec.nodeName=" + n.Node, "spec.nodeName=,status.phase=Pending"} {
		found, err := c.Pods(ctx, namespace, fields, "")
		if err != nil {
			return all, fmt.Errorf("namespace %s: %w", namespace, err)
		}
		for i := range found {
			if p := progress.ObservePod(&found[i]); p.Node == n.Node && (p.State != "" || found[i].Labels[label.PartOf] == label.Product) {
				all = append(all, p)
				n.addPod(p, found[i].Status.Phase)
			}
		}
	}
	slices.SortFunc(n.Pods, func(a, b Pod) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (n *Explanation) addPod(p *progress.Pod, phase corev1.PodPhase) {
	pod := Pod{Name: p.Namespace + "/" + p.Name, State: string(p.State), Ready: p.Ready}
	switch {
	case phase == corev1.PodSucceeded: // one that validates stays, with its log
		pod.Reason = string(phase)
	case !p.Ready:
		pod.Reason, pod.Message, pod.Since = p.Problem.Reason, p.Problem.Message, p.Problem.Since.UTC()
	}
	n.Pods = append(n.Pods, pod)
}

// evaluate determines the node's progress as the operator does.
func (n *Explanation) evaluate(observed *fleet.Node, pods []*progress.Pod, policy *v1.ClusterPolicy) {
	handOver := policy.Status.State == v1.Disabled || policy.Status.Foreign() || observed.HandedOver()
	p := progress.Of(observed, pods, progress.Wanted{States: progress.States(&policy.Spec), HandOver: handOver})
	switch {
	case policy.Name == "":
		p.Status, p.State, p.Reason, p.Message = progress.Unknown, "", ReasonNoPolicy, "there is no ClusterPolicy, or none that may be read"
	case !observed.GPU:
		p = progress.Progress{Status: progress.Excluded, Reason: ReasonNoGPU, Message: "no label says that the node has an NVIDIA GPU"}
	}
	n.Status, n.State, n.Reason, n.Message, n.Action = p.Status, p.State, p.Reason, p.Message, action(p)
	if !p.Since.IsZero() {
		n.Since = p.Since.UTC()
	}
	for _, s := range progress.Sequence() {
		if slices.Contains(progress.States(&policy.Spec), s) {
			n.Road = append(n.Road, Step{s, slices.Contains(p.Steps, s)})
		}
	}
	for _, t := range p.Others {
		n.Notes = append(n.Notes, fmt.Sprintf("%s: pod %s: %s: %s", t.State, t.Pod, t.Reason, t.Message))
	}
}

// Reasons that only this program reports.
const (
	ReasonNoPolicy = "NoClusterPolicy"
	ReasonNoGPU    = "NoGPULabel"
	ReasonUnread   = "PodsUnread"
)

func action(p progress.Progress) string {
	switch p.Reason {
	case ReasonNoPolicy:
		return "apply a ClusterPolicy"
	case ReasonNoGPU:
		return "nothing, or install NFD; where NFD cannot see the GPU, label the node nvidia.com/gpu.present=true"
	}
	if a := progress.Action(p.Reason); a != "" || p.Status == progress.Ready {
		return a
	}
	// The validator's message ends with the next action.
	if i := strings.LastIndex(p.Message, "; "); i >= 0 {
		return p.Message[i+2:]
	}
	return "kubectl gpu must-gather, and look for the reason in docs/validator.md and docs/driver.md"
}

func (n *Explanation) addEvents(events []corev1.Event) {
	for _, e := range events {
		last := e.LastTimestamp.Time
		if last.IsZero() {
			last = e.EventTime.Time
		}
		n.Events = append(n.Events, Event{last.UTC(), e.Type, e.Reason, record.Clean(e.Message, 512), e.Count})
	}
	slices.SortStableFunc(n.Events, func(a, b Event) int { return a.Time.Compare(b.Time) })
	n.Events = n.Events[max(0, len(n.Events)-maxEvents):]
}
