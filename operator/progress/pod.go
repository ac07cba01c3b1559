package progress

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/operator/label"
)

// Bounds of texts of other programs, in bytes.
const (
	maxText   = 512
	maxReason = 128
)

// Reasons why a pod is not ready. The first five need somebody to act; waiting does not
// help.
const (
	ReasonImagePull     = "ImagePullBackOff"
	ReasonCrashLoop     = "CrashLoopBackOff"
	ReasonCannotStart   = "ContainerCannotStart"
	ReasonUnschedulable = "Unschedulable"
	ReasonNotAdmitted   = "PodNotAdmitted"

	ReasonHostDriver  = "HostDriver"
	ReasonTerminating = "PodTerminating"
	ReasonInit        = "InitContainerWaiting"
	ReasonStarting    = "PodStarting"
	ReasonNotReady    = "PodNotReady"
)

// Pod is an operand's pod, reduced to what the operator acts on.
type Pod struct {
	Namespace, Name string
	Node            string // where it runs or will run
	App             string // the label app
	State           State
	Digest          string // label.DriverDigest
	Created         time.Time
	Deleting        bool
	Ready           bool
	Problem         Problem // why it is not ready; zero if it is
	Ours            bool    // a driver's pod with a container of this product
	HostDriver      string  // description of a driver that it found on the host; "" if it reported none
}

// Problem describes why a pod is not ready.
type Problem struct {
	Stuck   bool // waiting does not help
	Reason  string
	Message string // at most 512 bytes, one line
	Since   time.Time
}

// apps maps the label app of pods to the state that they belong to.
var apps = map[string]State{
	label.DriverApp:                      Driver,
	"nvidia-container-toolkit-daemonset": Toolkit,
	"nvidia-device-plugin-daemonset":     DevicePlugin,
	"nvidia-operator-validator":          DriverValidation,
	"gpu-feature-discovery":              FeatureLabels,
	"gpu-dra-driver":                     DRADriver,
	"nvidia-dcgm":                        DCGM,
	"nvidia-dcgm-exporter":               DCGMExporter,
	"nvidia-mig-manager":                 MIGManager,
}

// ObservePod reduces an operand's pod.
func ObservePod(p *corev1.Pod) *Pod {
	o := &Pod{
		Namespace: p.Namespace, Name: p.Name, Node: nodeOf(p), App: p.Labels["app"], Digest: p.Labels[label.DriverDigest],
		Created: p.CreationTimestamp.Time, Deleting: p.DeletionTimestamp != nil,
	}
	o.State = cmp.Or(apps[o.App], State(p.Labels[label.State]))
	o.Ours = p.Labels[label.DriverContainer] == label.Product
	o.HostDriver, _ = HostDriver(p)
	ready := condition(p, corev1.PodReady)
	o.Ready = !o.Deleting && ready != nil && ready.Status == corev1.ConditionTrue
	if !o.Ready {
		o.Problem = podProblem(p)
		o.Problem.Message = record.Clean(o.Problem.Message, maxText)
		if o.Problem.Since.IsZero() {
			o.Problem.Since = o.Created
			if ready != nil && p.Status.Phase == corev1.PodRunning {
				o.Problem.Since = ready.LastTransitionTime.Time
			}
		}
	}
	return o
}

// nodeOf returns the Node that a pod runs on. An unscheduled pod has the Node that the
// DaemonSet controller made it for.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" {
		return p.Spec.NodeName
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// The driver pod's init container that checks whether the host has a driver of its own, and
// how it exits if so.
const (
	hostDriverContainer = "host-driver"
	hostDriverExit      = 3
	hostDriverMessage   = "HostDriver: "
)

// HostDriver reports whether the pod found a driver on the host, and returns its description.
func HostDriver(p *corev1.Pod) (text string, found bool) {
	for _, c := range p.Status.InitContainerStatuses {
		if c.Name != hostDriverContainer {
			continue
		}
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t == nil || t.ExitCode != hostDriverExit {
				continue
			}
			for line := range strings.Lines(t.Message) { // which may be the end of its log
				if rest, is := strings.CutPrefix(line, hostDriverMessage); is {
					return record.Clean(rest, maxText), true
				}
			}
		}
	}
	return "", false
}

