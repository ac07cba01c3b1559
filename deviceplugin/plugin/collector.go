package plugin

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// collector holds the current state. Its metrics are computed at each scrape, so that
// they belong to one moment and cost nothing in between.
type collector struct {
	phase, health, notes, devices, leftOut, registered, config, ignored *prometheus.Desc

	mu      sync.Mutex
	current metricValues
}

// metricValues holds the values of one scrape. Fields are only ever replaced as a whole; the
// slices and maps behind them never change.
type metricValues struct {
	phase      nodestate.Phase
	reason     gpu.Reason
	registered map[string]bool // with the kubelet; by resource
	plan       plan.Plan
	gpus       []gpu.Device
	config     *labelRow // nil: none yet
	ignored    []string  // unknown keys of the configuration file
}

func newCollector() collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
	}
	return collector{
		phase:      desc("phase", "1 for the phase that the plugin is in, with its reason; as in its state file.", "phase", "reason"),
		health:     desc("device_healthy", "1 for a device that may be allocated, 0 for one that may not, with the reason.", "resource", "device", "reason"),
		notes:      desc("gpu_note", "1 for each note on a GPU, which is allocated nevertheless: docs/reasons.md.", "gpu", "reason"),
		devices:    desc("devices", "Devices reported to the kubelet, each replica counted, by state (Healthy or Unhealthy) and reason.", "resource", "state", "reason"),
		leftOut:    desc("devices_left_out", "GPUs and MIG devices not reported to the kubelet, by reason.", "reason"),
		registered: desc("registered", "1 while this plugin has registered the resource with the kubelet, 0 while it has not.", "resource"),
		config:     desc("config_info", "1, with the hash of the configuration in force and the name by which it was chosen.", "hash", "name"),
		ignored:    desc("config_ignored_key", "1 for each unknown key of the configuration file, which was skipped.", "key"),
	}
}

// SetState sets the phase and the registered resources. The map must not be changed
// afterwards.
func (m *Metrics) SetState(phase nodestate.Phase, reason gpu.Reason, registered map[string]bool) {
	m.collector.set(func(now *metricValues) { now.phase, now.reason, now.registered = phase, reason, registered })
	for resource := range registered {
		for _, code := range allocateCodes {
			m.allocations.WithLabelValues(resource, code.String())
		}
	}
}

// allocateCodes are the gRPC codes of Allocate (package allocate).
var allocateCodes = []codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.Internal}

// SetPlan sets the devices reported to the kubelet, and those left out. The plan must not
// be changed afterwards.
func (m *Metrics) SetPlan(p plan.Plan) { m.collector.set(func(now *metricValues) { now.plan = p }) }

// SetGPUs sets the GPUs as last read. They must not be changed afterwards.
func (m *Metrics) SetGPUs(all []gpu.Device) {
	m.collector.set(func(now *metricValues) { now.gpus = all })
}

// SetConfig sets the configuration in force, by the hash of its file and the name by
// which it was chosen, and its ignored keys.
func (m *Metrics) SetConfig(hash, name string, ignored []string) {
	m.collector.set(func(now *metricValues) { now.config, now.ignored = &labelRow{hash, name}, ignored })
}

// set changes the values for the next scrape.
func (c *collector) set(change func(*metricValues)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.current)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.phase, c.health, c.notes, c.devices, c.leftOut, c.registered, c.config, c.ignored} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	c.mu.Lock()
	values := c.current
	c.mu.Unlock()
	phase, health, notes, devices, leftOut, registered, config, ignored := labelTable{}, labelTable{}, labelTable{}, labelTable{}, labelTable{}, labelTable{}, labelTable{}, labelTable{}
	if values.phase != "" {
		phase[labelRow{string(values.phase), string(values.reason)}] = 1
	}
	for name, isRegistered := range values.registered {
		registered[labelRow{name}] = boolValue(isRegistered)
	}
	for _, r := range values.plan.Resources {
		for _, d := range r.Devices {
			state, reason := nodestate.Unhealthy, string(d.Fault.Reason)
			if d.Healthy() {
				state = nodestate.Healthy
			}
			devices[labelRow{r.Name, string(state), reason}]++
			if d.Replica == 0 { // one series for each GPU and MIG device, however often it is shared
				health[labelRow{r.Name, string(d.UUID()), reason}] = boolValue(d.Healthy())
			}
		}
	}
	for _, d := range values.gpus {
		for _, n := range d.Notes {
			notes[labelRow{string(d.UUID), string(n.Reason)}] = 1
		}
	}
	for _, l := range values.plan.LeftOut {
		leftOut[labelRow{string(l.Reason)}]++
	}
	if values.config != nil {
		config[*values.config] = 1
	}
	for _, key := range values.ignored {
		ignored[labelRow{key}] = 1
	}
	phase.send(metrics, c.phase, 2)
	health.send(metrics, c.health, 3)
	notes.send(metrics, c.notes, 2)
	devices.send(metrics, c.devices, 3)
	leftOut.send(metrics, c.leftOut, 1)
	registered.send(metrics, c.registered, 1)
	config.send(metrics, c.config, 2)
	ignored.send(metrics, c.ignored, 1)
}

// labelRow holds the values of up to three labels.
type labelRow [3]string

// labelTable holds the value of each series of one metric.
type labelTable map[labelRow]float64

// send sends one metric for each row; labels is the number of labels that d has.
func (t labelTable) send(metrics chan<- prometheus.Metric, d *prometheus.Desc, labels int) {
	for r, value := range t {
		for i := range labels {
			r[i] = validUTF8(r[i])
		}
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, r[:labels]...)
	}
}
