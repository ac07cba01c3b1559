package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Runner runs the pod in parallel to the checks: they ask for the result so far and are
// notified of a new one. It runs one pod at a time. A proof holds for the same driver,
// GPUs and resources until Forget.
type Runner struct {
	Config
	log     *slog.Logger
	runs    *prometheus.CounterVec
	seconds prometheus.Gauge
	trigger chan struct{} // received by Run
	updates chan struct{} // received by the callers of Prove

	mu      sync.Mutex
	want    *job
	running *job
	cancel  context.CancelFunc // ends running
	last    result
	unread  bool // Prove has not returned last yet
}

// job describes one run of a pod.
type job struct {
	subject  string // everything that the result depends on
	resource string
	driver   check.Driver
}

// result is the result of a run; the zero value: none yet.
type result struct {
	subject string
	took    time.Duration
	err     error
}

// New returns a Runner that runs nothing until Run.
func New(c Config, log *slog.Logger, reg prometheus.Registerer) *Runner {
	c.role = DevicePlugin
	r := &Runner{Config: c, log: log, trigger: make(chan struct{}, 1), updates: make(chan struct{}, 1),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_workload_runs_total",
			Help: "Pods that were run to prove that a pod can use a GPU, by outcome; unknown: the API server, or others on the node, were in the way."}, []string{"outcome"}),
		seconds: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_workload_seconds",
			Help: "From the request for the last such pod to its result."}),
	}
	reg.MustRegister(r.runs, r.seconds)
	return r
}

// Updates returns a channel that receives whenever a pod has ended.
func (r *Runner) Updates() <-chan struct{} { return r.updates }

// Run removes the unfinished pod of an earlier process, and runs pods until ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	r.removeLeftover(ctx, r.log)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.trigger:
		}
		if err := r.runNext(ctx); err != nil {
			return err
		}
		notify(r.updates)
	}
}

// runNext runs the pod that is wanted. The result is dropped if Forget was called
// meanwhile.
func (r *Runner) runNext(ctx context.Context) error {
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	j := r.want
	r.want, r.running, r.cancel = nil, j, cancel
	r.mu.Unlock()
	if j == nil {
		return nil
	}
	took, err := r.prove(run, *j)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = nil
	if run.Err() == nil {
		r.observeRun(took, err)
		r.last, r.unread = result{j.subject, took, err}, true
	}
	return nil
}

func (r *Runner) observeRun(took time.Duration, err error) {
	r.runs.WithLabelValues(outcome(err)).Inc()
	r.seconds.Set(took.Seconds())
}

// outcome returns the metrics' label for the end of a pod.
func outcome(err error) string {
	if err == nil {
		return "passed"
	}
	if _, ok := errors.AsType[*refused](err); ok {
		return "failed"
	}
	return "unknown"
}

// Forget drops the last result and ends a running pod. Call it when the device plugin has been
// away, because earlier results no longer count.
func (r *Runner) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.unread, r.want = result{}, false, nil
	if r.running != nil {
		r.cancel()
	}
}

// Prove adds the result of a pod to soFar, the outcome of the layer "plugin" once the driver, the
// device plugin and the kubelet agree on the devices. free is the resource of which the pod can
// request one, "" if other pods hold all devices.
//
// It does not wait. A pod that passed is reported until Forget. A new failure is reported once;
// the next call starts another pod, and meanwhile the failure stays the result. Without an
// earlier result it is Pending, and if no device is free, the layer is proven with a note.
func (r *Runner) Prove(driver check.Driver, soFar check.Outcome, free string) check.Outcome {
	subject := fmt.Sprint(driver.Subject(), slices.Sorted(maps.Keys(soFar.Proof.Resources)))
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.last.subject == subject
	idle := r.running == nil && r.want == nil
	switch {
	case known && r.last.err == nil:
		soFar.Proof.Summary += fmt.Sprintf("; vectorAdd passed in a pod, %.1f s from request to result", r.last.took.Seconds())
		return soFar
	case idle && known && r.unread: // the first report of this failure starts no new pod
		r.unread = false
		if bad, ok := errors.AsType[*refused](r.last.err); ok && bad.Reason == ReasonUnschedulable && free == "" {
			return allTaken(soFar) // another pod was faster
		}
	case idle && free == "":
		return allTaken(soFar)
	case idle:
		r.want = &job{subject, free, driver}
		notify(r.trigger)
	}
	if known {
		return r.last.outcome(soFar)
	}
	return check.Outcome{Kind: check.Pending, NotReady: &readiness.NotReady{
		Reason:  ReasonRunning,
		Message: fmt.Sprintf("a pod that requests a GPU has not finished yet (%s/%s)", r.Namespace, r.podName()),
		Action:  "wait for it",
	}}
}

// allTaken returns the outcome where no device is free for a pod.
func allTaken(soFar check.Outcome) check.Outcome {
	soFar.Notes = append(soFar.Notes, unprovenNote(newUnproven(ReasonAllTaken, errors.New("every device is allocated to others; driver, device plugin and kubelet report the same devices"),
		"nothing: a node that is busy is not broken")))
	soFar.Retry = true
	return soFar
}

// outcome returns that of the plugin's layer after a run that did not pass.
func (x result) outcome(soFar check.Outcome) check.Outcome {
	if bad, ok := errors.AsType[*refused](x.err); ok {
		return check.Fail(bad.Reason, bad.Message, bad.Action)
	}
	soFar.Notes = append(soFar.Notes, unprovenNote(x.err))
	soFar.Retry = true
	return soFar
}
