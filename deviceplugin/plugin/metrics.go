package plugin

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// latencyBuckets are for operations that take a fraction of a millisecond when all is
// well, and must be visible when they do not: 10 µs to 100 ms.
var latencyBuckets = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3}

// ratioBuckets are for a score relative to the best one.
var ratioBuckets = []float64{0.25, 0.5, 0.75, 0.9, 0.99, 1}

// Metrics count and time the plugin's work, for Prometheus. docs/monitoring.md lists them. No
// label takes unbounded values from others: names of resources and keys come from the
// configuration, GPUs and their errors from the driver. Its methods may be called concurrently.
type Metrics struct {
	collector         collector
	watching          prometheus.Gauge
	refused           prometheus.Gauge
	unwritten         prometheus.Gauge
	registrations     *prometheus.CounterVec
	allocations       *prometheus.CounterVec
	allocationSeconds *prometheus.HistogramVec
	preferenceSeconds *prometheus.HistogramVec
	score             *prometheus.HistogramVec
	events            *prometheus.CounterVec
	xids              *prometheus.CounterVec
	nvml              *prometheus.CounterVec
	reloads           *prometheus.CounterVec
	firstList         prometheus.Gauge
	serving           *prometheus.GaugeVec
	withheld          *prometheus.GaugeVec
}

// NewMetrics returns empty metrics.
func NewMetrics() *Metrics {
	m := &Metrics{
		collector:         newCollector(),
		watching:          gauge("watching", "1 while the plugin receives the driver's events of the GPUs, 0 while it does not."),
		refused:           gauge("config_refused", "1 while the latest configuration is refused as invalid; the previous one, if any, stays in force."),
		unwritten:         gauge("state_unwritten", "1 while the state file cannot be written, as on a full file system; the write is tried again."),
		registrations:     counters("registrations_total", "Registrations with the kubelet, by gRPC code.", "resource", "code"),
		allocations:       counters("allocations_total", "Containers for which the kubelet requested devices, by gRPC code.", "resource", "code"),
		allocationSeconds: histograms("allocation_duration_seconds", "How long it took to respond to an allocation for a container.", latencyBuckets, "resource"),
		preferenceSeconds: histograms("preferred_allocation_duration_seconds", "How long it took to choose devices for a container.", latencyBuckets, "resource"),
		score: histograms("preferred_allocation_score_ratio",
			"How near to each other the chosen GPUs are, relative to the best choice of as many on an empty node; for two whole GPUs and more.", ratioBuckets, "resource"),
		events:    counters("events_total", "Events of GPUs, by kind.", "kind"),
		xids:      counters("xids_total", "XIDs by GPU, whatever their effect on its health.", "gpu", "xid"),
		nvml:      counters("nvml_errors_total", "Calls of NVML that failed, by its error code, or HUNG for one that did not return.", "code"),
		reloads:   counters("config_reloads_total", "Configurations that arrived while the plugin ran: ok, or refused.", "result"),
		serving:   gauges("serving", "1 for who offers the GPUs to pods: plugin, or dra for gpu-dra-driver.", "by"),
		withheld:  gauges("withheld_devices", "Devices that nobody is offered, until the pods of the other side have ended, by reason.", "reason"),
		firstList: gauge("first_list_seconds", "Seconds from the start of the process to the first device list that was sent to the kubelet."),
	}
	// Counters of alerts begin at 0: Prometheus sees no increase from nothing to 1.
	m.nvml.WithLabelValues("HUNG")
	m.reloads.WithLabelValues("ok")
	m.reloads.WithLabelValues("refused")
	return m
}

const namespace, subsystem = "gpuready", "deviceplugin"

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels)
}

// Register registers the metrics with reg, which can be done once.
func (m *Metrics) Register(reg prometheus.Registerer) {
	reg.MustRegister(&m.collector, m.watching, m.refused, m.unwritten, m.registrations, m.allocations, m.allocationSeconds, m.preferenceSeconds, m.score, m.events, m.xids, m.nvml, m.reloads, m.firstList, m.serving, m.withheld)
}

// SetFirstListTime records the time from the start of the process to the first list sent.
func (m *Metrics) SetFirstListTime(after time.Duration) { m.firstList.Set(after.Seconds()) }

// SetWatching records whether the GPUs are watched.
func (m *Metrics) SetWatching(watching bool) { m.watching.Set(boolValue(watching)) }

// SetConfigRefused records whether the latest configuration is refused.
func (m *Metrics) SetConfigRefused(refused bool) { m.refused.Set(boolValue(refused)) }

// SetServing records who offers the GPUs, and which devices nobody is offered.
func (m *Metrics) SetServing(by string, withheld []nodestate.Withheld) {
	for _, mode := range []string{nodestate.ServePlugin, nodestate.ServeDRA} {
		m.serving.WithLabelValues(mode).Set(boolValue(mode == by))
	}
	m.withheld.Reset()
	for _, w := range withheld {
		m.withheld.WithLabelValues(string(w.Reason)).Inc()
	}
}

// SetStateUnwritten records whether the state file cannot be written.
func (m *Metrics) SetStateUnwritten(unwritten bool) { m.unwritten.Set(boolValue(unwritten)) }

// ObserveAllocation records a container's allocation; err is a gRPC status.
func (m *Metrics) ObserveAllocation(resource string, took time.Duration, err error) {
	m.allocations.WithLabelValues(resource, status.Code(err).String()).Inc()
	m.allocationSeconds.WithLabelValues(resource).Observe(took.Seconds())
}

// ObservePreference records a choice of devices.
func (m *Metrics) ObservePreference(resource string, took time.Duration) {
	m.preferenceSeconds.WithLabelValues(resource).Observe(took.Seconds())
}

// ObserveScore records how good a choice was; 1 is the best possible.
func (m *Metrics) ObserveScore(resource string, ratio float64) {
	m.score.WithLabelValues(resource).Observe(ratio)
}

// CountRegistration records an attempt to register; err is nil or a gRPC status.
func (m *Metrics) CountRegistration(resource string, err error) {
	m.registrations.WithLabelValues(resource, status.Code(err).String()).Inc()
}

// CountEvent records an event of a GPU.
func (m *Metrics) CountEvent(e gpu.Event) {
	m.events.WithLabelValues(e.Kind.String()).Inc()
	if e.Kind == gpu.EventXID {
		m.xids.WithLabelValues(validUTF8(string(e.UUID)), strconv.FormatUint(e.XID, 10)).Inc()
	}
}

// CountNVMLError records a failed call of NVML.
func (m *Metrics) CountNVMLError(code string) { m.nvml.WithLabelValues(code).Inc() }

// CountReload records a new configuration, and the error if it was refused.
func (m *Metrics) CountReload(refused error) {
	result := "ok"
	if refused != nil {
		result = "refused"
	}
	m.reloads.WithLabelValues(result).Inc()
}

// validUTF8 makes s a valid label value: an invalid one would panic when scraped.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
