package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
)

// askTimeout bounds a question to the kubelet about one pod.
const askTimeout = 2 * time.Second

// attempt is one run of the pod.
type attempt struct {
	Config
	driver check.Driver
	place  place
	last   *corev1.Pod
	given  []string // devices, as the kubelet says
}

// told takes a state of the pod, nil when it is gone: not done yet, proven, or why not.
func (t *attempt) told(ctx context.Context, now *corev1.Pod) (done bool, err error) {
	if now == nil {
		return true, t.deleted()
	}
	t.last = now
	t.place.look(now)
	t.askKubelet(ctx)
	return t.judge(now)
}

// askKubelet asks which devices the pod holds, as long as it is not known: those of
// a pod that has ended are not told any more.
func (t *attempt) askKubelet(ctx context.Context) {
	if t.Allocated == nil || t.last.Spec.NodeName == "" || len(t.given) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	// Without an answer the verdict says so.
	t.given, _ = t.Allocated(ctx, t.last.Namespace+"/"+t.last.Name)
}

// judge says what a state of the pod comes to.
func (t *attempt) judge(p *corev1.Pod) (done bool, err error) {
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return true, t.passed(left(p).Message)
	case corev1.PodFailed:
		if err := t.ended(p); err != nil {
			return true, err
		}
		return true, t.failed(p)
	}
	if p.DeletionTimestamp != nil {
		return true, t.deleted()
	}
	reason, message := waiting(p)
	switch {
	case noImage[reason]:
		return true, t.imageMissing(p, reason, message)
	case final[reason]:
		return true, t.notStarted(reason, message)
	}
	return false, nil
}

// ended is why others ended a pod, or had no room for it: that says nothing of
// its GPU. The words are the kubelet's.
func (c Config) ended(p *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return c.deleted()
	}
	why := func(reason, message string) error {
		return beside(ReasonEnded, fmt.Errorf("pod %s/%s was ended by others: %s: %s", p.Namespace, p.Name, reason, record.Clean(message, 500)),
			"nothing: it is tried again")
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.DisruptionTarget && cond.Status == corev1.ConditionTrue {
			return why(cond.Reason, cond.Message)
		}
	}
	switch reason := p.Status.Reason; {
	case strings.HasPrefix(reason, "OutOf"), slices.Contains([]string{"Evicted", "Preempting", "NodeShutdown", "Terminated"}, reason):
		return why(reason, p.Status.Message)
	}
	return nil
}

// failed is a pod that ended badly: refused by the kubelet, not started by the
// runtime, without a GPU, or failed by the sample.
func (t *attempt) failed(p *corev1.Pod) error {
	container := left(p)
	switch {
	case p.Status.Reason == "DeadlineExceeded":
		return t.late(errTimeout)
	case container == (corev1.ContainerStateTerminated{}):
		return refuse(ReasonNotAdmitted, fmt.Sprintf("the kubelet did not admit %s: %s: %s", t.role.who(), p.Status.Reason, p.Status.Message),
			"see the log of the kubelet and of gpu-device-plugin")
	case container.Reason == "StartError" || container.Reason == "ContainerCannotRun":
		return t.notStarted(container.Reason, container.Message)
	}
	why := cmp.Or(words(container.Message), container.Reason)
	switch {
	case without(container.Message) && t.role == Driver:
		return refuse(check.ReasonInjection, t.role.who()+" was given no GPU: "+why, "see the log of nvidia-container-toolkit-daemonset on this node")
	case without(container.Message):
		return t.absent(why)
	case t.role == Driver:
		return refuse(ReasonFailed, fmt.Sprintf("vectorAdd in %s ended with %d: %s", t.role.who(), container.ExitCode, why),
			"the same passes in the validator's own container: compare with the pod's log, and see the log of gpu-toolkit")
	}
	return refuse(ReasonFailed, fmt.Sprintf("vectorAdd in a pod that was given a GPU ended with %d: %s", container.ExitCode, why),
		"the same passes outside of a pod: see what the CDI specification gives to containers, and the log of gpu-toolkit")
}

// late is a pod that came to no end in time: why, as far as it is known.
func (t *attempt) late(err error) error {
	p := t.last
	if p == nil {
		return err
	}
	if message, is := unscheduled(p); is {
		return t.noPlace(p, message)
	}
	if reason, message := waiting(p); reason != "" {
		return refuse(ReasonNotStarted, fmt.Sprintf("the container of %s was not started within %v: %s: %s", t.role.who(), t.Timeout, reason, message),
			"see the Events of the pod and the log of the container runtime")
	}
	if p.Spec.NodeName == "" && p.Status.Phase == corev1.PodPending {
		return beside(ReasonNoScheduler, fmt.Errorf("no scheduler looked at pod %s/%s within %v: %w", p.Namespace, p.Name, t.Timeout, err),
			"see that kube-scheduler runs")
	}
	return refuse(ReasonTimeout, fmt.Sprintf("%s had no result within %v; it is %s", t.role.who(), t.Timeout, p.Status.Phase),
		"a GPU that hangs needs a reset; look for Xid lines in dmesg; give more time with --workload-timeout")
}

// noImage are the reasons of a waiting container whose image cannot be had. The
// kubelet goes on trying; whoever is told at once can do more.
var noImage = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"ImageInspectError": true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
}

func (c Config) imageMissing(p *corev1.Pod, reason, message string) error {
	return refuse(ReasonImage, fmt.Sprintf("the image %s of %s is not on this node and cannot be had: %s: %s", p.Spec.Containers[0].Image, c.role.who(), reason, message),
		"see that the node can pull the image that --workload-image names")
}

// final are the other reasons of a waiting container that it does not get over.
var final = map[string]bool{"CreateContainerError": true, "CreateContainerConfigError": true, "RunContainerError": true}

func (c Config) notStarted(reason, message string) error {
	return refuse(ReasonNotStarted, fmt.Sprintf("the container of %s was not started: %s: %s", c.role.who(), reason, message),
		"see the log of the container runtime; when it cannot resolve CDI names, gpu-toolkit says what to change")
}

// waiting is why the container has not been started.
func waiting(p *corev1.Pod) (reason, message string) {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return s.State.Waiting.Reason, s.State.Waiting.Message
		}
	}
	return "", ""
}

func left(p *corev1.Pod) corev1.ContainerStateTerminated {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Terminated != nil {
			return *s.State.Terminated
		}
	}
	return corev1.ContainerStateTerminated{}
}
