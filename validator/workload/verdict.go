package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/probe"
)

// allocatedTimeout bounds a query of the kubelet about one pod.
const allocatedTimeout = 2 * time.Second

// attempt is one run of the pod.
type attempt struct {
	Config
	driver  check.Driver
	place   place
	last    *corev1.Pod
	devices []string // devices allocated, according to the kubelet
}

// observe handles a state of the pod, nil when it is gone. It reports whether the run is
// done, and why the pod did not pass.
func (t *attempt) observe(ctx context.Context, now *corev1.Pod) (done bool, err error) {
	if now == nil {
		return true, t.deletedError()
	}
	t.last = now
	t.place.observe(now)
	t.readDevices(ctx)
	return t.judge(ctx, now)
}

// readDevices reads the devices of the pod until they are known: the kubelet does not
// list those of a pod that has ended.
func (t *attempt) readDevices(ctx context.Context) {
	if t.Allocated == nil || t.last.Spec.NodeName == "" || len(t.devices) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, allocatedTimeout)
	defer cancel()
	// On an error the verdict names no devices.
	t.devices, _ = t.Allocated(ctx, t.last.Namespace+"/"+t.last.Name)
}

// judge reports whether a state of the pod is final, and why the pod did not pass.
func (t *attempt) judge(ctx context.Context, p *corev1.Pod) (done bool, err error) {
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		return true, t.verifyPassed(terminated(p).Message)
	case corev1.PodFailed:
		if err := t.endedByOthers(p); err != nil {
			return true, err
		}
		if err := t.inUseError(ctx, p); err != nil {
			return true, err
		}
		return true, t.failureError(p)
	}
	if p.DeletionTimestamp != nil {
		return true, t.deletedError()
	}
	reason, message := waitingReason(p)
	switch {
	case noImage[reason]:
		return true, t.imageMissing(p, reason, message)
	case fatalWaiting[reason]:
		return true, t.notStarted(reason, message)
	}
	return false, nil
}

