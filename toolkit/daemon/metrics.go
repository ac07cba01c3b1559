package daemon

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// Metrics are the daemon's metrics.
type Metrics struct {
	refreshes *prometheus.CounterVec
	changes   *prometheus.CounterVec
	seconds   prometheus.Histogram
	devices   *prometheus.GaugeVec
	connected prometheus.Gauge
	cdi       *prometheus.GaugeVec
	injected  prometheus.Counter
	resolved  *prometheus.CounterVec
	missed    prometheus.Gauge
	written   prometheus.Gauge
	repairs   prometheus.Counter
	applies   *prometheus.CounterVec
	restarts  prometheus.Counter
	steps     *prometheus.HistogramVec
	problems  *prometheus.GaugeVec
	unwritten prometheus.Gauge
}

// NewMetrics registers the daemon's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_toolkit_refreshes_total", Help: "Scans of the host, by outcome: changed, unchanged or failed."}, []string{"outcome"}),
		changes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_toolkit_changes_total", Help: "Files, links and nodes changed on the host, by verb: create, replace or remove."}, []string{"verb"}),
		seconds:   prometheus.NewHistogram(prometheus.HistogramOpts{Name: "gpuready_toolkit_refresh_seconds", Help: "Duration of a scan of the host with its changes.", Buckets: []float64{.005, .01, .025, .05, .1, .15, .25, .5, 1, 5}}),
		devices:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_toolkit_cdi_devices", Help: "CDI devices specified, by kind."}, []string{"kind"}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_toolkit_nri_connected", Help: "1 while the container runtime calls the toolkit for each container."}),
		cdi:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_toolkit_runtime_cdi", Help: "1 if the container runtime resolves CDI names, 0 if not; absent if it does not report it."}, []string{"runtime"}),
		injected:  prometheus.NewCounter(prometheus.CounterOpts{Name: "gpuready_toolkit_injections_total", Help: "Containers of node agents that received the GPUs."}),
	}
	m.written = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_toolkit_cdi_written_timestamp_seconds", Help: "When a CDI specification was written last, in seconds since 1970; 0: not by this process."})
	m.repairs = prometheus.NewCounter(prometheus.CounterOpts{Name: "gpuready_toolkit_repairs_total", Help: "Files, links and nodes that others had changed or removed and that were restored."})
	m.applies = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_toolkit_runtime_applies_total", Help: "Checks of the container runtime's configuration, by outcome: configured, unchanged, undone (the runtime rejected it and has its old one back) or failed."}, []string{"outcome"})
	m.restarts = prometheus.NewCounter(prometheus.CounterOpts{Name: "gpuready_toolkit_runtime_restarts_total", Help: "Restarts and reloads of the container runtime by the toolkit."})
	m.steps = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpuready_toolkit_runtime_step_seconds", Help: "Duration of configuring the container runtime, by step: write, restart, verify or undo.", Buckets: []float64{.01, .1, .5, 1, 2, 5, 10, 30, 60}}, []string{"step"})
	m.problems = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_toolkit_runtime_problem", Help: "1 while the container runtime is not configured as it should be, by reason. RuntimeRestart: it is configured, and has to be restarted by hand."}, []string{"reason"})
	m.resolved = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_toolkit_workload_injections_total", Help: "Containers of allowed namespaces that requested GPUs, by outcome: given, unchanged (it had them, or its request is not allowed) or refused."}, []string{"outcome"})
	m.missed = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_toolkit_injections_missed", Help: "Containers that run without the GPUs that they should have, because they were created while the toolkit was not connected."})
	m.unwritten = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gpuready_toolkit_state_unwritten", Help: "1 while the state file cannot be written, as on a full file system; the write is tried again."})
	for _, outcome := range []string{"given", "unchanged", "refused"} {
		m.resolved.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"configured", "unchanged", "undone", "failed"} {
		m.applies.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"changed", "unchanged", "failed"} { // an increase needs an initial value
		m.refreshes.WithLabelValues(outcome)
	}
	reg.MustRegister(m.refreshes, m.changes, m.seconds, m.devices, m.connected, m.cdi, m.injected, m.resolved, m.missed, m.written, m.repairs, m.applies, m.restarts, m.steps, m.problems, m.unwritten)
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

func (m *Metrics) step(name string, took time.Duration) {
	m.steps.WithLabelValues(name).Observe(took.Seconds())
}

func (m *Metrics) problem(reason gpu.Reason) {
	m.problems.Reset()
	if reason != "" {
		m.problems.WithLabelValues(string(reason)).Set(1)
	}
}

func (m *Metrics) configured(o configure.Outcome, err error) {
	outcome := "unchanged"
	switch {
	case o.Undone:
		outcome = "undone"
	case err != nil:
		outcome = "failed"
	case len(o.Edits) > 0 || o.Restarts > 0:
		outcome = "configured"
	}
	m.applies.WithLabelValues(outcome).Inc()
	m.restarts.Add(float64(o.Restarts))
}

func (m *Metrics) observe(what watch.Meaning, changes []apply.Change, w setup.Wanted, err error, took time.Duration) {
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
		if what == specsChanged {
			m.repairs.Inc()
		}
		if c.File != nil && slices.ContainsFunc(w.Specs, func(s nodestate.Spec) bool { return s.Path == c.Path }) {
			m.written.SetToCurrentTime()
		}
	}
	if err != nil {
		return // the devices are unchanged
	}
	m.devices.Reset()
	for _, s := range w.Specs {
		m.devices.WithLabelValues(s.Kind).Set(float64(len(s.Devices)))
	}
}
