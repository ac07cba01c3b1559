// Package workload proves the last step of the road as a user's pod would take
// it: a pod that requests a GPU is scheduled to this node, is given one, and runs
// vectorAdd.
package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube"
)

// Reasons for which the plugin's layer is refused by what became of the pod.
const (
	ReasonRunning       gpu.Reason = "WorkloadRunning"
	ReasonUnschedulable gpu.Reason = "WorkloadUnschedulable"
	ReasonNotAdmitted   gpu.Reason = "WorkloadNotAdmitted"
	ReasonNotStarted    gpu.Reason = "WorkloadNotStarted"
	ReasonFailed        gpu.Reason = "WorkloadFailed"
	ReasonTimeout       gpu.Reason = "WorkloadTimeout"
)

// Config is what is needed to run the pod.
type Config struct {
	Client    *kube.Client
	Node      string // its name
	BootID    string
	Namespace string
	Image     string // the validator's own: it has the sample in it
	Timeout   time.Duration
	// The pod that this process is in: with it, what it left goes, too.
	OwnerName, OwnerUID string
}

// A refused pod is one that shows that the layer is not ready. All other errors
// are of the API server, or of others on the node, and say nothing of its GPUs.
type refused struct{ readiness.Refusal }

func (r *refused) Error() string { return r.Message }

func refuse(reason gpu.Reason, message, action string) error {
	return &refused{readiness.Refusal{Reason: reason, Message: record.Clean(message, 2048), Action: action}}
}

// A watch ends after this time and is begun anew with a look: a connection that
// died does not say so.
const watchTimeout = 20 * time.Second

// cleanupTimeout bounds the removal of the pod when the run is cut off.
const cleanupTimeout = 5 * time.Second

// prove runs the pod and removes it. How long it took, from request to result,
// is returned.
func (c Config) prove(ctx context.Context, resource string, driver check.Driver) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errTimeout)
	defer cancel()
	if err := c.clear(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	p, err := c.Client.CreatePod(ctx, c.pod(resource))
	if err != nil {
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown { // no answer
			rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			_ = c.clear(rest) // it may have been created; whoever comes next looks again
		}
		return 0, fmt.Errorf("create pod %s/%s: %w", c.Namespace, c.name(), err)
	}
	defer func() {
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if gone := c.Client.DeletePod(rest, p); gone != nil && !apierrors.IsNotFound(gone) && err == nil {
			err = fmt.Errorf("delete pod %s/%s: %w", c.Namespace, c.name(), gone)
		}
	}()
	last := p
	err = c.follow(ctx, p, func(now *corev1.Pod) (bool, error) {
		if now == nil {
			return true, c.deleted()
		}
		last = now
		return c.judge(now, driver)
	})
	if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
		if _, is := errors.AsType[*refused](err); !is {
			err = c.late(last, err)
		}
	}
	return time.Since(start), err
}

var errTimeout = errors.New("the time for the pod is over")

// clear removes a pod that an earlier process left, and waits until it is gone.
func (c Config) clear(ctx context.Context) error {
	p, err := c.Client.Pod(ctx, c.Namespace, c.name())
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for pod %s/%s of an earlier time: %w", c.Namespace, c.name(), err)
	case p.Labels[LabelName] != Label:
		return fmt.Errorf("the pod %s/%s is in the way and none of ours: it has no label %s=%s; remove it", c.Namespace, c.name(), LabelName, Label)
	}
	if err := c.Client.DeletePod(ctx, p); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s of an earlier time: %w", c.Namespace, c.name(), err)
	}
	return c.follow(ctx, p, func(now *corev1.Pod) (bool, error) { return now == nil, nil })
}

func (c Config) deleted() error {
	return fmt.Errorf("pod %s/%s was deleted by somebody else", c.Namespace, c.name())
}

// follow calls told with each state of a pod, nil when it is gone, until told is
// done. It looks, and then watches from there, again and again.
func (c Config) follow(ctx context.Context, p *corev1.Pod, told func(*corev1.Pod) (bool, error)) error {
	seen := func(now *corev1.Pod) (bool, error) {
		if now != nil && now.UID != p.UID {
			now = nil // another of the same name
		}
		return told(now)
	}
	for {
		now, err := c.Client.Pod(ctx, p.Namespace, p.Name)
		if apierrors.IsNotFound(err) {
			now, err = nil, nil
		}
		if err != nil {
			return fmt.Errorf("read pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if done, err := seen(now); done || err != nil {
			return err
		}
		began := time.Now()
		if done, err := c.watch(ctx, now, seen); done || err != nil {
			return err
		}
		// A server that ends each watch at once is not asked without a pause.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(max(0, time.Second-time.Since(began))):
		}
	}
}

