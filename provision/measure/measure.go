// Package measure requests GPUs repeatedly and records when each step was reached.
package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/provision/cluster"
	"github.com/gpuready/gpuready/provision/observe"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

// Options configure a run.
type Options struct {
	Samples       int                 // measured samples
	WarmUps       int                 // unmeasured warm-up samples, taken first
	Timeout       time.Duration       // of one sample, and of its preparation
	Resource      corev1.ResourceName // whose nodes and pods are measured: nvidia.com/gpu
	Selectors     step.Selectors      // of the pods of the GPU stack, whose steps are measured
	Workload      Workload            // the pods that request GPUs
	RestoreWithin time.Duration       // for each step of the end of a run; 0: two minutes
	// Validated makes a sample last until its nodes are validated, where a validator runs.
	Validated bool
}

// Scenario is a way to request GPUs, such as new nodes or a driver that is installed again.
type Scenario interface {
	// Prepare brings the cluster into the state from which GPUs are requested.
	Prepare(ctx context.Context, s *Session) error
	// Request requests GPUs. The sample begins with its first request.
	Request(ctx context.Context, s *Session) error
	// Nodes returns the nodes that are being measured so far.
	Nodes(s *Session) []string
	// Finish undoes Request, so that the next sample can begin.
	Finish(ctx context.Context, s *Session, sample *report.Sample) error
	// Restore restores the state of the cluster before the run, whatever happened.
	Restore(ctx context.Context, s *Session) error
	// Reboots reports whether nodes come back with another boot ID.
	Reboots() bool
}

// Session is a run in progress. It belongs to one goroutine.
type Session struct {
	Client   *cluster.Client
	Observer *observe.Observer
	Clock    observe.Clock
	Options  Options
	Log      *slog.Logger
	// Run names the run, also in the label of its pods.
	Run string

	sample      int // number of the current sample
	tracker     *step.Tracker
	readLog     func(*corev1.Pod) // reads a workload's log, in a goroutine that ends with the sample
	results     chan step.Change  // steps found in logs
	logged      map[string]bool   // steps that were logged, as "node/step"
	requestedAt time.Duration     // when the current sample's GPUs were requested, by Clock.Now
}

// restoreWithin bounds each of the two steps at the end of a run, interrupted or not:
// Test.Restore, and the removal of the workloads.
const restoreWithin = 2 * time.Minute

// Run takes all samples and restores the cluster. After a failure the report holds the samples
// until then, and the reason.
func Run(ctx context.Context, s *Session, scenario Scenario, rep *report.Report) (err error) {
	observeCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, observeCtx := errgroup.WithContext(observeCtx)
	group.Go(func() error { return s.Observer.Run(observeCtx) })
	jumps := observe.NewJumpDetector(s.Clock)
	began := s.Clock.Now()
	defer func() {
		s.recordSummary(rep, jumps, s.Clock.Now()-began)
		stop()
		err = errors.Join(err, group.Wait())
	}()
	if err := s.waitListed(ctx, observeCtx); err != nil {
		return err
	}
	s.recordCluster(rep) // nodes may be gone later
	defer func() {
		failed := errors.Join(s.retryUndo(ctx, func(ctx context.Context) error { return scenario.Restore(ctx, s) }), s.retryUndo(ctx, s.removeWorkloads))
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("restore the cluster: %w; gpu-provision cleanup tries again", failed))
		}
	}()
	first := len(rep.Samples) + 1
	for i := range s.Options.WarmUps + s.Options.Samples {
		jumps.Check()
		s.sample = first + i
		sample, err := s.takeSample(ctx, scenario, jumps)
		sample.WarmUp = i < s.Options.WarmUps
		rep.Samples = append(rep.Samples, sample)
		s.recordCluster(rep) // before finishSample removes the new node
		if err == nil {
			err = s.finishSample(ctx, scenario, &rep.Samples[len(rep.Samples)-1])
		}
		if err != nil {
			rep.Ended = sanitizeLine(err.Error())
			return err
		}
	}
	return nil
}

