package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/daemon"
)

// The delays before the next check without an event: some causes have no event.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// standin proves one component and leaves its file.
type standin struct {
	*componentFlags
	layerOf
	node     check.Node
	pipeline check.Pipeline
	proofs   *daemon.ProofWriter
	news     <-chan struct{} // receives when the pod has ended; nil: none is run
	out      *lines
}

// run checks until the layer is proven or, without --with-wait, once.
func (s *standin) run(ctx context.Context) error {
	if err := s.proofs.Remove(readiness.Layer(s.name)); err != nil {
		return err // an earlier proof does not count
	}
	group, watching := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(watching)
	changed := make(chan struct{}, 1)
	group.Go(func() error {
		return unlessCanceled(daemon.Watch(watching, s.node, func() {
			select {
			case changed <- struct{}{}:
			default: // a change is queued already
			}
		}))
	})
	err := s.loop(ctx, changed)
	stop()
	return errors.Join(err, ignoreDeadline(group.Wait()))
}

func ignoreDeadline(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // loop has returned the error
	}
	return err
}

func (s *standin) loop(ctx context.Context, changed <-chan struct{}) error {
	var last *check.Outcome
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		select {
		case <-changed: // changes before the check count no more
		default:
		}
		o := s.checkLayer(ctx)
		switch {
		case ctx.Err() != nil:
			return s.endError(ctx, last)
		case o.Kind == check.Passed:
			return s.writeReady(o)
		case o.Kind == check.Absent:
			s.out.print("%s: nothing to prove: %s", s.name, o.NotReady.Message)
			return nil
		}
		last = &o
		if err := s.proofs.Write(readiness.Layer(s.name), o); err != nil {
			return err
		}
		if o.Kind != check.Pending && !s.wait {
			return s.failureError(o)
		}
		s.out.print("waiting for %s: %s: %s; %s", s.name, o.NotReady.Reason, o.NotReady.Message, o.NotReady.Action)
		select {
		case <-ctx.Done():
			return s.endError(ctx, last)
		case <-changed:
			delay = firstRetry
		case <-s.news:
		case <-time.After(delay):
		}
	}
}

// checkLayer runs the pipeline and returns the outcome for the component.
func (s *standin) checkLayer(ctx context.Context) check.Outcome {
	r := s.pipeline
	if s.layer == readiness.CUDA && !s.workload {
		r.Steps = nil // without a workload only the driver is to be proven
	}
	outcomes := r.Run(ctx, s.node, nil)
	o := outcomes[len(outcomes)-1]
	if s.layer == readiness.CUDA && !s.workload && o.Kind == check.Passed {
		o.Proof.Summary += "; nothing was computed (WITH_WORKLOAD=false)"
	}
	if o.Kind == check.NotRun {
		o = outcomes[0] // the cause
	}
	if o.Kind == check.Failed && o.NotReady.Reason == s.enough {
		return check.NewPass(readiness.Proof{HostRoot: s.node.Root.Dir(), Summary: "loaded; " + o.NotReady.Message})
	}
	return o
}

func (s *standin) writeReady(o check.Outcome) error {
	if err := s.proofs.Write(readiness.Layer(s.name), o); err != nil {
		return err
	}
	s.out.print("%s is ready: %s%s", s.name, o.Proof.Summary, simulatedSuffix(o.Proof))
	return nil
}

func (s *standin) failureError(o check.Outcome) error {
	return program.WithExitCode(s.exitCode(o), fmt.Errorf("%s: %s: %s; %s", s.name, o.NotReady.Reason, o.NotReady.Message, o.NotReady.Action))
}

// endError returns the error for the end of ctx, by timeout or signal.
func (s *standin) endError(ctx context.Context, last *check.Outcome) error {
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return program.WithExitCode(program.Failed, fmt.Errorf("interrupted: %s is not proven", s.name))
	case last == nil:
		return program.WithExitCode(exitTimeout, fmt.Errorf("%s: %w, and nothing is known of it yet", s.name, context.Cause(ctx)))
	}
	return program.WithExitCode(s.exitCode(*last), fmt.Errorf("%s: %w: %s: %s; %s", s.name, context.Cause(ctx), last.NotReady.Reason, last.NotReady.Message, last.NotReady.Action))
}

func (s *standin) exitCode(o check.Outcome) int {
	if code, ok := layerCodes[o.Layer]; ok {
		return code
	}
	return layerCodes[s.layer]
}
