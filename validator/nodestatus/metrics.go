package nodestatus

import "github.com/prometheus/client_golang/prometheus"

// Metrics count the writes to the API server and show which kinds of them fail. Their names have the word voice
// from a former name of this package.
type Metrics struct {
	failing *prometheus.GaugeVec
	tries   *prometheus.CounterVec
}

// NewMetrics returns Metrics registered with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_voice_failing",
			Help: "1 while writes to the API server fail."}, []string{"what"}),
		tries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_voice_said_total",
			Help: "Writes to the API server, by outcome."}, []string{"what", "outcome"}),
	}
	reg.MustRegister(m.failing, m.tries)
	for _, t := range topics {
		m.failing.WithLabelValues(string(t)).Set(0)
	}
	return m
}

func (m *Metrics) observe(t topic, err error) {
	outcome, failing := "ok", 0.0
	if err != nil {
		outcome, failing = "error", 1
	}
	m.tries.WithLabelValues(string(t), outcome).Inc()
	m.failing.WithLabelValues(string(t)).Set(failing)
}