// podProblem returns why a pod is not ready.
func podProblem(p *corev1.Pod) Problem {
	if p.DeletionTimestamp != nil {
		return Problem{Reason: ReasonTerminating, Message: "the pod is being deleted", Since: deletionTime(p)}
	}
	if text, is := HostDriver(p); is {
		return Problem{Reason: ReasonHostDriver, Message: text}
	}
	if p.Status.Phase == corev1.PodFailed {
		return Problem{Stuck: true, Reason: ReasonNotAdmitted, Message: strings.Trim(p.Status.Reason+": "+p.Status.Message, ": ")}
	}
	if c := condition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return Problem{Stuck: true, Reason: ReasonUnschedulable, Message: c.Message, Since: c.LastTransitionTime.Time}
	}
	for _, c := range p.Status.InitContainerStatuses {
		if why, is := containerProblem(c); is {
			return why
		}
		if c.State.Terminated == nil {
			return Problem{Reason: ReasonInit, Message: "init container " + c.Name + " has not ended yet"}
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if why, is := containerProblem(c); is {
			return why
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running != nil && !c.Ready {
			return Problem{Reason: ReasonNotReady, Message: "container " + c.Name + " runs and is not ready yet"}
		}
	}
	return Problem{Reason: ReasonStarting, Message: "the pod's containers are being started"}
}

// deletionTime returns when the deletion of a pod began: its timestamp is when its grace period ends.
func deletionTime(p *corev1.Pod) time.Time {
	if grace := p.DeletionGracePeriodSeconds; grace != nil {
		return p.DeletionTimestamp.Add(-time.Duration(*grace) * time.Second)
	}
	return p.DeletionTimestamp.Time
}

// containerProblem returns why a container will not become ready by waiting. The kubelet
// alternates between reasons for the same problem; the result does not.
func containerProblem(c corev1.ContainerStatus) (Problem, bool) {
	if w := c.State.Waiting; w != nil {
		switch w.Reason {
		case "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable", "SignatureValidationFailed", "ImageInspectError":
			return Problem{Stuck: true, Reason: ReasonImagePull, Message: fmt.Sprintf("container %s: image %s: %s", c.Name, c.Image, pullMessage(w))}, true
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError", "PostStartHookError":
			return Problem{Stuck: true, Reason: ReasonCannotStart, Message: fmt.Sprintf("container %s: %s: %s", c.Name, w.Reason, w.Message)}, true
		case "CrashLoopBackOff":
			return crashProblem(c), true
		}
	}
	if t := c.State.Terminated; t != nil && t.ExitCode != 0 || c.State.Running != nil && !c.Ready && c.RestartCount > 1 && c.LastTerminationState.Terminated != nil {
		return crashProblem(c), true
	}
	return Problem{}, false
}

func pullMessage(w *corev1.ContainerStateWaiting) string {
	if _, why, is := strings.Cut(w.Message, "ErrImagePull: "); is {
		return why
	}
	return strings.TrimSpace(cmp.Or(w.Message, w.Reason))
}

func crashProblem(c corev1.ContainerStatus) Problem {
	t := c.State.Terminated
	if t == nil {
		t = c.LastTerminationState.Terminated
	}
	if t == nil {
		return Problem{Stuck: true, Reason: ReasonCrashLoop, Message: "container " + c.Name + " ends again and again"}
	}
	text := fmt.Sprintf("container %s ended with %d", c.Name, t.ExitCode)
	if reason, message := TerminationMessage(t.Message); reason != "" {
		return Problem{Stuck: true, Reason: reason, Message: text + ": " + message}
	}
	if why := cmp.Or(strings.TrimSpace(t.Message), t.Reason); why != "" && why != "Error" {
		text += ": " + why
	}
	return Problem{Stuck: true, Reason: ReasonCrashLoop, Message: text}
}

// driverMessage matches gpu-driver's termination message: its name, an optional reason of at
// most 63 characters in one word, and what happened.
var driverMessage = regexp.MustCompile(`^gpu-driver: (?:([A-Z][A-Za-z]{1,62}): )?(.+)$`)

// TerminationMessage returns the last line of a container's termination message, which may be the end
// of its log. reason is "" unless gpu-driver wrote one.
func TerminationMessage(message string) (reason, text string) {
	message = strings.TrimSpace(message)
	last := message[strings.LastIndexByte(message, '\n')+1:]
	if m := driverMessage.FindStringSubmatch(last); m != nil {
		return m[1], m[2]
	}
	return "", last
}
