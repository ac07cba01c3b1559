package sample

import (
	"context"
	"io"
	"runtime"
	"time"
)

// repeat runs the sample again and again for as long as was asked for, once if it
// was not, and ends at the first failure. The report is that of the last run.
func (s Sample) repeat(ctx context.Context, o options, lines io.Writer, p *progress) (*Report, error) {
	enough := time.Now().Add(o.duration)
	for runs := 1; ; runs++ {
		limited, cancel := context.WithTimeoutCause(ctx, o.timeout, errTimeout)
		report, err := s.within(limited, o, lines, p)
		cancel()
		report.Runs = runs
		if err != nil || time.Now().Add(o.every).After(enough) {
			return report, err
		}
		lines = io.Discard // the same once more
		select {
		case <-ctx.Done():
			return report, context.Cause(ctx)
		case <-time.After(o.every):
		}
	}
}

// within runs the sample until it is done or ctx is. A call into a driver that
// hangs cannot be ended: then it is left to the end of the process, which
// follows at once, and neither its report nor its output is waited for.
func (s Sample) within(ctx context.Context, o options, lines io.Writer, p *progress) (*Report, error) {
	r := &Run{device: o.device, out: lines, report: newReport(s.Name), last: time.Now()}
	done := make(chan error, 1)
	go func() {
		// CUDA's current context is the thread's.
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
			return r.leave(), err
		case <-ctx.Done():
			return r.leave(), context.Cause(ctx)
		case <-tick.C:
			p.show(r.progress())
		}
	}
}
