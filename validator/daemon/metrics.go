package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Metrics are the daemon's metrics of the layers.
type Metrics struct {
	ready   *prometheus.GaugeVec
	reason  *prometheus.GaugeVec
	seconds *prometheus.GaugeVec
	checks  *prometheus.CounterVec

	unwritten prometheus.Gauge
}

// NewMetrics returns Metrics registered with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_layer_ready",
			Help: "1 when the layer is proven, 0 when it is not."}, []string{"layer"}),
		reason: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_layer_not_ready_reason",
			Help: "1 for the reason for which the layer is not proven."}, []string{"layer", "reason"}),
		seconds: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_layer_check_seconds",
			Help: "How long the last check of the layer took."}, []string{"layer"}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_layer_checks_total",
			Help: "Checks of the layer by outcome."}, []string{"layer", "outcome"}),
	}
	m.unwritten = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_state_unwritten",
		Help: "1 while the outcomes of the checks cannot be written to the node's files, as on a full file system; the write is tried again."})
	reg.MustRegister(m.ready, m.reason, m.seconds, m.checks, m.unwritten)
	for _, l := range readiness.Layers() {
		m.ready.WithLabelValues(string(l)).Set(0)
	}
	return m
}

func (m *Metrics) observe(o check.Outcome) {
	layer := string(o.Layer)
	m.reason.DeletePartialMatch(prometheus.Labels{"layer": layer})
	m.checks.WithLabelValues(layer, string(o.Kind)).Inc()
	if o.Kind == check.Passed {
		m.ready.WithLabelValues(layer).Set(1)
	} else {
		m.ready.WithLabelValues(layer).Set(0)
		m.reason.WithLabelValues(layer, string(o.NotReady.Reason)).Set(1)
	}
	if o.Elapsed > 0 {
		m.seconds.WithLabelValues(layer).Set(o.Elapsed.Seconds())
	}
}