// retryUndo calls undo every second until it succeeds or its time is up, even if ctx has ended.
func (s *Session) retryUndo(ctx context.Context, undo func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(s.Options.RestoreWithin, restoreWithin))
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := undo(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		for isWaiting := true; isWaiting; {
			select {
			case <-s.Observer.Changes(): // Observer requires that they are read
			case <-tick.C:
				isWaiting = false
			case <-ctx.Done():
				return err
			}
		}
	}
}

// waitListed waits until the Observer has listed the cluster once. observeCtx ends when the
// Observer fails.
func (s *Session) waitListed(ctx, observeCtx context.Context) error {
	limit := time.NewTimer(s.Options.Timeout)
	defer limit.Stop()
	for {
		select {
		case <-s.Observer.Ready():
			return nil
		case <-s.Observer.Changes():
		case <-observeCtx.Done():
			return errors.New("the cluster cannot be watched")
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("the cluster was not listed within %v", s.Options.Timeout)
		}
	}
}

// takeSample prepares and takes one sample. It does not call Finish; Run does. An error ends the
// run; jumps of the clock are recorded in jumps.
func (s *Session) takeSample(ctx context.Context, scenario Scenario, jumps *observe.JumpDetector) (report.Sample, error) {
	sample := report.Sample{Number: s.sample, Timelines: []step.Timeline{}}
	began := s.Clock.Now()
	s.resetTracker(false) // for Prepare, which waits for states of the cluster
	if err := s.prepareSample(ctx, scenario); err != nil {
		sample.Began, sample.Outcome, sample.Reason = s.Clock.Wall(), report.Failed, sanitizeLine("the preparation failed: "+err.Error())
		if ctx.Err() != nil {
			sample.Outcome, sample.Reason = report.Interrupted, "interrupted during the preparation"
		}
		return sample, fmt.Errorf("prepare sample %d: %w", s.sample, err)
	}
	sample.PrepareSeconds = toSeconds(s.Clock.Now() - began)
	s.resetTracker(scenario.Reboots()) // for the sample, without what was observed during Prepare
	s.tracker.Begin()
	stopLogs := s.readLogs(ctx)

	sample.Began, s.requestedAt = s.Clock.Wall(), s.Clock.Now()
	s.Log.Info("asked for GPUs", "sample", s.sample)
	err := scenario.Request(ctx, s)
	if err == nil {
		err = s.waitComplete(ctx, jumps, scenario)
	}
	stopLogs()
	s.recordOutcome(&sample, scenario, err)
	if ctx.Err() != nil {
		return sample, fmt.Errorf("interrupted in sample %d", s.sample)
	}
	return sample, nil
}

// prepareSample calls Prepare within the timeout.
func (s *Session) prepareSample(ctx context.Context, scenario Scenario) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.Options.Timeout, fmt.Errorf("not done within %v (--timeout)", s.Options.Timeout))
	defer cancel()
	return scenario.Prepare(limited, s)
}

// finishSample calls Finish within the timeout.
func (s *Session) finishSample(ctx context.Context, scenario Scenario, sample *report.Sample) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.Options.Timeout, fmt.Errorf("not done within %v (--timeout)", s.Options.Timeout))
	defer cancel()
	if err := scenario.Finish(limited, s, sample); err != nil {
		return fmt.Errorf("after sample %d: %w", s.sample, err)
	}
	return nil
}

// resetTracker starts a new Tracker that knows the existing objects. reboots: nodes reach their
// steps only after another boot.
func (s *Session) resetTracker(reboots bool) {
	s.tracker = &step.Tracker{Resource: s.Options.Resource, Selectors: s.Options.Selectors, Sample: s.sampleLabel(), Reboot: reboots}
	s.logged = map[string]bool{}
	for drained := false; !drained; { // drop pending changes: the snapshot includes them
		select {
		case <-s.Observer.Changes():
		default:
			drained = true
		}
	}
	for _, c := range s.Observer.Snapshot() {
		s.tracker.Observe(c)
	}
}

