// Package meter is what the operator shows of itself and of the nodes to Prometheus.
// Every label has few values, however many nodes there are.
package meter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const prefix = "gpuready_operator_"

// Answers of registries.
const (
	Present = "present"
	Absent  = "absent"
	Unknown = "unknown" // it could not be asked
)

// How passes and requests end.
const (
	ok       = "ok"
	conflict = "conflict" // somebody else was faster
	refused  = "refused"  // the API server did not take it
	failed   = "failed"   // there was no answer, or that of a server in trouble
)

// Metrics are the operator's. Its methods may be called concurrently.
type Metrics struct {
	reconciles *prometheus.CounterVec
	durations  *prometheus.HistogramVec
	last       *prometheus.GaugeVec
	writes     *prometheus.CounterVec
	registry   *prometheus.CounterVec
	leads      prometheus.Gauge
	standsDown *prometheus.GaugeVec
	snapshot   *snapshots
}

// New returns them, registered.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "reconciles_total", Help: "Passes by what they are about (policy, nodes, upgrade) and how they ended (ok, failed).",
		}, []string{"about", "outcome"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "reconcile_seconds", Help: "How long a pass took.", Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 60},
		}, []string{"about"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "last_reconcile_timestamp_seconds", Help: "When a pass last ended well, in seconds since 1970; 0: none has by this process.",
		}, []string{"about"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "api_writes_total", Help: "Writes to the API server by verb, resource and how they ended (ok, conflict, refused, failed).",
		}, []string{"verb", "resource", "outcome"}),
		registry: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "registry_answers_total", Help: "What registries said of driver images: present, absent, unknown (it could not be asked).",
		}, []string{"answer"}),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "leads", Help: "1 where this process holds the Lease and acts.",
		}),
		standsDown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "stands_down", Help: "1 where this process does nothing because the operator installed in another namespace serves the cluster.",
		}, []string{"for_namespace"}),
		snapshot: &snapshots{},
	}
	r.MustRegister(m.reconciles, m.durations, m.last, m.writes, m.registry, m.leads, m.standsDown, m.snapshot)
	// From the start, so that the first time counts.
	for _, about := range []string{"policy", "nodes", "upgrade"} {
		m.reconciles.WithLabelValues(about, ok)
		m.reconciles.WithLabelValues(about, failed)
	}
	m.last.WithLabelValues("policy")
	for _, answer := range []string{Present, Absent, Unknown} {
		m.registry.WithLabelValues(answer)
	}
	for _, w := range []struct{ verb, resource string }{
		{"apply", "daemonsets"}, {"delete", "daemonsets"}, {"patch", "nodes"}, {"patch", "clusterpolicies"}, {"create", "events"},
	} {
		for _, outcome := range []string{ok, conflict, refused, failed} {
			m.writes.WithLabelValues(w.verb, w.resource, outcome)
		}
	}
	return m
}

// Reconciled tells of a pass: about is policy, nodes or upgrade.
func (m *Metrics) Reconciled(about string, began, ended time.Time, err error) {
	m.durations.WithLabelValues(about).Observe(ended.Sub(began).Seconds())
	if err != nil {
		m.reconciles.WithLabelValues(about, failed).Inc()
		return
	}
	m.reconciles.WithLabelValues(about, ok).Inc()
	m.last.WithLabelValues(about).Set(float64(ended.UnixMilli()) / 1000)
}

// Leads shows whether this process acts and, where it does not because of an operator in
// another namespace, that namespace.
func (m *Metrics) Leads(leads bool, standsDownFor string) {
	m.leads.Set(0)
	if leads {
		m.leads.Set(1)
	}
	m.standsDown.Reset()
	if standsDownFor != "" {
		m.standsDown.WithLabelValues(standsDownFor).Set(1)
	}
}

// Answered tells of a registry's answer: Present, Absent or Unknown.
func (m *Metrics) Answered(answer string) { m.registry.WithLabelValues(answer).Inc() }
