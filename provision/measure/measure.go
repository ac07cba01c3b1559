// Package measure requests GPUs repeatedly and records when each step was reached.
package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
	Samples       int           // that count
	Drop          int           // warm-up samples before them, which do not count
	Timeout       time.Duration // of one sample, and of its preparation
	Resource      corev1.ResourceName
	Selectors     step.Selectors
	Workload      Workload
	RestoreWithin time.Duration // default: two minutes
	// Validated makes a sample last until its nodes are validated, where a validator runs.
	Validated bool
}

// Test is a way to request GPUs.
type Test interface {
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

	sample  int // the current one's number
	tracker *step.Tracker
	readLog func(*corev1.Pod) // reads a workload's log, in a goroutine that ends with the sample
	results chan step.Change  // of logs
	logged  map[string]bool   // steps, as "node/step"
	asked   time.Duration
}

// restoreWithin bounds each of the two steps at the end of a run, interrupted or not:
// Test.Restore, and the removal of the workloads.
const restoreWithin = 2 * time.Minute

// Run measures all samples. After a failure the report holds the samples until then, and
// the reason.
func Run(ctx context.Context, s *Session, test Test, rep *report.Report) (err error) {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	observer, watching := errgroup.WithContext(watching)
	observer.Go(func() error { return s.Observer.Run(watching) })
	watch := observe.NewJumpDetector(s.Clock)
	began := s.Clock.Now()
	defer func() {
		s.summarize(rep, watch, s.Clock.Now()-began)
		stop()
		err = errors.Join(err, observer.Wait())
	}()
	if err := s.waitListed(ctx, watching); err != nil {
		return err
	}
	s.describe(rep) // nodes may be gone later
	defer func() {
		failed := errors.Join(s.restore(ctx, func(ctx context.Context) error { return test.Restore(ctx, s) }), s.restore(ctx, s.removeWorkloads))
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("restore the cluster: %w; gpu-provision cleanup tries again", failed))
		}
	}()
	first := len(rep.Samples) + 1
	for i := range s.Options.Drop + s.Options.Samples {
		watch.Check()
		s.sample = first + i
		sample, err := s.measure(ctx, test, watch)
		sample.WarmUp = i < s.Options.Drop
		rep.Samples = append(rep.Samples, sample)
		s.describe(rep) // before the node that came is removed
		if err == nil {
			err = s.finish(ctx, test, &rep.Samples[len(rep.Samples)-1])
		}
		if err != nil {
			rep.Ended = bounded(err.Error())
			return err
		}
	}
	return nil
}

// restore retries undo until it succeeds or its time is up.
func (s *Session) restore(ctx context.Context, undo func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(s.Options.RestoreWithin, restoreWithin))
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := undo(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		for waiting := true; waiting; {
			select {
			case <-s.Observer.Changes(): // Observer requires that they are read
			case <-tick.C:
				waiting = false
			case <-ctx.Done():
				return err
			}
		}
	}
}

// waitListed waits until everything has been listed once.
func (s *Session) waitListed(ctx, watching context.Context) error {
	limit := time.NewTimer(s.Options.Timeout)
	defer limit.Stop()
	for {
		select {
		case <-s.Observer.Ready():
			return nil
		case <-s.Observer.Changes():
		case <-watching.Done():
			return errors.New("the cluster cannot be watched")
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("the cluster was not listed within %v", s.Options.Timeout)
		}
	}
}

// measure takes one sample, without what Finish takes back. Its error ends the run.
func (s *Session) measure(ctx context.Context, test Test, watch *observe.JumpDetector) (report.Sample, error) {
	sample := report.Sample{Number: s.sample, Timelines: []step.Timeline{}}
	began := s.Clock.Now()
	s.track(false)
	if err := s.prepare(ctx, test); err != nil {
		sample.Began, sample.Outcome, sample.Reason = s.Clock.Wall(), report.Failed, bounded("the preparation failed: "+err.Error())
		if ctx.Err() != nil {
			sample.Outcome, sample.Reason = report.Interrupted, "interrupted during the preparation"
		}
		return sample, fmt.Errorf("prepare sample %d: %w", s.sample, err)
	}
	sample.PrepareSeconds = round(s.Clock.Now() - began)
	s.track(test.Reboots())
	s.tracker.Begin()
	stopLogs := s.readLogs(ctx)

	sample.Began, s.asked = s.Clock.Wall(), s.Clock.Now()
	s.Log.Info("asked for GPUs", "sample", s.sample)
	err := test.Request(ctx, s)
	if err == nil {
		err = s.waitComplete(ctx, watch, test)
	}
	stopLogs()
	s.conclude(&sample, test, err)
	if ctx.Err() != nil {
		return sample, fmt.Errorf("interrupted in sample %d", s.sample)
	}
	return sample, nil
}

