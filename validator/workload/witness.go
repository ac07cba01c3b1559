package workload

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// A pod of a driver that was proven and yet did not pass is tried again after
// witnessRetry, then after twice as long each time.
const (
	witnessRetry = 5 * time.Second
	witnessLast  = 5 * time.Minute
)

// Witness runs the driver's pod once layer cuda is proven, for people to read: no layer
// waits for it or is refused for it. Its methods may be called concurrently.
type Witness struct {
	Config
	log  *slog.Logger
	runs *prometheus.CounterVec
	wake chan struct{} // of Run
	news chan struct{} // of who asks for the result
	wait time.Duration // before the first retry

	mu     sync.Mutex
	about  string // what is, or is to be, shown; "" nothing
	driver check.Driver
	cut    context.CancelFunc // of the pod of about; nil: none has begun
	result *check.Outcome
}

// NewWitness returns a Witness that runs nothing until Run.
func NewWitness(c Config, log *slog.Logger, reg prometheus.Registerer) *Witness {
	c.role = Driver
	w := &Witness{Config: c, log: log, wake: make(chan struct{}, 1), news: make(chan struct{}, 1), wait: witnessRetry,
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_driver_validation_runs_total",
			Help: "Pods nvidia-driver-validation that were run, by outcome; unknown: the API server, or others on the node, were in the way."}, []string{"outcome"}),
	}
	reg.MustRegister(w.runs)
	return w
}

// Proven says that layer cuda is proven on this driver. What is shown already, or on
// its way, is not shown again.
func (w *Witness) Proven(driver check.Driver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	about := driver.Subject()
	if about == w.about {
		return
	}
	w.drop()
	w.about, w.driver = about, driver
	wakeUp(w.wake)
}

// Withdraw says that it is not proven any more: a pod on its way says nothing, and what
// is proven next is shown anew.
func (w *Witness) Withdraw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop()
}

func (w *Witness) drop() {
	if w.cut != nil {
		w.cut()
	}
	w.about, w.cut, w.result = "", nil, nil
}

// Result is what came of the pod last: passed, failed, or pending where others were in
// the way; nil: it has not run, or is on its way.
func (w *Witness) Result() *check.Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result
}

// News has something when there is another result.
func (w *Witness) News() <-chan struct{} { return w.news }

// Run removes what an earlier process left unfinished, and runs pods until ctx ends.
func (w *Witness) Run(ctx context.Context) error {
	w.tidy(ctx, w.log)
	var last string
	var retry <-chan time.Time
	delay := w.wait
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		case <-retry:
		}
		retry = nil
		about, passed := w.show(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if about != last {
			last, delay = about, w.wait
		}
		if about != "" && !passed {
			retry = time.After(delay)
			delay = min(2*delay, witnessLast)
		}
	}
}

// show runs the pod of what is wanted now, if anything is, and keeps the result if that
// is still wanted then.
func (w *Witness) show(ctx context.Context) (about string, passed bool) {
	run, cut := context.WithCancel(ctx)
	defer cut()
	w.mu.Lock()
	about, driver := w.about, w.driver
	if about != "" {
		w.cut = cut
	}
	w.mu.Unlock()
	if about == "" {
		return "", false
	}
	took, err := w.prove(run, job{driver: driver})
	w.mu.Lock()
	defer w.mu.Unlock()
	if run.Err() != nil {
		return about, false // withdrawn, or another is wanted: that one wakes
	}
	w.cut = nil
	w.runs.WithLabelValues(outcome(err)).Inc()
	w.told(took, err)
	wakeUp(w.news)
	return about, err == nil
}

// told keeps a result, and logs it if it is another than before.
func (w *Witness) told(took time.Duration, err error) {
	before := w.result
	now := check.Outcome{Kind: check.Passed}
	log := w.log.With("pod", w.Namespace+"/"+w.name())
	if bad, is := errors.AsType[*refused](err); is {
		now = check.Outcome{Kind: check.Failed, Refusal: &readiness.Refusal{Reason: bad.Reason, Message: bad.Message, Action: bad.Action}}
	} else if err != nil {
		u := sorted(err)
		now = check.Outcome{Kind: check.Pending, Refusal: &readiness.Refusal{Reason: u.reason, Message: err.Error(), Action: u.action}}
	}
	w.result = &now
	switch {
	case now.Kind == check.Passed:
		log.Info("vectorAdd passed on every GPU in a pod", "duration", took.Round(time.Millisecond))
	case before == nil || before.Refusal == nil || before.Refusal.Reason != now.Refusal.Reason:
		log.Warn("the pod that shows that the driver works did not pass; no layer depends on it", "reason", now.Refusal.Reason, "message", now.Refusal.Message, "action", now.Refusal.Action)
	}
}

// wakeUp puts something into a channel of one, unless there is.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
