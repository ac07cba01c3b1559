package meter

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// scene is how things are. What a scrape shows of it is worked out when it is
// scraped: it is all of one moment, and costs nothing while nobody looks.
type scene struct {
	phase, health, devices, left, registered, config, ignored *prometheus.Desc

	mu  sync.Mutex
	now moment
}

// moment is never changed, but for being replaced part by part.
type moment struct {
	phase      nodestate.Phase
	reason     gpu.Reason
	registered map[string]bool // by resource
	plan       plan.Plan
	config     *row // nil: none yet
	ignored    []string
}

func newScene() scene {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
	}
	return scene{
		phase:      desc("phase", "1 for the phase that the plugin is in, with its reason; as in its state file.", "phase", "reason"),
		health:     desc("device_healthy", "1 for a device that may be given away, 0 for one that may not, with the reason.", "resource", "device", "reason"),
		devices:    desc("devices", "Devices that the kubelet is told of, each replica counted, by state (Healthy or Unhealthy) and reason.", "resource", "state", "reason"),
		left:       desc("devices_left_out", "GPUs and MIG devices that the kubelet is not told of, by reason.", "reason"),
		registered: desc("registered", "1 while the kubelet knows of the resource from this plugin, 0 while it does not.", "resource"),
		config:     desc("config_info", "1, with the hash of the configuration in force and the name by which it was chosen.", "hash", "name"),
		ignored:    desc("config_ignored_key", "1 for each key of the configuration file that is not known and was passed over.", "key"),
	}
}

// State shows the phase, and which resources the kubelet knows of. The map is not
// to be changed after.
func (m *Meters) State(phase nodestate.Phase, reason gpu.Reason, registered map[string]bool) {
	m.scene.set(func(now *moment) { now.phase, now.reason, now.registered = phase, reason, registered })
	for resource := range registered {
		for _, code := range answers {
			m.allocations.WithLabelValues(resource, code.String())
		}
	}
}

// answers are those of Allocate (package allocate).
var answers = []codes.Code{codes.OK, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.Internal}

// Plan shows what the kubelet is told, and what it is not. It is not to be
// changed after.
func (m *Meters) Plan(p plan.Plan) { m.scene.set(func(now *moment) { now.plan = p }) }

// Configured shows which configuration is in force, by the hash of its file and
// the name by which it was chosen, and the keys in it that were passed over.
func (m *Meters) Configured(hash, name string, ignored []string) {
	m.scene.set(func(now *moment) { now.config, now.ignored = &row{hash, name}, ignored })
}

func (s *scene) set(change func(*moment)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

// Describe is for a registry.
func (s *scene) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.phase, s.health, s.devices, s.left, s.registered, s.config, s.ignored} {
		to <- d
	}
}

// Collect is for a registry.
func (s *scene) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	phase, health, devices, left, registered, config, ignored := table{}, table{}, table{}, table{}, table{}, table{}, table{}
	if now.phase != "" {
		phase[row{string(now.phase), string(now.reason)}] = 1
	}
	for name, is := range now.registered {
		registered[row{name}] = number(is)
	}
	for _, r := range now.plan.Resources {
		for _, d := range r.Devices {
			state, reason := nodestate.Unhealthy, string(d.Fault.Reason)
			if d.Healthy() {
				state = nodestate.Healthy
			}
			devices[row{r.Name, string(state), reason}]++
			if d.Replica == 0 { // one series for each GPU and MIG device, however often it is shared
				health[row{r.Name, string(d.UUID()), reason}] = number(d.Healthy())
			}
		}
	}
	for _, l := range now.plan.Left {
		left[row{string(l.Reason)}]++
	}
	if now.config != nil {
		config[*now.config] = 1
	}
	for _, key := range now.ignored {
		ignored[row{key}] = 1
	}
	phase.tell(to, s.phase, 2)
	health.tell(to, s.health, 3)
	devices.tell(to, s.devices, 3)
	left.tell(to, s.left, 1)
	registered.tell(to, s.registered, 1)
	config.tell(to, s.config, 2)
	ignored.tell(to, s.ignored, 1)
}

// row is the values of up to three labels.
type row [3]string

type table map[row]float64

func (t table) tell(to chan<- prometheus.Metric, d *prometheus.Desc, labels int) {
	for r, value := range t {
		for i := range labels {
			r[i] = text(r[i])
		}
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, r[:labels]...)
	}
}