// sampleLabel returns the value of step.WorkloadLabel for the current sample's pods.
func (s *Session) sampleLabel() string { return fmt.Sprintf("%s-%d", s.Run, s.sample) }

// errTimedOut is returned for a sample that exceeds the timeout.
var errTimedOut = errors.New("timed out")

// waitComplete observes changes until the sample is complete.
func (s *Session) waitComplete(ctx context.Context, jumps *observe.JumpDetector, scenario Scenario) error {
	limit := time.NewTimer(s.Options.Timeout)
	defer limit.Stop()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !s.isComplete(scenario) {
		if why := s.tracker.Failure(); why != "" {
			return errors.New(why)
		}
		select {
		case c := <-s.Observer.Changes():
			s.observeChange(c)
			s.observePending() // so that the nodes are checked once for all of them
		case c := <-s.results:
			s.observeChange(c)
		case <-tick.C:
			jumps.Check()
		case <-limit.C:
			return errTimedOut
		case <-ctx.Done():
			return ctx.Err()
		}
		s.logSteps(scenario)
	}
	return nil
}

// observePending observes all changes that are pending.
func (s *Session) observePending() {
	for {
		select {
		case c := <-s.Observer.Changes():
			s.observeChange(c)
		default:
			return
		}
	}
}

// observeChange tracks a change, and starts to read the log of a workload once it runs.
func (s *Session) observeChange(c step.Change) {
	s.tracker.Observe(c)
	if c.Pod != nil && !c.Gone && s.readLog != nil {
		s.readLog(c.Pod)
	}
}

// isComplete reports whether every node of the sample offers the resource, and is validated if that
// is required and a validator runs on it, and all workloads have printed their result.
func (s *Session) isComplete(scenario Scenario) bool {
	nodes := scenario.Nodes(s)
	if len(nodes) == 0 || !s.Observer.IsSynced() {
		return false
	}
	for _, n := range nodes {
		if !s.tracker.HasReached(n, step.Allocatable) || s.Options.Validated && s.tracker.Validates(n) && !s.tracker.HasReached(n, step.Validated) {
			return false
		}
	}
	return s.tracker.Results() >= s.Options.Workload.countResults(nodes)
}

// logSteps logs the steps that were reached since the last call.
func (s *Session) logSteps(scenario Scenario) {
	for _, n := range scenario.Nodes(s) {
		for _, r := range s.tracker.Timeline(n, s.requestedAt).Steps {
			key := n + "/" + string(r.Step)
			if s.logged[key] || r.Before || r.Step == step.Asked {
				continue
			}
			s.logged[key] = true
			s.Log.Info(string(r.Step), "sample", s.sample, "node", n, "after", fmt.Sprintf("%.1fs", r.At))
		}
	}
}

// waitFor waits until a condition of the snapshot is true. It evaluates the condition after each
// change. The condition also returns what is missing; what names the wait in an error.
func (s *Session) waitFor(ctx context.Context, what string, condition func([]step.Change) (bool, string)) error {
	for {
		done, why := condition(s.Observer.Snapshot())
		if done {
			return nil
		}
		select {
		case c := <-s.Observer.Changes():
			s.tracker.Observe(c)
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w", what, why, context.Cause(ctx))
		}
	}
}

// gpuNodes returns the names of the nodes that offer the resource, sorted.
func (s *Session) gpuNodes() []string {
	var names []string
	for _, c := range s.Observer.Snapshot() {
		if c.Node == nil {
			continue
		}
		if q := c.Node.Status.Allocatable[s.Options.Resource]; q.Sign() > 0 {
			names = append(names, c.Node.Name)
		}
	}
	slices.Sort(names)
	return names
}
