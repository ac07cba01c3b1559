package main

import (
	"context"
	"io"
	"sync"
	"time"
)

// repeat runs the sample again and again for as long as was asked for, once if it
// was not, and ends at the first failure. The report is that of the last run.
func repeat(ctx context.Context, o options, lines io.Writer) (*report, error) {
	enough := time.Now().Add(o.duration)
	for runs := 1; ; runs++ {
		limited, cancel := context.WithTimeoutCause(ctx, o.timeout, errTimeout)
		r, err := within(limited, o, lines)
		cancel()
		r.Runs = runs
		if err != nil || time.Now().Add(o.every).After(enough) {
			return r, err
		}
		lines = io.Discard // the same once more
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(o.every):
		}
	}
}

// within runs the sample until it is done or ctx is. A call into a driver that
// hangs cannot be ended: then it is left to the end of the process, which
// follows at once, and neither its report nor its output is waited for.
func within(ctx context.Context, o options, lines io.Writer) (*report, error) {
	type outcome struct {
		r   *report
		err error
	}
	out := &gate{w: lines}
	done := make(chan outcome, 1)
	go func() {
		r := newReport(o.elements)
		err := add(out, o.device, r)
		done <- outcome{r, err}
	}()
	select {
	case end := <-done:
		return end.r, end.err
	case <-ctx.Done():
		out.close()
		return newReport(o.elements), context.Cause(ctx)
	}
}

// gate passes on what is written until it is closed.
type gate struct {
	mu sync.Mutex
	w  io.Writer
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.w.Write(p)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.w = io.Discard
}
