package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// A driver's pod that did not pass is run again after driverPodFirstRetry, then after twice as
// long each time, up to driverPodLastRetry.
const (
	driverPodFirstRetry = 5 * time.Second
	driverPodLastRetry  = 5 * time.Minute
)

// DriverPod runs the driver's pod once layer cuda is proven, for people to read. No layer
// waits for it or is refused because of it. Its methods may be called concurrently.
type DriverPod struct {
	Config
	log     *slog.Logger
	runs    *prometheus.CounterVec
	trigger chan struct{} // received by Run
	updates chan struct{} // received by the caller of Result
	wait    time.Duration // before the first retry

	mu      sync.Mutex
	subject string // the Subject shown, or to be shown; "" none
	driver  check.Driver
	cancel  context.CancelFunc // ends the pod of subject; nil: none was started
	result  *check.Outcome
}

// NewDriverPod returns a DriverPod that runs nothing until Run.
func NewDriverPod(c Config, log *slog.Logger, reg prometheus.Registerer) *DriverPod {
	c.role = Driver
	w := &DriverPod{Config: c, log: log, trigger: make(chan struct{}, 1), updates: make(chan struct{}, 1), wait: driverPodFirstRetry,
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_driver_validation_runs_total",
			Help: "Pods nvidia-driver-validation that were run, by outcome; unknown: the API server, or others on the node, were in the way."}, []string{"outcome"}),
	}
	reg.MustRegister(w.runs)
	return w
}

// Proven reports that layer cuda is proven on this driver. It does nothing if the same
// Subject is shown already, or being shown.
func (w *DriverPod) Proven(driver check.Driver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	subject := driver.Subject()
	if subject == w.subject {
		return
	}
	w.reset()
	w.subject, w.driver = subject, driver
	notify(w.trigger)
}

// Withdraw reports that layer cuda is no longer proven. The result of a running pod is
// dropped, and the next proof is shown anew.
func (w *DriverPod) Withdraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reset()
}

func (w *DriverPod) reset() {
	if w.cancel != nil {
		w.cancel()
	}
	w.subject, w.cancel, w.result = "", nil, nil
}

// Result returns the last result of the pod: passed, failed, or pending if other pods kept it from
// running. nil means that it has not run, or is running.
func (w *DriverPod) Result() *check.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

// Updates returns a channel that receives when there is another result.
func (w *DriverPod) Updates() <-chan struct{} { return w.updates }

// Run removes the unfinished pod of an earlier process, and runs pods until ctx ends.
func (w *DriverPod) Run(ctx context.Context) error {
	w.removeLeftover(ctx, w.log)
	var last string
	var retry <-chan time.Time
	delay := w.wait
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.trigger:
		case <-retry:
		}
		retry = nil
		subject, passed := w.runPod(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if subject != last {
			last, delay = subject, w.wait
		}
		if subject != "" && !passed {
			retry = time.After(delay)
			delay = min(2*delay, driverPodLastRetry)
		}
	}
}

// runPod runs the pod that is wanted now, if any, and stores the result if it is still
// wanted then.
func (w *DriverPod) runPod(ctx context.Context) (subject string, passed bool) {
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	subject, driver := w.subject, w.driver
	if subject != "" {
		w.cancel = cancel
	}
	w.mu.Unlock()
	if subject == "" {
		return "", false
	}
	took, err := w.proveUnused(run, driver)
	w.mu.Lock()
	defer w.mu.Unlock()
	if run.Err() != nil {
		return subject, false // withdrawn, or another is wanted, which triggers Run again
	}
	w.cancel = nil
	w.runs.WithLabelValues(outcome(err)).Inc()
	w.setResult(took, err)
	notify(w.updates)
	return subject, err == nil
}

// proveUnused runs the pod, unless others use GPUs: it gets all of them.
func (w *DriverPod) proveUnused(ctx context.Context, driver check.Driver) (took time.Duration, err error) {
	if w.InUse != nil {
		if who := w.InUse(ctx, driver); who != "" {
			return 0, newUnproven(ReasonInUse, fmt.Errorf("GPUs are in use: %s", who), "nothing: it is run once they are free")
		}
	}
	return w.prove(ctx, job{driver: driver})
}

// setResult stores a result and logs it if it differs from the one before.
func (w *DriverPod) setResult(took time.Duration, err error) {
	before := w.result
	now := check.Outcome{Kind: check.Passed}
	log := w.log.With("pod", w.Namespace+"/"+w.podName())
	if bad, ok := errors.AsType[*refused](err); ok {
		now = check.Outcome{Kind: check.Failed, NotReady: &readiness.NotReady{Reason: bad.Reason, Message: bad.Message, Action: bad.Action}}
	} else if err != nil {
		u := asUnproven(err)
		now = check.Outcome{Kind: check.Pending, NotReady: &readiness.NotReady{Reason: u.reason, Message: err.Error(), Action: u.action}}
	}
	w.result = &now
	switch {
	case now.Kind == check.Passed:
		log.Info("vectorAdd passed on every GPU in a pod", "duration", took.Round(time.Millisecond))
	case before == nil || before.NotReady == nil || before.NotReady.Reason != now.NotReady.Reason:
		log.Warn("the driver's validation pod did not pass; no layer depends on it", "reason", now.NotReady.Reason, "message", now.NotReady.Message, "action", now.NotReady.Action)
	}
}

// notify sends to a channel of capacity one, unless it is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