func (s *Session) prepare(ctx context.Context, test Test) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.Options.Timeout, fmt.Errorf("not done within %v (--timeout)", s.Options.Timeout))
	defer cancel()
	return test.Prepare(limited, s)
}

func (s *Session) finish(ctx context.Context, test Test, sample *report.Sample) error {
	limited, cancel := context.WithTimeoutCause(ctx, s.Options.Timeout, fmt.Errorf("not done within %v (--timeout)", s.Options.Timeout))
	defer cancel()
	if err := test.Finish(limited, s, sample); err != nil {
		return fmt.Errorf("after sample %d: %w", s.sample, err)
	}
	return nil
}

// track starts a new Tracker with the existing objects.
func (s *Session) track(reboots bool) {
	s.tracker = &step.Tracker{Resource: s.Options.Resource, Selectors: s.Options.Selectors, Sample: s.label(), Reboot: reboots}
	s.logged = map[string]bool{}
	for drained := false; !drained; { // the snapshot includes these changes
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

// label returns the value of step.WorkloadLabel for the current sample's pods.
func (s *Session) label() string { return fmt.Sprintf("%s-%d", s.Run, s.sample) }

// errTimedOut is returned for a sample that exceeds the timeout.
var errTimedOut = errors.New("timed out")

// waitComplete observes changes until the sample is complete.
func (s *Session) waitComplete(ctx context.Context, watch *observe.JumpDetector, test Test) error {
	limit := time.NewTimer(s.Options.Timeout)
	defer limit.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for !s.complete(test) {
		if why := s.tracker.Failure(); why != "" {
			return errors.New(why)
		}
		select {
		case c := <-s.Observer.Changes():
			s.observe(c)
			s.observePending() // so that the nodes are checked once for all of them
		case c := <-s.results:
			s.observe(c)
		case <-look.C:
			watch.Check()
		case <-limit.C:
			return errTimedOut
		case <-ctx.Done():
			return ctx.Err()
		}
		s.logSteps(test)
	}
	return nil
}

// observePending observes all changes that are pending.
func (s *Session) observePending() {
	for {
		select {
		case c := <-s.Observer.Changes():
			s.observe(c)
		default:
			return
		}
	}
}

// observe tracks a change, and starts to read the log of a workload once it runs.
func (s *Session) observe(c step.Change) {
	s.tracker.Observe(c)
	if c.Pod != nil && !c.Gone && s.readLog != nil {
		s.readLog(c.Pod)
	}
}

// complete reports whether the sample's nodes have reached all steps.
func (s *Session) complete(test Test) bool {
	nodes := test.Nodes(s)
	if len(nodes) == 0 || !s.Observer.Synced() {
		return false
	}
	for _, n := range nodes {
		if !s.tracker.HasReached(n, step.Allocatable) || s.Options.Validated && s.tracker.Validates(n) && !s.tracker.HasReached(n, step.Validated) {
			return false
		}
	}
	return s.tracker.Results() >= s.Options.Workload.count(nodes)
}

// logSteps logs the steps that were reached since the last call.
func (s *Session) logSteps(test Test) {
	for _, n := range test.Nodes(s) {
		for _, r := range s.tracker.Timeline(n, s.asked).Steps {
			key := n + "/" + string(r.Step)
			if s.logged[key] || r.Before || r.Step == step.Asked {
				continue
			}
			s.logged[key] = true
			s.Log.Info(string(r.Step), "sample", s.sample, "node", n, "after", fmt.Sprintf("%.1fs", r.At))
		}
	}
}

// conclude records the outcome and timelines of the sample.
func (s *Session) conclude(sample *report.Sample, test Test, err error) {
	nodes := test.Nodes(s)
	for _, n := range nodes {
		sample.Timelines = append(sample.Timelines, s.tracker.Timeline(n, s.asked))
	}
	for _, g := range s.Observer.Gaps() {
		if g.To >= s.asked {
			sample.Gaps = append(sample.Gaps, report.Gap{From: max(round(g.From-s.asked), 0), To: round(g.To - s.asked)})
		}
	}
	switch {
	case err == nil:
		sample.Outcome = report.Complete
	case errors.Is(err, context.Canceled):
		sample.Outcome, sample.Reason = report.Interrupted, "interrupted"
	case errors.Is(err, errTimedOut):
		sample.Outcome, sample.Reason = report.TimedOut, s.whereStuck(nodes)
	default:
		sample.Outcome, sample.Reason = report.Failed, bounded(err.Error())
	}
	if sample.Outcome == report.Complete {
		s.Log.Info("complete", "sample", s.sample, "after", fmt.Sprintf("%.1fs", sample.Total()))
	} else {
		s.Log.Warn(string(sample.Outcome), "sample", s.sample, "reason", sample.Reason)
	}
}

// whereStuck describes the last step of each node, and what its pods wait for.
func (s *Session) whereStuck(nodes []string) string {
	if len(nodes) == 0 {
		text := fmt.Sprintf("no node came within %v", s.Options.Timeout)
		if why := s.tracker.Waiting(""); why != "" {
			text += ": " + why
		}
		return bounded(text)
	}
	var all []string
	for _, n := range nodes {
		line := s.tracker.Timeline(n, s.asked)
		last, _ := step.Find(line.Last())
		text := fmt.Sprintf("node %s is not done within %v; its last step is %q", n, s.Options.Timeout, last.Title)
		if why := s.tracker.Waiting(n); why != "" {
			text += ": " + why
		}
		all = append(all, text)
	}
	return bounded(strings.Join(all, "; "))
}

// summarize records the parts of the report that all samples share.
func (s *Session) summarize(rep *report.Report, watch *observe.JumpDetector, lasted time.Duration) {
	watch.Check()
	for _, j := range watch.Jumps() {
		rep.Jumps = append(rep.Jumps, report.Jump{At: s.Clock.Wall().Add(j.At - s.Clock.Now()), By: round(j.By)})
	}
	requests := s.Observer.Requests()
	rep.Requests += requests
	if lasted > 0 {
		rep.RequestsPerSecond = float64(int(100*float64(requests)/lasted.Seconds())) / 100
	}
	if s.tracker == nil {
		return
	}
	if images := s.tracker.Images(); len(images) > 0 {
		rep.Images = images
	}
	s.describe(rep)
}

// describe records the measured cluster.
func (s *Session) describe(rep *report.Report) {
	measured := map[string]bool{}
	for _, sample := range rep.Samples {
		for _, t := range sample.Timelines {
			measured[t.Node] = true
		}
	}
	nodes := 0
	for _, c := range s.Observer.Snapshot() {
		if c.Node == nil {
			continue
		}
		nodes++
		rep.Cluster.Nodes = max(rep.Cluster.Nodes, nodes)
		if !measured[c.Node.Name] && rep.Cluster.Kubelet != "" {
			continue
		}
		info := c.Node.Status.NodeInfo
		rep.Cluster.Kubelet, rep.Cluster.Runtime = bounded(info.KubeletVersion), bounded(info.ContainerRuntimeVersion)
		rep.Cluster.System, rep.Cluster.Kernel = bounded(info.OSImage), bounded(info.KernelVersion)
		if rep.Notice == "" && strings.HasPrefix(c.Node.Labels["nvidia.com/gpu.product"], "SIMULATED") {
			rep.Notice = "SIMULATED: the nodes have no GPU; their driver is gpuready's simulator"
		}
	}
}

// wait waits for a condition of the snapshot, which it evaluates after each change.
func (s *Session) wait(ctx context.Context, what string, is func([]step.Change) (bool, string)) error {
	for {
		done, why := is(s.Observer.Snapshot())
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

func round(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}

// bounded sanitizes and truncates text of other origin for one line of a report.
func bounded(text string) string {
	const most = 1024
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
