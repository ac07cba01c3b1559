package metricsserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestServesHealthReadinessAndMetricsUntilTheContextEnds(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	reg := NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "road_total", Help: "Roads travelled."})
	reg.MustRegister(c)
	c.Inc()

	var waiting atomic.Bool
	why := errors.New("waiting for /run/nvidia/driver")
	ready := func() error {
		if waiting.Load() {
			return why
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, ln, reg, ready) }()

	// One connection for each request: keep-alive would hide a server that
	// does not close its connections at the end.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://" + ln.Addr().String() + path)
		require.NoError(t, err)
		defer func() { require.NoError(t, resp.Body.Close()) }()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}

	code, body := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\n", body)

	code, _ = get("/readyz")
	require.Equal(t, http.StatusOK, code)

	waiting.Store(true)
	code, body = get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "not ready: waiting for /run/nvidia/driver\n", body)

	code, body = get("/metrics")
	require.Equal(t, http.StatusOK, code)
	for _, want := range []string{"road_total 1", "gpuready_build_info{version=", "go_goroutines ", "process_open_fds ", "process_resident_memory_bytes "} {
		require.Contains(t, body, want)
	}

	code, _ = get("/nothing")
	require.Equal(t, http.StatusNotFound, code)

	cancel()
	require.NoError(t, <-done)
	_, err = net.Dial("tcp", ln.Addr().String())
	require.Error(t, err)
}

func TestAClientThatNeverSendsDoesNotHoldTheEndBack(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, ln, prometheus.NewRegistry(), func() error { return nil }) }()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte("GET /healthz HTTP/1.1\r\n"))
	require.NoError(t, err)
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("still serving")
	}
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	err = Serve(t.Context(), ln.Addr().String(), prometheus.NewRegistry(), func() error { return nil })
	require.ErrorContains(t, err, ln.Addr().String())
	require.ErrorContains(t, err, "--listen")
}

func TestNoAddressServesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, Serve(ctx, "", prometheus.NewRegistry(), nil))
}
