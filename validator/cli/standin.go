package cli

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

// Where nothing that was seen has changed it is looked again after these times: there
// are causes that no event tells of.
const (
	firstLook = time.Second
	lastLook  = 30 * time.Second
)

// standin proves one component and leaves its file.
type standin struct {
	*componentFlags
	layerOf
	node check.Node
	road check.Road
	dir  string
	news <-chan struct{} // of the pod; nil: none is run
	out  *lines
}

// run looks until the layer is proven or, without --with-wait, is not.
func (s *standin) run(ctx context.Context) error {
	if err := readiness.Clear(s.dir, readiness.Layer(s.name)); err != nil {
		return err // what an earlier time proved is proven anew
	}
	group, watching := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(watching)
	changed := make(chan struct{}, 1)
	group.Go(func() error {
		return unlessCanceled(daemon.Watch(watching, s.node, func() {
			select {
			case changed <- struct{}{}:
			default: // one is on its way already
			}
		}))
	})
	err := s.loop(ctx, changed)
	stop()
	return errors.Join(err, ended(group.Wait()))
}

func ended(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // of which loop has told
	}
	return err
}

func (s *standin) loop(ctx context.Context, changed <-chan struct{}) error {
	var last *check.Outcome
	for delay := firstLook; ; delay = min(2*delay, lastLook) {
		select {
		case <-changed: // what was seen before the first look is no news
		default:
		}
		o := s.look(ctx)
		switch {
		case ctx.Err() != nil:
			return s.over(ctx, last)
		case o.Kind == check.Passed:
			return s.proven(o)
		case o.Kind == check.Absent:
			s.out.print("%s: nothing to prove: %s", s.name, o.Refusal.Message)
			return nil
		}
		last = &o
		if err := s.refused(o); err != nil {
			return err
		}
		if o.Kind != check.Pending && !s.wait {
			return s.failed(o)
		}
		s.out.print("waiting for %s: %s: %s; %s", s.name, o.Refusal.Reason, o.Refusal.Message, o.Refusal.Action)
		select {
		case <-ctx.Done():
			return s.over(ctx, last)
		case <-changed:
			delay = firstLook
		case <-s.news:
		case <-time.After(delay):
		}
	}
}

// look is the outcome that counts for the component.
func (s *standin) look(ctx context.Context) check.Outcome {
	r := s.road
	if s.layer == readiness.CUDA && !s.workload {
		r.Steps = nil // nothing is to be run: the driver is all there is to prove
	}
	outcomes := r.Run(ctx, s.node, nil)
	o := outcomes[len(outcomes)-1]
	if s.layer == readiness.CUDA && !s.workload && o.Kind == check.Passed {
		o.Proof.Summary += "; nothing was computed (WITH_WORKLOAD=false)"
	}
	if o.Kind == check.NotRun {
		o = outcomes[0] // why it was not
	}
	if o.Kind == check.Failed && o.Refusal.Reason == s.enough {
		return check.Pass(readiness.Proof{HostRoot: s.node.Root.Dir(), Summary: "loaded; " + o.Refusal.Message})
	}
	return o
}

func (s *standin) proven(o check.Outcome) error {
	p := *o.Proof
	p.BootID = s.node.BootID
	if err := readiness.WriteReady(s.dir, readiness.Layer(s.name), p); err != nil {
		return err
	}
	s.out.print("%s is ready: %s%s", s.name, p.Summary, simulated(&p))
	return nil
}

func (s *standin) refused(o check.Outcome) error {
	r := *o.Refusal
	r.BootID = s.node.BootID
	return readiness.WriteNotReady(s.dir, readiness.Layer(s.name), r)
}

func (s *standin) failed(o check.Outcome) error {
	return program.End(s.code(o), fmt.Errorf("%s: %s: %s; %s", s.name, o.Refusal.Reason, o.Refusal.Message, o.Refusal.Action))
}

// over is when the time is, or somebody ends it.
func (s *standin) over(ctx context.Context, last *check.Outcome) error {
	switch {
	case errors.Is(context.Cause(ctx), context.Canceled):
		return program.End(program.Failed, fmt.Errorf("interrupted: %s is not proven", s.name))
	case last == nil:
		return program.End(exitTimeout, fmt.Errorf("%s: %w, and nothing is known of it yet", s.name, context.Cause(ctx)))
	}
	return program.End(s.code(*last), fmt.Errorf("%s: %w: %s: %s; %s", s.name, context.Cause(ctx), last.Refusal.Reason, last.Refusal.Message, last.Refusal.Action))
}

func (s *standin) code(o check.Outcome) int {
	if code, has := layerCodes[o.Layer]; has {
		return code
	}
	return layerCodes[s.layer]
}