// endedByOthers returns why others ended a pod or left no room for it, which proves nothing
// about its GPU; nil: they did not. The words matched are the kubelet's.
func (c Config) endedByOthers(p *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return c.deletedError()
	}
	why := func(reason, message string) error {
		return newUnproven(ReasonEnded, fmt.Errorf("pod %s/%s was ended by others: %s: %s", p.Namespace, p.Name, reason, record.Clean(message, 500)),
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

// inUseError returns who uses the GPU that the pod was given, if its sample failed as it does on a good GPU that
// others use, such as programs outside of Kubernetes; nil: nobody is known, so that the failure counts.
func (t *attempt) inUseError(ctx context.Context, p *corev1.Pod) error {
	var a podAnswer
	_ = json.Unmarshal([]byte(terminated(p).Message), &a) // what is no answer has no code
	if t.FailedInUse == nil || !probe.MeansInUse(a.Code) {
		return nil
	}
	who := t.FailedInUse(ctx, t.driver, a.UUID, a.Code)
	if who == "" {
		return nil
	}
	return newUnproven(ReasonInUse, fmt.Errorf("vectorAdd in %s ended with %s: the GPU is in use: %s", t.role.describe(), record.Clean(a.Error, 500), who),
		"nothing: it is tried again")
}

// failureError returns the error of a failed pod: the kubelet did not admit it, the runtime did
// not start it, it had no GPU, or the sample failed.
func (t *attempt) failureError(p *corev1.Pod) error {
	container := terminated(p)
	switch {
	case p.Status.Reason == "DeadlineExceeded":
		return t.timeoutError(errTimeout)
	case container == (corev1.ContainerStateTerminated{}):
		return refuse(ReasonNotAdmitted, fmt.Sprintf("the kubelet did not admit %s: %s: %s", t.role.describe(), p.Status.Reason, p.Status.Message),
			"see the log of the kubelet and of gpu-device-plugin")
	case container.Reason == "StartError" || container.Reason == "ContainerCannotRun":
		return t.notStarted(container.Reason, container.Message)
	}
	why := cmp.Or(errorText(container.Message), container.Reason)
	switch {
	case hadNoGPU(container.Message) && t.role == Driver:
		return refuse(check.ReasonInjection, t.role.describe()+" was given no GPU: "+why, "see the log of nvidia-container-toolkit-daemonset on this node")
	case hadNoGPU(container.Message):
		return t.absentGPU(why)
	case t.role == Driver:
		return refuse(ReasonFailed, fmt.Sprintf("vectorAdd in %s ended with %d: %s", t.role.describe(), container.ExitCode, why),
			"the same passes in the validator's own container: compare with the pod's log, and see the log of gpu-toolkit")
	}
	return refuse(ReasonFailed, fmt.Sprintf("vectorAdd in a pod that was given a GPU ended with %d: %s", container.ExitCode, why),
		"the same passes outside of a pod: see what the CDI specification gives to containers, and the log of gpu-toolkit")
}

// timeoutError returns the error of a pod that did not end in time, with the cause if known.
func (t *attempt) timeoutError(err error) error {
	p := t.last
	if p == nil {
		return err
	}
	if message, ok := unscheduled(p); ok {
		return t.unschedulableError(p, message)
	}
	if reason, message := waitingReason(p); reason != "" {
		return refuse(ReasonNotStarted, fmt.Sprintf("the container of %s was not started within %v: %s: %s", t.role.describe(), t.Timeout, reason, message),
			"see the Events of the pod and the log of the container runtime")
	}
	if p.Spec.NodeName == "" && p.Status.Phase == corev1.PodPending {
		return newUnproven(ReasonNoScheduler, fmt.Errorf("no scheduler handled pod %s/%s within %v: %w", p.Namespace, p.Name, t.Timeout, err),
			"see that kube-scheduler runs")
	}
	return refuse(ReasonTimeout, fmt.Sprintf("%s had no result within %v; it is %s", t.role.describe(), t.Timeout, p.Status.Phase),
		"a GPU that hangs needs a reset; look for Xid lines in dmesg; give more time with --workload-timeout")
}

// noImage holds the reasons of a waiting container whose image cannot be pulled. The
// kubelet keeps retrying; a person who learns it at once can do more.
var noImage = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "InvalidImageName": true, "ErrImageNeverPull": true,
	"ImageInspectError": true, "RegistryUnavailable": true, "SignatureValidationFailed": true,
}

func (c Config) imageMissing(p *corev1.Pod, reason, message string) error {
	return refuse(ReasonImage, fmt.Sprintf("the image %s of %s is not on this node and cannot be pulled: %s: %s", p.Spec.Containers[0].Image, c.role.describe(), reason, message),
		"see that the node can pull the image that --workload-image names")
}

// fatalWaiting holds the other reasons from which a waiting container does not recover.
var fatalWaiting = map[string]bool{"CreateContainerError": true, "CreateContainerConfigError": true, "RunContainerError": true}

func (c Config) notStarted(reason, message string) error {
	action := "see the log of the container runtime; when it cannot resolve CDI names, gpu-toolkit says what to change"
	if strings.Contains(message, unix.ENOSPC.Error()) {
		action = "free space on the node: df -h and df -i show which file system is full"
	}
	return refuse(ReasonNotStarted, fmt.Sprintf("the container of %s was not started: %s: %s", c.role.describe(), reason, message), action)
}

// waitingReason returns why the container has not been started.
func waitingReason(p *corev1.Pod) (reason, message string) {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return s.State.Waiting.Reason, s.State.Waiting.Message
		}
	}
	return "", ""
}

func terminated(p *corev1.Pod) corev1.ContainerStateTerminated {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Terminated != nil {
			return *s.State.Terminated
		}
	}
	return corev1.ContainerStateTerminated{}
}
