package sample

import (
	"context"
	"io"
	"runtime"
	"time"
)

// repeat runs the sample for the duration of --for, or once without it. It stops at the
// first failure and returns the report of the last run.
func (s Sample) repeat(ctx context.Context, o options, lines io.Writer, p *progress) (*Report, error) {
	enough := time.Now().Add(o.duration)
	for runs := 1; ; runs++ {
		limited, cancel := context.WithTimeoutCause(ctx, o.timeout, errTimeout)
		report, err := s.runOnce(limited, o, lines, p)
		cancel()
		report.Runs = runs
		if err != nil || time.Now().Add(o.every).After(enough) {
			return report, err
		}
		lines = io.Discard // the next run prints the same
		select {
		case <-ctx.Done():
			return report, context.Cause(ctx)
		case <-time.After(o.every):
		}
	}
}

// runOnce runs the sample until it returns or ctx ends. A call into a driver that hangs
// cannot be cancelled. Its goroutine is left behind until the process exits; runOnce takes
// the report as it is, and later writes no longer reach it.
func (s Sample) runOnce(ctx context.Context, o options, lines io.Writer, p *progress) (*Report, error) {
	r := &Run{device: o.device, out: lines, report: newReport(s.Name), last: time.Now()}
	done := make(chan error, 1)
	go func() {
		// CUDA's current context belongs to the thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- r.close(s.Run(ctx, r))
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer p.end()
	for {
		select {
		case err := <-done:
			return r.abandon(), err
		case <-ctx.Done():
			return r.abandon(), context.Cause(ctx)
		case <-tick.C:
			p.show(r.progress())
		}
	}
}
