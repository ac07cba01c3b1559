// Package metrics exposes the operator's metrics of itself and of the nodes to Prometheus. Every
// label has few values, however many nodes there are.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const prefix = "gpuready_operator_"

// Results of registry lookups.
const (
	Present = "present"
	Absent  = "absent"
	Unknown = "unknown" // the registry could not be queried
)

// Outcomes of passes and requests.
const (
	ok       = "ok"
	conflict = "conflict" // somebody else wrote first
	refused  = "refused"  // the API server refused it
	failed   = "failed"   // there was no response, or a server error
)

// Metrics holds the operator's metrics. Its methods may be called concurrently.
type Metrics struct {
	reconciles     *prometheus.CounterVec
	durations      *prometheus.HistogramVec
	last           *prometheus.GaugeVec
	writes         *prometheus.CounterVec
	registry       *prometheus.CounterVec
	leads          prometheus.Gauge
	standsDown     *prometheus.GaugeVec
	nvidiaOperator *prometheus.GaugeVec
	snapshot       *snapshots
}

// New returns registered Metrics.
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
		nvidiaOperator: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "beside_nvidia", Help: "1 while this Deployment of NVIDIA's operator serves the cluster: ClusterPolicies are not written, and only nodes that were handed over are served.",
		}, []string{"deployment"}),
		snapshot: &snapshots{},
	}
	r.MustRegister(m.reconciles, m.durations, m.last, m.writes, m.registry, m.leads, m.standsDown, m.nvidiaOperator, m.snapshot)
	// Initialize the series, so that the first increment counts.
	for _, about := range []string{"policy", "nodes", "upgrade"} {
		m.reconciles.WithLabelValues(about, ok)
		m.reconciles.WithLabelValues(about, failed)
	}
	m.last.WithLabelValues("policy") // without a policy, nothing else runs
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

// Reconciled records a pass: about is policy, nodes or upgrade.
func (m *Metrics) Reconciled(about string, began, ended time.Time, err error) {
	m.durations.WithLabelValues(about).Observe(ended.Sub(began).Seconds())
	if err != nil {
		m.reconciles.WithLabelValues(about, failed).Inc()
		return
	}
	m.reconciles.WithLabelValues(about, ok).Inc()
	m.last.WithLabelValues(about).Set(float64(ended.UnixMilli()) / 1000)
}

// SetLeadership records whether this process leads and, if it stands down for an operator in another
// namespace, that namespace.
func (m *Metrics) SetLeadership(leads bool, standsDownFor string) {
	m.leads.Set(0)
	if leads {
		m.leads.Set(1)
	}
	m.standsDown.Reset()
	if standsDownFor != "" {
		m.standsDown.WithLabelValues(standsDownFor).Set(1)
	}
}

// SetNVIDIAOperator records which Deployment of NVIDIA's operator serves the cluster; "" if none does.
func (m *Metrics) SetNVIDIAOperator(deployment string) {
	m.nvidiaOperator.Reset()
	if deployment != "" {
		m.nvidiaOperator.WithLabelValues(deployment).Set(1)
	}
}

// CountLookup records the result of a registry lookup: Present, Absent or Unknown.
func (m *Metrics) CountLookup(answer string) { m.registry.WithLabelValues(answer).Inc() }
