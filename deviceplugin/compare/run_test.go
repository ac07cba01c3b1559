package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fakeKubelet responds once for each answer that the test sends.
type fakeKubelet struct{ responses chan response }

type response struct {
	theirs Theirs
	err    error
}

func (k fakeKubelet) query(ctx context.Context) (Theirs, error) {
	select {
	case a := <-k.responses:
		return a.theirs, a.err
	case <-ctx.Done():
		return Theirs{}, ctx.Err()
	}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// values returns the values of all metrics, by their only label.
func values(t testing.TB, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func TestDifferencesAreLoggedOnceAndCounted(t *testing.T) {
	k := fakeKubelet{make(chan response)}
	log := &buffer{}
	reg := prometheus.NewRegistry()
	s := New(Config{Query: k.query, Interval: time.Microsecond, Log: slog.New(slog.NewTextHandler(log, nil))}, reg)
	ctx, cancel := context.WithCancel(soon(t))
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx) }()

	s.SetAbsent(errors.New("waiting for a driver"), false)
	require.EqualError(t, s.Ready(), "waiting for a driver")
	s.SetAbsent(errors.New("no GPU"), true)
	require.NoError(t, s.Ready())

	node := gputest.Node("h100-sxm", 2)
	sound, broken := oursWith(t, whole, node), oursWith(t, whole, node, gputest.XID(gputest.GPU(1), 79))
	s.SetOurs(broken)
	require.EqualError(t, s.Ready(), "the kubelet has not been queried yet")
	for range 4 {
		k.responses <- response{theirs: kubeletOf(sound)}
	}
	for range 3 {
		k.responses <- response{err: errors.New("connection refused")}
	}
	k.responses <- response{theirs: kubeletOf(sound)}
	s.SetOurs(sound)
	k.responses <- response{theirs: kubeletOf(sound)}
	k.responses <- response{theirs: kubeletOf(sound)} // the one before is through with
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	text := log.String()
	require.Equal(t, 1, strings.Count(text, "msg=differs "), text)
	require.Contains(t, text, "kind=health resource=nvidia.com/gpu gpu="+string(gputest.GPU(1)))
	require.Contains(t, text, "ours=Unhealthy theirs=Healthy reason=XID")
	require.Equal(t, 1, strings.Count(text, `msg="no longer differs"`), text)
	require.Equal(t, 1, strings.Count(text, "the kubelet cannot be queried"), text)
	require.Equal(t, 1, strings.Count(text, "the kubelet responds again"), text)
	require.Contains(t, text, `differences=1 summary="1 health"`)
	require.NoError(t, s.Ready())
	counted := values(t, reg)
	require.GreaterOrEqual(t, counted["ok"], 6.0) // the last may have been cancelled
	delete(counted, "ok")
	require.Equal(t, map[string]float64{
		"failed":   3,
		"resource": 0, "device": 0, "name": 0, "replicas": 0, "health": 0, "numa": 0, "placement": 0,
	}, counted)
}

func TestReportTableAndJSON(t *testing.T) {
	node := gputest.Node("h100-sxm", 2)
	o, theirs := oursWith(t, whole, node, gputest.XID(gputest.GPU(1), 79)), kubeletOf(oursWith(t, whole, node))
	theirs.Allocations = []Allocation{holding("a", 1), {"default", "b", "main", "example.com/nic", []string{"0", "1"}}}
	var h History
	report := NewReport(o, theirs, h.Compare(o, theirs, now), now)

	var out bytes.Buffer
	require.NoError(t, report.WriteTable(&out))
	lines := strings.Split(out.String(), "\n")
	require.Equal(t, []string{"RESOURCE", "OURS", "HEALTHY", "THE", "KUBELET", "HAS", "GIVEN", "AWAY"}, strings.Fields(lines[0]))
	require.Equal(t, []string{"nvidia.com/gpu", "2", "1", "2", "1"}, strings.Fields(lines[1]))
	require.Contains(t, out.String(), "XID: ")
	require.Contains(t, out.String(), "default/a/main has it")

	out.Reset()
	require.NoError(t, report.WriteJSON(&out))
	var back Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	require.Equal(t, report.Resources, back.Resources)
	require.Equal(t, 1, back.Counts[KindHealth])
	require.Len(t, back.Differences, 1)

	out.Reset()
	require.NoError(t, NewReport(o, kubeletOf(o), nil, now).WriteTable(&out))
	require.Contains(t, out.String(), "no differences")
}
