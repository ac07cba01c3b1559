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

// Runner runs the pod beside the checks: they ask for what is known and are told
// when there is more. One pod at a time; what was proven holds for the same
// driver, GPUs and resources until Forget.
type Runner struct {
	Config
	log     *slog.Logger
	runs    *prometheus.CounterVec
	seconds prometheus.Gauge
	wake    chan struct{} // of Run
	news    chan struct{} // of those who ask

	mu      sync.Mutex
	want    *job
	running *job
	cut     context.CancelFunc // of what is running
	last    result             // of about
	unread  bool
}

// job is what is to be proven.
type job struct {
	about    string // all that the result depends on
	resource string
	driver   check.Driver
}

// result is what came out; the zero value: nothing yet.
type result struct {
	about string
	took  time.Duration
	err   error
}

// New returns a Runner that runs nothing until Run.
func New(c Config, log *slog.Logger, reg prometheus.Registerer) *Runner {
	c.role = DevicePlugin
	r := &Runner{Config: c, log: log, wake: make(chan struct{}, 1), news: make(chan struct{}, 1),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_workload_runs_total",
			Help: "Pods that were run to prove that a pod can use a GPU, by outcome; unknown: the API server, or others on the node, were in the way."}, []string{"outcome"}),
		seconds: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_workload_seconds",
			Help: "From the request for the last such pod to its result."}),
	}
	reg.MustRegister(r.runs, r.seconds)
	return r
}

// News has something whenever a pod came to an end.
func (r *Runner) News() <-chan struct{} { return r.news }

// Run removes what an earlier process left unfinished, and runs pods until ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	r.tidy(ctx, r.log)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
		}
		if err := r.next(ctx); err != nil {
			return err
		}
		wakeUp(r.news)
	}
}

// next runs the pod that is wanted. The result of one that was forgotten
// meanwhile counts no more.
func (r *Runner) next(ctx context.Context) error {
	run, cut := context.WithCancel(ctx)
	defer cut()
	r.mu.Lock()
	j := r.want
	r.want, r.running, r.cut = nil, j, cut
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
		r.count(took, err)
		r.last, r.unread = result{j.about, took, err}, true
	}
	return nil
}

func (r *Runner) count(took time.Duration, err error) {
	r.runs.WithLabelValues(outcome(err)).Inc()
	r.seconds.Set(took.Seconds())
}

// outcome is what metrics call the end of a pod.
func outcome(err error) string {
	if err == nil {
		return "passed"
	}
	if _, is := errors.AsType[*refused](err); is {
		return "failed"
	}
	return "unknown"
}

// Forget makes what is known, and what is being found out, count no more: the
// plugin was away since.
func (r *Runner) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.unread, r.want = result{}, false, nil
	if r.running != nil {
		r.cut()
	}
}

// Prove adds to accounts, the outcome of the plugin's layer so far, what became
// of a pod. free is the resource of which it can request one, "" where all
// devices are held by others' pods.
func (r *Runner) Prove(driver check.Driver, accounts check.Outcome, free string) check.Outcome {
	about := fmt.Sprint(driver.Subject(), slices.Sorted(maps.Keys(accounts.Proof.Resources)))
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.last.about == about
	idle := r.running == nil && r.want == nil
	switch {
	case known && r.last.err == nil:
		accounts.Proof.Summary += fmt.Sprintf("; vectorAdd passed in a pod, %.1f s from request to result", r.last.took.Seconds())
		return accounts
	case idle && known && r.unread:
		r.unread = false
		if bad, is := errors.AsType[*refused](r.last.err); is && bad.Reason == ReasonUnschedulable && free == "" {
			return taken(accounts) // somebody was faster
		}
	case idle && free == "":
		return taken(accounts)
	case idle:
		r.want = &job{about, free, driver}
		wakeUp(r.wake)
	}
	if known {
		return r.last.outcome(accounts)
	}
	return check.Outcome{Kind: check.Pending, Refusal: &readiness.Refusal{
		Reason:  ReasonRunning,
		Message: fmt.Sprintf("a pod that requests a GPU is on its way (%s/%s)", r.Namespace, r.name()),
		Action:  "wait for it",
	}}
}

// taken is the outcome where there is nothing that a pod could be given.
func taken(accounts check.Outcome) check.Outcome {
	accounts.Notes = append(accounts.Notes, note(beside(ReasonAllTaken, errors.New("every device is allocated to others; the accounts of driver, device plugin and kubelet agree"),
		"nothing: a node that is busy is not broken")))
	accounts.Again = true
	return accounts
}

// outcome is that of the plugin's layer after a run that did not pass.
func (x result) outcome(accounts check.Outcome) check.Outcome {
	if bad, is := errors.AsType[*refused](x.err); is {
		return check.Fail(bad.Reason, bad.Message, bad.Action)
	}
	accounts.Notes = append(accounts.Notes, note(x.err))
	accounts.Again = true
	return accounts
}
