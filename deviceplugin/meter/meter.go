// Package meter counts and times what the device plugin does, for Prometheus.
// docs/monitoring.md lists what there is. No label has a value that somebody
// else can make up without end: names of resources and keys come from the
// configuration, GPUs and their errors from the driver.
package meter

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/gpuready/gpuready/internal/gpu"
)

// quick are the buckets of what takes a fraction of a millisecond when all is
// well, and must be seen when it does not: 10 µs to 100 ms.
var quick = []float64{10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3}

// shares are the buckets of a score against the best one.
var shares = []float64{0.25, 0.5, 0.75, 0.9, 0.99, 1}

// Meters are the plugin's metrics. Its methods may be called concurrently.
type Meters struct {
	scene         scene
	watching      prometheus.Gauge
	refused       prometheus.Gauge
	registrations *prometheus.CounterVec
	allocations   *prometheus.CounterVec
	allocating    *prometheus.HistogramVec
	preferring    *prometheus.HistogramVec
	score         *prometheus.HistogramVec
	events        *prometheus.CounterVec
	xids          *prometheus.CounterVec
	nvml          *prometheus.CounterVec
	reloads       *prometheus.CounterVec
	firstList     prometheus.Gauge
}

// New makes them, all of them empty.
func New() *Meters {
	m := &Meters{
		scene:         newScene(),
		watching:      gauge("watching", "1 while the plugin hears what the driver tells of the GPUs, 0 while it does not."),
		refused:       gauge("config_refused", "1 while a configuration is not put into force, as it is wrong; the one before, if any, serves on."),
		registrations: counters("registrations_total", "Registrations with the kubelet, by gRPC code.", "resource", "code"),
		allocations:   counters("allocations_total", "Containers that the kubelet asked devices for, by gRPC code.", "resource", "code"),
		allocating:    histograms("allocation_duration_seconds", "How long it took to answer what a container is given.", quick, "resource"),
		preferring:    histograms("preferred_allocation_duration_seconds", "How long it took to choose devices for a container.", quick, "resource"),
		score: histograms("preferred_allocation_score_ratio",
			"How near to each other the chosen GPUs are, as a share of the best that there is for so many on an empty node; for two whole GPUs and more.", shares, "resource"),
		events:    counters("events_total", "Events of GPUs, by kind.", "kind"),
		xids:      counters("xids_total", "XIDs by GPU, whatever they do to its health.", "gpu", "xid"),
		nvml:      counters("nvml_errors_total", "Calls of NVML that failed, by its error code, or HUNG for one that did not come back.", "code"),
		reloads:   counters("config_reloads_total", "Configurations that came while the plugin ran: ok, or refused.", "result"),
		firstList: gauge("first_list_seconds", "Seconds from the start of the process to the first device list that was sent to the kubelet."),
	}
	// What an alert waits for begins at 0: no increase is seen from nothing to 1.
	m.nvml.WithLabelValues("HUNG")
	m.reloads.WithLabelValues("ok")
	m.reloads.WithLabelValues("refused")
	return m
}

const namespace, subsystem = "gpuready", "deviceplugin"

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
}

func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets}, labels)
}

// Register makes them known to reg, which can be done once.
func (m *Meters) Register(reg prometheus.Registerer) {
	reg.MustRegister(&m.scene, m.watching, m.refused, m.registrations, m.allocations, m.allocating, m.preferring, m.score, m.events, m.xids, m.nvml, m.reloads, m.firstList)
}

// Started is called when the first list was sent.
func (m *Meters) Started(after time.Duration) { m.firstList.Set(after.Seconds()) }

// Watching says whether anything is heard of the GPUs.
func (m *Meters) Watching(is bool) { m.watching.Set(number(is)) }

// Refused says whether a configuration is not put into force.
func (m *Meters) Refused(is bool) { m.refused.Set(number(is)) }

// Allocated is told of each container that was to be given devices; err is a
// gRPC status.
func (m *Meters) Allocated(resource string, took time.Duration, err error) {
	m.allocations.WithLabelValues(resource, status.Code(err).String()).Inc()
	m.allocating.WithLabelValues(resource).Observe(took.Seconds())
}

// Preferred is told of each choice.
func (m *Meters) Preferred(resource string, took time.Duration) {
	m.preferring.WithLabelValues(resource).Observe(took.Seconds())
}

// Score is told how good a choice was: 1 is as good as can be.
func (m *Meters) Score(resource string, ratio float64) {
	m.score.WithLabelValues(resource).Observe(ratio)
}

// Registration is told of each try to register; err is nil or a gRPC status.
func (m *Meters) Registration(resource string, err error) {
	m.registrations.WithLabelValues(resource, status.Code(err).String()).Inc()
}

// Event is told of each event of a GPU.
func (m *Meters) Event(e gpu.Event) {
	m.events.WithLabelValues(e.Kind.String()).Inc()
	if e.Kind == gpu.EventXID {
		m.xids.WithLabelValues(text(string(e.UUID)), strconv.FormatUint(e.XID, 10)).Inc()
	}
}

// NVML is told of each call of NVML that failed.
func (m *Meters) NVML(code string) { m.nvml.WithLabelValues(code).Inc() }

// Reloaded is told of each configuration that came, and why it was refused.
func (m *Meters) Reloaded(refused error) {
	result := "ok"
	if refused != nil {
		result = "refused"
	}
	m.reloads.WithLabelValues(result).Inc()
}

// text is what can be the value of a label: anything else ends a program that
// shows it.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
