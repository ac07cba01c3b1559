// Package metrics serves what every daemon of the project shows of itself on
// one port: /healthz (the process answers), /readyz (it does its work, or why
// it does not) and /metrics (Prometheus).
package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpuready/gpuready/internal/version"
)

// A scraper that is slower than this is broken, and must not hold a
// connection of a daemon for ever.
const (
	headerTimeout = 5 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	endTimeout    = 2 * time.Second
)

// NewRegistry returns a registry that shows the process itself already: its
// memory, file descriptors, CPU time, goroutines, and which version it is.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gpuready_build_info", Help: "1, with the version of the program.", ConstLabels: prometheus.Labels{"version": version.String()},
	})
	build.Set(1)
	reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Serve answers on addr ("host:port", ":port") until ctx ends and then returns
// nil, letting requests in progress finish. With addr "" it serves nothing and
// returns when ctx ends. ready says why the daemon is not ready, nil when it
// is; it is called for each request, from several goroutines. A port that
// cannot be had is an error at once.
func Serve(ctx context.Context, addr string, reg *prometheus.Registry, ready func() error) error {
	if addr == "" {
		<-ctx.Done()
		return nil
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("serve metrics on %q: %w; choose another address with --listen, or turn it off with --listen=", addr, err)
	}
	return serve(ctx, ln, reg, ready)
}

// serve owns ln.
func serve(ctx context.Context, ln net.Listener, reg *prometheus.Registry, ready func() error) error {
	srv := &http.Server{
		Handler:           handler(reg, ready),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       answerTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		err := srv.Shutdown(end)
		if err != nil {
			// A client that does not let go must not keep the daemon alive.
			err = srv.Close()
		}
		ended <- err
	}()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		cancel()
		return errors.Join(fmt.Errorf("serve metrics on %s: %w", ln.Addr(), err), <-ended)
	}
	return <-ended
}

func handler(reg *prometheus.Registry, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	return mux
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not ready: "+err.Error()+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}
