package mps

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// Metrics are what is told of the control daemons. docs/monitoring.md has them all.
type Metrics struct {
	ready    *prometheus.GaugeVec
	failures *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		ready:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_mps_ready", Help: "1 where the MPS control daemon of a resource serves it, 0 where it does not."}, []string{"resource"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_mps_failures_total", Help: "How often the MPS control daemon of a resource came not to serve it, other than by being started or ended, by reason."}, []string{"resource", "reason"}),
	}
	reg.MustRegister(m.ready, m.failures)
	return m
}

// Start says that there is to be a daemon. What may be counted of it begins at 0:
// Prometheus sees no increase from nothing to 1.
func (m *Metrics) Start(resource string) {
	m.ready.WithLabelValues(resource).Set(0)
	for _, reason := range failures {
		m.failures.WithLabelValues(resource, string(reason))
	}
}

func (m *Metrics) report(r nodestate.MPSResource) {
	if slices.Contains(failures, r.Reason) && !r.Ready {
		m.failures.WithLabelValues(r.Name, string(r.Reason)).Inc()
	}
	ready := 0.0
	if r.Ready {
		ready = 1
	}
	m.ready.WithLabelValues(r.Name).Set(ready)
}

func (m *Metrics) forget(resource string) {
	m.ready.DeleteLabelValues(resource)
	m.failures.DeletePartialMatch(prometheus.Labels{"resource": resource})
}
