package metricsserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/lab/fault"
)

// start serves until the test ends and returns the address.
func start(t *testing.T, reg *prometheus.Registry, ready func() error) string {
	t.Helper()
	ln, err := listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, ln, reg, ready) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return ln.Addr().String()
}

func always() error { return nil }

func TestHostileClientsKeepNobodyOut(t *testing.T) {
	for _, kind := range fault.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			addr := start(t, NewRegistry(), always)
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			const clients = maxConns + 100
			attack := fault.Start(ctx, "127.0.0.3", addr, kind, clients)
			defer attack.Wait()
			defer cancel()
			for answered := 0; answered < 9 || attack.Connections() < clients; {
				path := []string{"/healthz", "/readyz", "/metrics"}[answered%3]
				_, err := fault.Probe(ctx, addr, path)
				require.NoError(t, ctx.Err(), "the last probe: %v", err)
				if err == nil { // one may come too late on a busy machine
					answered++
				}
			}
			// Each client has one goroutine, and one more while it connects.
			require.Less(t, runtime.NumGoroutine(), before+2*clients+2*maxConns)
		})
	}
}

func TestTheClientWithMostConnectionsLosesOne(t *testing.T) {
	addr := start(t, NewRegistry(), always)
	dial := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	scraper := dial("127.0.0.2")
	var hostile []net.Conn
	for range 3 * maxConns {
		hostile = append(hostile, dial("127.0.0.3"))
	}
	_, err := hostile[0].Read(make([]byte, 1))
	require.Error(t, err, "the oldest of many")
	_, err = io.WriteString(scraper, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(scraper), nil)
	require.NoError(t, err, "older than all of them, and alone")
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.NoError(t, response.Body.Close())
}

// counting counts how often it is gathered.
type counting struct{ times atomic.Int64 }

func (c *counting) Gather() ([]*dto.MetricFamily, error) { c.times.Add(1); return nil, nil }

func TestMetricsAreRenderedOnceForAllWhoAskAtATime(t *testing.T) {
	reg := &counting{}
	p := &pages{reg: reg, ctx: t.Context()}
	began := time.Now()
	var clients sync.WaitGroup
	for range 1000 {
		clients.Go(func() { require.Equal(t, http.StatusOK, p.get(nil).code) })
	}
	clients.Wait()
	p.rendering.Wait()
	require.LessOrEqual(t, reg.times.Load(), int64(2+time.Since(began)/renderEvery))
}

func TestAnAnswerIsNoOlderThanItsRequest(t *testing.T) {
	reg := prometheus.NewRegistry()
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "latest", Help: "x"})
	reg.MustRegister(gauge)
	p := &pages{reg: reg, ctx: t.Context()}
	for i := range 5 {
		gauge.Set(float64(i))
		require.Contains(t, string(p.get(nil).body), "latest "+string(rune('0'+i)))
	}
	p.rendering.Wait()
}

func TestWhoIsEvictedWaitsForNoMetrics(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &pages{reg: prometheus.NewRegistry(), ctx: ctx, last: time.Now().Add(time.Hour)}
	gone := make(chan struct{})
	close(gone)
	require.Equal(t, http.StatusServiceUnavailable, p.get(gone).code)
	cancel()
	p.rendering.Wait()
}

func TestRequests(t *testing.T) {
	addr := start(t, NewRegistry(), func() error { return errors.New("waiting") })
	for request, want := range map[string]string{
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":                                           "HTTP/1.1 200 OK\r\n",
		"GET /healthz HTTP/1.0\n\n":                                                          "HTTP/1.1 200 OK\r\n",
		"GET http://x/healthz?a=b HTTP/1.1\r\n\r\n":                                          "HTTP/1.1 200 OK\r\n",
		"HEAD /healthz HTTP/1.1\r\n\r\n":                                                     "HTTP/1.1 200 OK\r\n",
		"GET /readyz HTTP/1.1\r\n\r\n":                                                       "HTTP/1.1 503 Service Unavailable\r\n",
		"GET /metrics HTTP/1.1\r\nAuthorization: " + strings.Repeat("a", 6<<10) + "\r\n\r\n": "HTTP/1.1 200 OK\r\n",
		"GET /debug/pprof HTTP/1.1\r\n\r\n":                                                  "HTTP/1.1 404 Not Found\r\n",
		"POST /healthz HTTP/1.1\r\n\r\n":                                                     "HTTP/1.1 405 Method Not Allowed\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                                                   "HTTP/1.1 400 Bad Request\r\n",
		"hello\r\n\r\n":                                                                      "HTTP/1.1 400 Bad Request\r\n",
		"GET /" + strings.Repeat("a", maxLine) + " HTTP/1.1\r\n\r\n":                         "HTTP/1.1 400 Bad Request\r\n",
		"GET /healthz HTTP/1.1\r\n" + strings.Repeat("a:b\r\n", maxHeader/5+1) + "\r\n":      "HTTP/1.1 400 Bad Request\r\n",
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		require.NoError(t, err)
		_, err = io.WriteString(conn, request)
		require.NoError(t, err)
		got, err := bufio.NewReader(conn).ReadString('\n')
		require.NoError(t, err, "%.60q", request)
		require.Equal(t, want, got, "%.60q", request)
		require.NoError(t, conn.Close())
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET http://[::1 HTTP/1.1\r\n\r\n"))
	f.Add([]byte("\n\n"))
	f.Add(append([]byte("GET / HTTP/1.1\r\n"), bytes.Repeat([]byte("a"), maxHeader)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		method, path, err := readRequest(r)
		require.LessOrEqual(t, len(data)-r.Len(), maxHeader)
		if err == nil {
			require.LessOrEqual(t, len(method)+len(path), maxLine)
			require.NotEmpty(t, method)
		}
	})
}

// unsent returns how many bytes the kernel keeps of the server's answers.
func unsent(t *testing.T, addr string) (bytes int64) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	number, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	table, err := os.ReadFile("/proc/net/tcp") // proc_net(5): local address, ..., tx_queue:rx_queue, ...
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) {
			continue
		}
		queued, _, _ := strings.Cut(fields[4], ":")
		n, err := strconv.ParseInt(queued, 16, 64)
		require.NoError(t, err)
		bytes += n
	}
	return bytes
}

func TestAnswersThatNobodyReadsTakeLittleOfTheKernel(t *testing.T) {
	reg := NewRegistry()
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: "x"}, []string{"label"})
	reg.MustRegister(vec)
	for i := range 2000 { // 200 kB
		vec.WithLabelValues(fmt.Sprintf("%090d", i)).Set(1)
	}
	addr := start(t, reg, always)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	attack := fault.Start(ctx, "127.0.0.3", addr, fault.Unread, maxConns)
	defer attack.Wait()
	defer cancel()
	require.Eventually(t, func() bool { return unsent(t, addr) > 1<<20 }, 30*time.Second, 10*time.Millisecond, "the clients do not read")
	for range 20 {
		_, err := fault.Probe(ctx, addr, "/readyz")
		require.NoError(t, err)
		require.LessOrEqual(t, unsent(t, addr), int64(maxConns*4*sendBuffer))
	}
}
