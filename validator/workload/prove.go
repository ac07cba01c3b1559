// Package workload proves by pods, which stay for people to read until the next one.
//
// That of the device plugin is the last step of the road as a user's pod would take
// it: it requests a GPU, is scheduled to this node, is given one, and runs vectorAdd
// (Runner). That of the driver is given all GPUs as our agents are and runs vectorAdd on
// each; nothing waits for it (Witness).
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

	"github.com/gpuready/gpuready/validator/kube"
)

// Config is what is needed to run the pod.
type Config struct {
	Client    *kube.Client
	Node      string // its name
	BootID    string
	Namespace string
	Image     string // the validator's own: it has the sample in it
	Timeout   time.Duration
	// Keep leaves a pod that has ended where it is until the next one is to be made:
	// its log is for people. It goes with its owner.
	Keep bool
	// How the image is had and the pod is run, where that is not as usual.
	PullPolicy   corev1.PullPolicy // "" is IfNotPresent
	PullSecrets  []string
	RuntimeClass string
	// The pod that this process is in: with it, what it left goes, too.
	OwnerName, OwnerUID string
	// Allocated asks the kubelet for the devices that a pod, "namespace/name", holds;
	// nil: it is not asked.
	Allocated func(ctx context.Context, pod string) ([]string, error)
	// Injects says what is known of kubelet and runtime; nil: nothing is.
	Injects func() Injects

	role Role
}

// A watch ends after this time and is begun anew with a look: a connection that
// died does not say so.
const watchTimeout = 20 * time.Second

// cleanupTimeout bounds the removal of the pod when the run is cut off.
const cleanupTimeout = 5 * time.Second

// prove runs the pod. It is removed unless it has ended and is to be kept. How long it
// took, from request to result, is returned.
func (c Config) prove(ctx context.Context, j job) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.lasts(j), errTimeout)
	defer cancel()
	if err := c.clear(ctx, func(*corev1.Pod) bool { return true }); err != nil {
		return 0, err
	}
	start := time.Now()
	p, err := c.Client.CreatePod(ctx, c.pod(j))
	if err != nil {
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown { // no answer
			rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			_ = c.clear(rest, unfinished) // it may have been created; whoever comes next looks again
		}
		return 0, fmt.Errorf("create pod %s/%s: %w", c.Namespace, c.name(), err)
	}
	run, give := context.WithCancelCause(ctx)
	defer give(nil)
	t := &attempt{Config: c, driver: j.driver, place: place{give: give}}
	defer t.place.found()
	err = c.follow(run, p, func(now *corev1.Pod) (bool, error) { return t.told(run, now) })
	if cause := context.Cause(run); err != nil && (errors.Is(cause, errTimeout) || errors.Is(cause, errNoPlace)) {
		if _, is := errors.AsType[*refused](err); !is {
			err = t.late(cause)
		}
	}
	took = time.Since(start)
	if c.Keep && t.last != nil && !unfinished(t.last) {
		return took, err
	}
	rest, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer stop()
	if gone := c.Client.DeletePod(rest, p); gone != nil && !apierrors.IsNotFound(gone) && err == nil {
		err = fmt.Errorf("delete pod %s/%s: %w", c.Namespace, c.name(), gone)
	}
	return took, err
}

// unfinished says whether a pod still holds, or waits for, what it asks for. Scheduler
// and kubelet take back the devices of one that has ended.
func unfinished(p *corev1.Pod) bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// tidy removes what an earlier process left, but for the pod that is kept.
func (c Config) tidy(ctx context.Context, log *slog.Logger) {
	first, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	left := func(p *corev1.Pod) bool { return !c.Keep || unfinished(p) }
	if err := c.clear(first, left); err != nil && ctx.Err() == nil {
		log.Warn("cannot look for a pod of an earlier time; it is looked for again before the next", "message", err.Error())
	}
}

var errTimeout = errors.New("the time for the pod is over")

// clear removes a pod of an earlier time if that is wanted, and waits until it is gone.
func (c Config) clear(ctx context.Context, wanted func(*corev1.Pod) bool) error {
	p, err := c.Client.Pod(ctx, c.Namespace, c.name())
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for pod %s/%s of an earlier time: %w", c.Namespace, c.name(), err)
	case p.Labels[LabelName] != string(c.role):
		return beside(ReasonNameTaken, fmt.Errorf("the pod %s/%s is in the way and none of ours: it has no label %s=%s", c.Namespace, c.name(), LabelName, c.role),
			"remove it")
	case !wanted(p):
		return nil
	}
	if err := c.Client.DeletePod(ctx, p); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s of an earlier time: %w", c.Namespace, c.name(), err)
	}
	return c.follow(ctx, p, func(now *corev1.Pod) (bool, error) { return now == nil, nil })
}

func (c Config) deleted() error {
	return beside(ReasonEnded, fmt.Errorf("pod %s/%s was deleted by somebody else", c.Namespace, c.name()), "nothing: it is tried again")
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
