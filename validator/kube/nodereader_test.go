package kube

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// desk is a Reader with its API server, and the labels that it delivered.
type desk struct {
	t      *testing.T
	server *kubetest.Server
	reader *NodeReader
	reg    *prometheus.Registry
	fail   atomic.Bool        // deliver fails
	waits  chan time.Duration // the reader's back-off, which ends when it is received

	mu         sync.Mutex
	last       map[string]string
	deliveries int
	delivered  chan struct{} // closed and replaced at each delivery
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, reg: prometheus.NewRegistry(), server: kubetest.Start("n1"), delivered: make(chan struct{}), waits: make(chan time.Duration)}
	client, err := New(d.server.Config())
	require.NoError(t, err)
	d.reader = NewNodeReader(NodeReaderConfig{Client: client, Node: "n1", Deliver: d.deliver, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), After: d.after}, d.reg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.reader.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		d.server.Stop()
		client.Close()
	})
	return d
}

// after takes no time: it fires once the test has received the duration.
func (d *desk) after(wait time.Duration) <-chan time.Time {
	timer := make(chan time.Time, 1)
	go func() {
		select {
		case d.waits <- wait:
			timer <- time.Time{}
		case <-d.t.Context().Done():
		}
	}()
	return timer
}

func (d *desk) deliver(labels map[string]string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail.Load() {
		return errors.New("no space left on device")
	}
	d.last = maps.Clone(labels)
	d.deliveries++
	close(d.delivered)
	d.delivered = make(chan struct{})
	return nil
}

func (d *desk) until(want map[string]string) {
	d.t.Helper()
	timeout := time.After(time.Minute)
	for {
		d.mu.Lock()
		last, deliveries, delivered := d.last, d.deliveries, d.delivered
		d.mu.Unlock()
		if deliveries > 0 && maps.Equal(last, want) {
			require.NotNil(d.t, last, "nil means that the Node was not read")
			return
		}
		select {
		case <-delivered:
		case <-d.waits:
		case <-timeout:
			d.t.Fatalf("heard %v, not %v; requests: %q", last, want, d.server.Requests())
		}
	}
}

// failing returns the value of the metric.
func (d *desk) failing() float64 {
	d.t.Helper()
	families, err := d.reg.Gather()
	require.NoError(d.t, err)
	require.Len(d.t, families, 1)
	return families[0].GetMetric()[0].GetGauge().GetValue()
}

func (d *desk) label(value string) {
	d.server.Node("n1", func(n *corev1.Node) {
		n.Labels = map[string]string{nodestate.ConfigLabel: value, "nvidia.com/mig.config": "all-disabled", "kubernetes.io/hostname": "n1"}
	})
}

func choose(value string) map[string]string { return map[string]string{nodestate.ConfigLabel: value} }

func TestLabelsAreDeliveredEvenIfThereAreNone(t *testing.T) {
	d := newDesk(t)
	d.until(map[string]string{})
	d.label("shared")
	d.until(choose("shared"))
	d.label("")
	d.until(choose(""))
	d.server.Node("n1", func(n *corev1.Node) { n.Labels = nil })
	d.until(map[string]string{})
	require.Zero(t, d.failing())
}

func TestChangesDuringAnOutageAreDelivered(t *testing.T) {
	for name, away := range map[string]func(*desk){
		"the history is gone": func(d *desk) { d.server.Forget() },
		"the API server is away": func(d *desk) {
			d.server.Stop()
			<-d.waits
			require.Equal(d.t, 1.0, d.failing())
			d.server.Restart()
		},
		"the Node is made anew": func(d *desk) {
			d.server.RemoveNode("n1")
			<-d.waits
			require.Equal(d.t, choose("a"), d.last, "what it chose stands")
			d.server.AddNode("n1")
		},
		"a request is refused": func(d *desk) {
			var left atomic.Int32
			left.Store(3)
			d.server.Fail(func(*http.Request) *kubetest.Fault {
				if left.Add(-1) >= 0 {
					return &kubetest.Fault{Status: 403}
				}
				return nil
			})
			d.server.Forget()
		},
		"it cannot be written down": func(d *desk) {
			d.fail.Store(true)
			d.label("b")
			<-d.waits
			d.fail.Store(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			d.label("a")
			d.until(choose("a"))
			away(d)
			d.label("c")
			d.until(choose("c"))
		})
	}
}

func TestAWatchThatEndsAtOnceBacksOff(t *testing.T) {
	d := newDesk(t)
	d.until(map[string]string{})
	d.server.Fail(func(r *http.Request) *kubetest.Fault {
		if r.URL.Query().Get("watch") != "" {
			return &kubetest.Fault{Status: 200}
		}
		return nil
	})
	d.server.Forget()
	var last time.Duration
	for i, most := range []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 30000, 30000} {
		last = <-d.waits
		require.LessOrEqual(t, last, most*time.Millisecond, i)
		require.GreaterOrEqual(t, last, most*time.Millisecond/2, i)
	}
	d.server.Fail(nil)
	d.label("x")
	d.until(choose("x"))
}