// watch follows for a while. That a watch ends, or cannot be had any more from
// there, is nothing to speak of.
func (c Config) watch(ctx context.Context, p *corev1.Pod, seen func(*corev1.Pod) (bool, error)) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	w, err := c.Client.WatchPod(ctx, p)
	if err != nil {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, fmt.Errorf("watch pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case e, open := <-w.ResultChan():
			now, is := e.Object.(*corev1.Pod)
			if !open || !is {
				return false, nil
			}
			if e.Type == "DELETED" {
				now = nil
			}
			if done, err := seen(now); done || err != nil {
				return done, err
			}
		}
	}
}

// judge says what a state of the pod comes to: not done yet, proven, or refused.
func (c Config) judge(p *corev1.Pod, driver check.Driver) (done bool, err error) {
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		if err := verdict(left(p).Message, driver); err != nil {
			return true, refuse(ReasonFailed, "vectorAdd in a pod: "+err.Error(), "see which CDI devices the device plugin hands out")
		}
		return true, nil
	case corev1.PodFailed:
		if err := c.ended(p); err != nil {
			return true, err
		}
		return true, c.failed(p)
	}
	if p.DeletionTimestamp != nil {
		return true, c.deleted()
	}
	if reason, message := waiting(p); final[reason] {
		return true, refuse(ReasonNotStarted, fmt.Sprintf("the container of a pod that requests a GPU was not started: %s: %s", reason, message), action(reason))
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
		return fmt.Errorf("pod %s/%s was ended by others: %s: %s", p.Namespace, p.Name, reason, record.Clean(message, 500))
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

// failed is a pod that ended badly: refused by the kubelet, or by the sample.
func (c Config) failed(p *corev1.Pod) error {
	t := left(p)
	switch {
	case p.Status.Reason == "DeadlineExceeded":
		return c.late(p, errTimeout)
	case t == (corev1.ContainerStateTerminated{}):
		return refuse(ReasonNotAdmitted, fmt.Sprintf("the kubelet did not admit a pod that requests a GPU: %s: %s", p.Status.Reason, p.Status.Message),
			"see the log of the kubelet and of gpu-device-plugin")
	}
	why := words(t.Message)
	if why == "" {
		why = t.Reason
	}
	return refuse(ReasonFailed, fmt.Sprintf("vectorAdd in a pod that was given a GPU ended with %d: %s", t.ExitCode, why),
		"the same passes outside of a pod: see what the CDI specification gives to containers, and the log of gpu-toolkit")
}

// late is a pod that came to no end in time: why, as far as it is known.
func (c Config) late(p *corev1.Pod, err error) error {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled && cond.Status == corev1.ConditionFalse {
			if !lacksDevice(p, cond.Message) { // a node may be full of other things
				return fmt.Errorf("pod %s/%s could not be scheduled within %v: %s", p.Namespace, p.Name, c.Timeout, record.Clean(cond.Message, 500))
			}
			return refuse(ReasonUnschedulable, fmt.Sprintf("a pod that requests a GPU could not be scheduled to this node within %v: %s: %s", c.Timeout, cond.Reason, cond.Message),
				"compare with what kubectl describe node shows as allocatable and allocated")
		}
	}
	if reason, message := waiting(p); reason != "" {
		return refuse(ReasonNotStarted, fmt.Sprintf("the container of a pod that requests a GPU was not started within %v: %s: %s", c.Timeout, reason, message), action(reason))
	}
	if p.Spec.NodeName == "" && p.Status.Phase == corev1.PodPending {
		return fmt.Errorf("no scheduler looked at pod %s/%s within %v: %w", p.Namespace, p.Name, c.Timeout, err)
	}
	return refuse(ReasonTimeout, fmt.Sprintf("a pod that requests a GPU had no result within %v; it is %s", c.Timeout, p.Status.Phase),
		"a GPU that hangs needs a reset; look for Xid lines in dmesg; give more time with --workload-timeout")
}

// lacksDevice says whether the scheduler found too few of the devices that the
// pod requests; the words are its own.
func lacksDevice(p *corev1.Pod, message string) bool {
	for name := range p.Spec.Containers[0].Resources.Limits {
		if name != corev1.ResourceMemory && strings.Contains(message, "Insufficient "+string(name)) {
			return true
		}
	}
	return false
}

// final are the reasons of a waiting container that it does not get over.
var final = map[string]bool{
	"CreateContainerError": true, "CreateContainerConfigError": true, "RunContainerError": true,
	"InvalidImageName": true, "ErrImageNeverPull": true,
}

func action(reason string) string {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
		return "see that the node can pull the image that --workload-image names"
	case "ContainerCreating":
		return "see the Events of the pod and the log of the container runtime"
	}
	return "see the log of the container runtime; when it cannot resolve CDI names, gpu-toolkit says what to change"
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
