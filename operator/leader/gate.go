package leader

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// ErrNotLeading is the error of a write that a Gate refuses.
var ErrNotLeading = errors.New("this operator does not hold its Lease for certain; nothing is written")

// Gate passes writes to the API server only while this process certainly leads. It checks the
// clock instead of waiting for an event: a process that was suspended for a minute writes
// nothing before it has renewed the Lease.
type Gate struct {
	remaining func() time.Duration // how long it is certain that nobody else acts

	mu      sync.Mutex
	leading context.Context    // nil: closed
	current context.Context    // of the running writes; nil: none since the last expiry
	cancel  context.CancelFunc // of current
	timer   *time.Timer        // calls expire
}

// open passes writes until leading ends.
func (g *Gate) open(leading context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leading = leading
}

// close refuses writes from now on and cancels running ones.
func (g *Gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leading = nil
	g.cancelWrites()
}

func (g *Gate) cancelWrites() {
	if g.current != nil {
		g.timer.Stop()
		g.cancel()
		g.current = nil
	}
}

// expire cancels the running writes, unless the Lease has been renewed.
func (g *Gate) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if left := g.remaining(); g.current != nil && left > 0 {
		g.timer.Reset(left)
		return
	}
	g.cancelWrites()
}

// admit returns the context that limits a write.
func (g *Gate) admit() (context.Context, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := g.remaining()
	if g.leading == nil || g.leading.Err() != nil || left <= 0 {
		g.cancelWrites()
		return nil, ErrNotLeading
	}
	if g.current == nil {
		g.current, g.cancel = context.WithCancel(g.leading)
		g.timer = time.AfterFunc(left, g.expire)
	}
	return g.current, nil
}

// Wrap returns a transport that refuses writes, and cancels running ones, when this process may
// no longer write. It passes all reads.
func (g *Gate) Wrap(next http.RoundTripper) http.RoundTripper { return gated{g, next} }

type gated struct {
	gate *Gate
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t gated) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return t.next.RoundTrip(r)
	}
	term, err := t.gate.admit()
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(term, func() { cancel(ErrNotLeading) })
	done := func() { stop(); cancel(nil) }
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		done()
		return nil, err
	}
	response.Body = body{response.Body, done}
	return response, nil
}

// body ends the context of its request when it is closed.
type body struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (b body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}
