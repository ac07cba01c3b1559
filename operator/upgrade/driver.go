package upgrade

import (
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// Set is an existing driver DaemonSet.
type Set struct {
	ID       string            // the value of label.Driver that it selects
	Name     string            // of the DaemonSet
	Digest   string            // of its pod template, from which the next pod is made
	Selector map[string]string // labels of NFD that its nodes must have
	Image    string            // of its driver container; "" for the simulated driver
	Ours     bool              // the image is a driver container of this product
	Version  string            // DRIVER_VERSION of its driver container; "" if it has none
	Sidecar  bool              // its pods have the Driver Toolkit's container
}

// ObserveSet returns what an upgrade needs to know of a driver DaemonSet.
func ObserveSet(s *appsv1.DaemonSet) Set {
	pod := &s.Spec.Template
	o := Set{ID: pod.Spec.NodeSelector[label.Driver], Name: s.Name, Digest: pod.Labels[label.DriverDigest], Ours: s.Labels[label.DriverContainer] == label.Product}
	for _, c := range pod.Spec.Containers {
		if c.Name == "nvidia-driver-ctr" {
			o.Image, o.Version = c.Image, driverVersion(c)
		}
		o.Sidecar = o.Sidecar || c.Name == "openshift-driver-toolkit-ctr"
	}
	for key, value := range pod.Spec.NodeSelector {
		if strings.HasPrefix(key, label.Feature) {
			if o.Selector == nil {
				o.Selector = map[string]string{}
			}
			o.Selector[key] = value
		}
	}
	return o
}

// driverVersion returns the version that the driver container's environment sets.
func driverVersion(c corev1.Container) string {
	for _, e := range c.Env {
		if e.Name == "DRIVER_VERSION" {
			return e.Value
		}
	}
	return ""
}

// selects reports whether a node with these labels has those that the DaemonSet requires of NFD.
func (s Set) selects(labels map[string]string) bool {
	for key, value := range s.Selector {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// Driver is a driver pod.
type Driver struct {
	Namespace, Name, UID string
	DaemonSet            string    // name of its controller
	Digest               string    // of the template it was made from
	Created              time.Time // by the API server's clock, like Node.Created
	Started              time.Time // when the node's kubelet accepted it, by the node's clock
	Ready                bool
	Deleting             bool
	End                  time.Time // end of the grace period of its deletion; zero if it is not deleted
	Failing              string    // why it will not become ready without help, one sentence; "" while it may
}

// failingRestarts is the number of restarts after which an unready container counts as
// failing. By the kubelet's doubling pauses, that is after five minutes or more.
const failingRestarts = 5

// ObserveDriver returns what an upgrade needs to know of a pod of a driver DaemonSet.
func ObserveDriver(p *corev1.Pod) *Driver {
	d := &Driver{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID),
		Digest:   p.Labels[label.DriverDigest],
		Created:  p.CreationTimestamp.Time,
		Deleting: p.DeletionTimestamp != nil,
	}
	if p.DeletionTimestamp != nil {
		d.End = p.DeletionTimestamp.Time
	}
	if p.Status.StartTime != nil {
		d.Started = p.Status.StartTime.Time
	}
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "DaemonSet" {
		d.DaemonSet = owner.Name
	}
	for _, c := range p.Status.Conditions {
		d.Ready = d.Ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if d.Failing == "" && !d.Ready {
				d.Failing = failureReason(&list[i])
			}
		}
	}
	return d
}

// failureReason returns why a container will not come up without help.
func failureReason(c *corev1.ContainerStatus) string {
	if w := c.State.Waiting; w != nil && (w.Reason == "ImagePullBackOff" || w.Reason == "ErrImageNeverPull" || w.Reason == "InvalidImageName") {
		return "its image cannot be pulled: " + summarize(w.Message, w.Reason)
	}
	if c.Ready || c.RestartCount < failingRestarts {
		return ""
	}
	why := "container " + c.Name + " does not stay up"
	if t := c.LastTerminationState.Terminated; t != nil {
		if reason, message := progress.TerminationMessage(t.Message); reason != "" {
			return why + ": " + reason + ": " + summarize(message, "")
		}
		why += ": " + summarize(t.Message, t.Reason)
	}
	return why
}

// summarize returns the first line of a text, or else another text, short enough for an
// annotation that people read.
func summarize(text, otherwise string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if text == "" {
		return otherwise
	}
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return text
}
