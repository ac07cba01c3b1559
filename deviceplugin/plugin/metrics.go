package plugin

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// meters are the plugin's metrics.
type meters struct {
	health        *prometheus.GaugeVec
	allocations   *prometheus.CounterVec
	registrations *prometheus.CounterVec
	events        *prometheus.CounterVec
	firstList     prometheus.Gauge
	config        *prometheus.GaugeVec
	reloads       *prometheus.CounterVec
}

func newMeters() *meters {
	name := func(s string) string { return "gpuready_deviceplugin_" + s }
	return &meters{
		health: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("device_healthy"), Help: "1 for a device that may be given away, 0 for one that may not, with the reason.",
		}, []string{"resource", "device", "reason"}),
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("allocations_total"), Help: "Containers that the kubelet asked devices for, by gRPC code.",
		}, []string{"resource", "code"}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("registrations_total"), Help: "Registrations with the kubelet, by gRPC code.",
		}, []string{"resource", "code"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("events_total"), Help: "Events of GPUs, by kind.",
		}, []string{"kind"}),
		firstList: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: name("first_list_seconds"), Help: "Seconds from the start of the process to the first device list that was sent to the kubelet.",
		}),
		config: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("config_info"), Help: "1, with the hash of the configuration in force and the name by which it was chosen.",
		}, []string{"hash", "name"}),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("config_reloads_total"), Help: "Configurations that came while the plugin ran: ok, or refused.",
		}, []string{"result"}),
	}
}

func (m *meters) register(reg *prometheus.Registry) {
	reg.MustRegister(m.health, m.allocations, m.registrations, m.events, m.firstList, m.config, m.reloads)
}

// devices has one series for each GPU and MIG device, however often it is shared.
func (m *meters) devices(resources []plan.Resource) {
	m.health.Reset()
	for _, r := range resources {
		for _, d := range r.Devices {
			if d.Replica > 0 {
				continue
			}
			value := 0.0
			if d.Healthy() {
				value = 1
			}
			m.health.WithLabelValues(r.Name, string(d.UUID()), string(d.Fault.Reason)).Set(value)
		}
	}
}

func (m *meters) allocated(resource string, err error) {
	m.allocations.WithLabelValues(resource, status.Code(err).String()).Inc()
}

func (m *meters) registered(resource string, err error) {
	m.registrations.WithLabelValues(resource, status.Code(err).String()).Inc()
}

// reloaded counts a configuration that came, or was refused.
func (m *meters) reloaded(err error) {
	result := "ok"
	if err != nil {
		result = "refused"
	}
	m.reloads.WithLabelValues(result).Inc()
}

// inForce says which configuration is.
func (m *meters) inForce(s Settings) {
	m.config.Reset()
	m.config.WithLabelValues(s.Hash, s.Name).Set(1)
}

func (m *meters) event(e gpu.Event) { m.events.WithLabelValues(e.Kind.String()).Inc() }
