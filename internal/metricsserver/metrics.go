// Package metricsserver serves the health and the metrics of a daemon on one port:
// /healthz (the process answers), /readyz (it does its work, or why it does not) and
// /metrics (Prometheus).
package metricsserver

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/version"
)

// NewRegistry returns a registry with metrics of the process itself: its memory, file
// descriptors, CPU time, goroutines and version.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gpuready_build_info", Help: "1, with the version of the program.", ConstLabels: prometheus.Labels{"version": version.String()},
	})
	build.Set(1)
	byClock := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "gpuready_inotify_exhausted", Help: "1 while changes are looked for every few seconds, as the kernel gives no inotify instance, watch or file descriptor.",
	}, func() float64 {
		if inotify.PollingReason() != nil {
			return 1
		}
		return 0
	})
	reg.MustRegister(build, byClock, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Serve serves on addr ("host:port", ":port") until ctx ends and then returns nil, after
// a moment in which responses can finish. With addr "" it serves nothing and returns
// when ctx ends. ready returns why the daemon is not ready, or nil; it is called for
// each request, from several goroutines. Serve fails at once if the port is not
// available.
//
// Any number of clients, even hostile ones, cost a bounded amount of memory, and a new
// client is served in spite of them.
func Serve(ctx context.Context, addr string, reg prometheus.Gatherer, ready func() error) error {
	if addr == "" {
		<-ctx.Done()
		return nil
	}
	ln, err := listen(ctx, addr)
	if err != nil {
		return fmt.Errorf("serve metrics on %q: %w; choose another address with --listen, or turn it off with --listen=", addr, err)
	}
	return serve(ctx, ln, reg, ready)
}

// serve serves on ln and closes it.
func serve(ctx context.Context, ln net.Listener, reg prometheus.Gatherer, ready func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	pages := &pages{reg: reg, ctx: ctx}
	defer pages.rendering.Wait()
	defer cancel()
	s := &server{listener: ln, slots: make(chan struct{}, maxConns), count: map[netip.Addr]int{}}
	s.respond = func(path string, gone <-chan struct{}) response {
		switch path {
		case "/healthz":
			return status(nil)
		case "/readyz":
			return status(ready())
		case "/metrics":
			return pages.get(gone)
		}
		return response{http.StatusNotFound, textPlain, []byte("there are /healthz, /readyz and /metrics\n")}
	}
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("serve metrics on %s: %w", ln.Addr(), err)
	}
	return nil
}

const textPlain = "text/plain; charset=utf-8"

func status(err error) response {
	if err != nil {
		return response{http.StatusServiceUnavailable, textPlain, []byte("not ready: " + err.Error() + "\n")}
	}
	return response{http.StatusOK, textPlain, []byte("ok\n")}
}

// renderEvery is the shortest time between two renderings of the metrics. Earlier
// requests share the next rendering. Each is kept until its last client has read it, so
// the interval bounds how many exist at a time.
const renderEvery = 250 * time.Millisecond

// pages renders the metrics, once for all concurrent requests.
type pages struct {
	reg       prometheus.Gatherer
	ctx       context.Context // ends all renderings
	rendering sync.WaitGroup
	gathering sync.Mutex // held while the metrics are rendered

	mu   sync.Mutex
	last time.Time // when the last rendering began
	next *page     // the next rendering, not begun; nil: nobody waits for one
}

// page is one rendering.
type page struct {
	done     chan struct{} // closed when response is set
	response response
}

// get returns the metrics as they are after the call, or nothing once gone is closed.
func (p *pages) get(gone <-chan struct{}) response {
	p.mu.Lock()
	page := p.next
	if page == nil {
		page = p.schedule()
	}
	p.mu.Unlock()
	select {
	case <-page.done:
		return page.response
	case <-gone:
	case <-p.ctx.Done():
	}
	return response{http.StatusServiceUnavailable, textPlain, nil}
}

// schedule returns the next page, which is rendered renderEvery after the last. p.mu is
// held.
func (p *pages) schedule() *page {
	next := &page{done: make(chan struct{})}
	p.next = next
	wait := time.Until(p.last.Add(renderEvery))
	p.rendering.Go(func() {
		if wait > 0 {
			pause(p.ctx, wait)
		}
		p.gathering.Lock()
		defer p.gathering.Unlock()
		p.mu.Lock()
		p.last, p.next = time.Now(), nil
		p.mu.Unlock()
		next.response = render(p.reg)
		close(next.done)
	})
	return next
}

// render writes all metrics in Prometheus' text format.
func render(reg prometheus.Gatherer) response {
	families, err := reg.Gather()
	if err != nil {
		return response{http.StatusInternalServerError, textPlain, []byte("metrics cannot be gathered: " + err.Error() + "\n")}
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var body bytes.Buffer
	encoder := expfmt.NewEncoder(&body, format)
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return response{http.StatusInternalServerError, textPlain, []byte("metric " + family.GetName() + " cannot be written: " + err.Error() + "\n")}
		}
	}
	return response{http.StatusOK, string(format), body.Bytes()}
}
