package mps

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// Metrics are the metrics of the control daemons. docs/monitoring.md lists them.
type Metrics struct {
	ready     *prometheus.GaugeVec
	failures  *prometheus.CounterVec
	unwritten prometheus.Gauge
}

// NewMetrics returns the metrics, registered with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		ready:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_mps_ready", Help: "1 where the MPS control daemon of a resource serves it, 0 where it does not."}, []string{"resource"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_mps_failures_total", Help: "How often the MPS control daemon of a resource failed to serve it, by reason; starting and stopping do not count."}, []string{"resource", "reason"}),
	}
	m.unwritten = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_mps_state_unwritten", Help: "1 while the state file cannot be written, as on a full file system; the write is tried again."})
	reg.MustRegister(m.ready, m.failures, m.unwritten)
	return m
}

// InitResource initialises the metrics of a resource whose daemon is to start. Counters begin
// at 0, since Prometheus sees no increase from nothing to 1.
func (m *Metrics) InitResource(resource string) {
	m.ready.WithLabelValues(resource).Set(0)
	for _, reason := range failureReasons {
		m.failures.WithLabelValues(resource, string(reason))
	}
}

func (m *Metrics) recordStatus(r nodestate.MPSResource) {
	if slices.Contains(failureReasons, r.Reason) && !r.Ready {
		m.failures.WithLabelValues(r.Name, string(r.Reason)).Inc()
	}
	ready := 0.0
	if r.Ready {
		ready = 1
	}
	m.ready.WithLabelValues(r.Name).Set(ready)
}

func (m *Metrics) recordUnwritten(unwritten bool) {
	m.unwritten.Set(0)
	if unwritten {
		m.unwritten.Set(1)
	}
}

func (m *Metrics) removeResource(resource string) {
	m.ready.DeleteLabelValues(resource)
	m.failures.DeletePartialMatch(prometheus.Labels{"resource": resource})
}
