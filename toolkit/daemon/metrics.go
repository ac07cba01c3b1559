package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// Metrics are what the daemon shows of itself.
type Metrics struct {
	refreshes *prometheus.CounterVec
	changes   *prometheus.CounterVec
	seconds   prometheus.Histogram
	devices   *prometheus.GaugeVec
	connected prometheus.Gauge
	cdi       *prometheus.GaugeVec
	injected  prometheus.Counter
}

// NewMetrics registers the daemon's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_toolkit_refreshes_total", Help: "How often the host was looked at, by outcome: changed, unchanged or failed."}, []string{"outcome"}),
		changes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_toolkit_changes_total", Help: "Things changed on the host, by what was done: create, replace or remove."}, []string{"verb"}),
		seconds:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "gpuready_toolkit_refresh_seconds", Help: "How long looking and changing took.", Buckets: []float64{.005, .01, .025, .05, .1, .15, .25, .5, 1, 5}}),
		devices:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_toolkit_cdi_devices", Help: "CDI devices specified, by kind."}, []string{"kind"}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_toolkit_nri_connected", Help: "1 while the container runtime asks the toolkit about each container."}),
		cdi:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_toolkit_runtime_cdi", Help: "1 if the container runtime resolves CDI names, 0 if not; absent where it does not say."}, []string{"runtime"}),
		injected:  prometheus.NewCounter(prometheus.CounterOpts{Name: "gpuready_toolkit_injections_total", Help: "Containers of node agents that were given the GPUs."}),
	}
	for _, outcome := range []string{"changed", "unchanged", "failed"} { // no increase is seen from nothing to 1
		m.refreshes.WithLabelValues(outcome)
	}
	reg.MustRegister(m.refreshes, m.changes, m.seconds, m.devices, m.connected, m.cdi, m.injected)
	return m
}

func (m *Metrics) runtime(name string, cdi *bool) {
	m.cdi.Reset()
	if cdi != nil {
		m.cdi.WithLabelValues(name).Set(number(*cdi))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *Metrics) observe(changes []change.Change, w setup.Wanted, err error, took time.Duration) {
	outcome := "unchanged"
	if len(changes) > 0 {
		outcome = "changed"
	}
	if err != nil {
		outcome = "failed"
	}
	m.refreshes.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
	for _, c := range changes {
		m.changes.WithLabelValues(c.Verb).Inc()
	}
	if err != nil {
		return // what was there before is still there
	}
	m.devices.Reset()
	for _, s := range w.Specs {
		m.devices.WithLabelValues(s.Kind).Set(float64(len(s.Devices)))
	}
}
