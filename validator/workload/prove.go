// Package workload runs the validation pods. They stay, for people to read, until the
// next one is run.
//
// The device plugin's pod (Runner) does the same as a user's pod: it requests a GPU, is
// scheduled to this node, is allocated one, and runs vectorAdd. The driver's pod (DriverPod)
// gets all GPUs, as our agents do, and runs vectorAdd on each; nothing waits for it.
package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/kube"
)

// Config configures a pod and how it is run.
type Config struct {
	Client    *kube.Client
	Node      string // its name
	BootID    string
	Namespace string
	Image     string // the validator's own, which contains the sample
	Timeout   time.Duration
	// Keep leaves a pod that has ended in place until the next one is created: its log is
	// for people. It is deleted with its owner.
	Keep bool
	// How to pull the image and run the pod, if not by default.
	PullPolicy   corev1.PullPolicy // "" is IfNotPresent
	PullSecrets  []string
	RuntimeClass string
	// The pod of this process, which becomes the owner: deleting it deletes the pods it left.
	OwnerName, OwnerUID string
	// Allocated asks the kubelet for the devices allocated to a pod, "namespace/name";
	// nil: not asked.
	Allocated func(ctx context.Context, pod string) ([]string, error)
	// InUse returns who uses the driver's GPUs, so that the driver's pod must not run on them; "": nobody.
	// nil: it is not asked.
	InUse func(ctx context.Context, driver check.Driver) string
	// FailedInUse returns who else uses a GPU or MIG device on which the sample failed with this CUresult, "":
	// nobody. nil: it is not asked.
	FailedInUse func(ctx context.Context, driver check.Driver, id gpu.UUID, code int) string
	// NodeRuntime returns the known facts about kubelet and runtime; nil: none are known.
	NodeRuntime func() NodeRuntime

	role Role
}

// watchTimeout bounds a watch, which is then restarted after a read: a dead connection
// gives no error.
const watchTimeout = 20 * time.Second

// cleanupTimeout bounds the removal of the pod when the run is cut off.
const cleanupTimeout = 5 * time.Second

// prove runs the pod and returns the time from request to result. The pod is removed
// unless it has ended and Keep is set.
func (c Config) prove(ctx context.Context, j job) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.podTimeout(j), errTimeout)
	defer cancel()
	if err := c.removeOld(ctx, func(*corev1.Pod) bool { return true }); err != nil {
		return 0, err
	}
	start := time.Now()
	p, err := c.Client.CreatePod(ctx, c.buildPod(j))
	if err != nil {
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown { // no answer
			rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			_ = c.removeOld(rest, unfinished) // it may have been created; the next run tries again
		}
		return 0, fmt.Errorf("create pod %s/%s: %w", c.Namespace, c.podName(), err)
	}
	run, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	t := &attempt{Config: c, driver: j.driver, place: place{cancel: abort}}
	defer t.place.stop()
	err = c.follow(run, p, func(now *corev1.Pod) (bool, error) { return t.observe(run, now) })
	if cause := context.Cause(run); err != nil && (errors.Is(cause, errTimeout) || errors.Is(cause, errUnschedulable)) {
		if _, ok := errors.AsType[*refused](err); !ok {
			err = t.timeoutError(cause)
		}
	}
	took = time.Since(start)
	if c.Keep && t.last != nil && !unfinished(t.last) {
		return took, err
	}
	rest, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer stop()
	if gone := c.Client.DeletePod(rest, p); gone != nil && !apierrors.IsNotFound(gone) && err == nil {
		err = fmt.Errorf("delete pod %s/%s: %w", c.Namespace, c.podName(), gone)
	}
	return took, err
}

// unfinished reports whether a pod still holds, or waits for, its resources. Scheduler
// and kubelet take back the devices of one that has ended.
func unfinished(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// removeLeftover removes the pod that an earlier process left, unless it is to be kept.
func (c Config) removeLeftover(ctx context.Context, log *slog.Logger) {
	first, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	stale := func(p *corev1.Pod) bool { return !c.Keep || unfinished(p) }
	if err := c.removeOld(first, stale); err != nil && ctx.Err() == nil {
		log.Warn("cannot read the pod left by an earlier process; the next run tries again", "message", err.Error())
	}
}

var errTimeout = errors.New("the time for the pod is over")

// removeOld removes an earlier pod if wanted returns true, and waits until it is gone.
func (c Config) removeOld(ctx context.Context, wanted func(*corev1.Pod) bool) error {
	p, err := c.Client.Pod(ctx, c.Namespace, c.podName())
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for an earlier pod %s/%s: %w", c.Namespace, c.podName(), err)
	case p.Labels[LabelName] != string(c.role):
		return newUnproven(ReasonNameTaken, fmt.Errorf("the name of pod %s/%s is taken by another program: it has no label %s=%s", c.Namespace, c.podName(), LabelName, c.role),
			"remove it")
	case !wanted(p):
		return nil
	}
	if err := c.Client.DeletePod(ctx, p); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the earlier pod %s/%s: %w", c.Namespace, c.podName(), err)
	}
	return c.follow(ctx, p, func(now *corev1.Pod) (bool, error) { return now == nil, nil })
}

func (c Config) deletedError() error {
	return newUnproven(ReasonEnded, fmt.Errorf("pod %s/%s was deleted by somebody else", c.Namespace, c.podName()), "nothing: it is tried again")
}

// follow calls observe with each state of a pod, nil when it is gone, until observe returns
// true or an error. It reads the pod and watches from that version, again and again.
func (c Config) follow(ctx context.Context, p *corev1.Pod, observe func(*corev1.Pod) (bool, error)) error {
	observeThis := func(now *corev1.Pod) (bool, error) {
		if now != nil && now.UID != p.UID {
			now = nil // another of the same name
		}
		return observe(now)
	}
	for {
		now, err := c.Client.Pod(ctx, p.Namespace, p.Name)
		if apierrors.IsNotFound(err) {
			now, err = nil, nil
		}
		if err != nil {
			return fmt.Errorf("read pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if done, err := observeThis(now); done || err != nil {
			return err
		}
		began := time.Now()
		if done, err := c.watch(ctx, now, observeThis); done || err != nil {
			return err
		}
		// Pause, in case the server ends each watch at once.
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(max(0, time.Second-time.Since(began))):
		}
	}
}

// watch watches a pod for up to watchTimeout. The end of a watch, or a resource version
// that is too old, is no error.
func (c Config) watch(ctx context.Context, p *corev1.Pod, observeThis func(*corev1.Pod) (bool, error)) (done bool, err error) {
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
			now, ok := e.Object.(*corev1.Pod)
			if !open || !ok {
				return false, nil
			}
			if e.Type == "DELETED" {
				now = nil
			}
			if done, err := observeThis(now); done || err != nil {
				return done, err
			}
		}
	}
}
