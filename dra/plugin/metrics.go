package plugin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Metrics are the DRA driver's metrics.
type Metrics struct {
	devices       *prometheus.GaugeVec
	claims        *prometheus.CounterVec
	publishErrors prometheus.Counter
	kept          *prometheus.GaugeVec
}

// NewMetrics returns metrics without devices and claims.
func NewMetrics() *Metrics {
	m := &Metrics{
		devices: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_dra_devices",
			Help: "Devices in the ResourceSlices of this node, by whether they have a taint."}, []string{"tainted"}),
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpuready_dra_claims_total",
			Help: "Claims that the kubelet asked to prepare or unprepare, by outcome."}, []string{"operation", "outcome"}),
		kept: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gpuready_dra_kept_devices",
			Help: "Devices that are not released to the device plugin yet, by reason."}, []string{"reason"}),
		publishErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "gpuready_dra_background_errors_total",
			Help: "Errors while publishing ResourceSlices or serving the kubelet."}),
	}
	for _, operation := range []string{"prepare", "unprepare"} {
		for _, outcome := range []string{"ok", "error"} {
			m.claims.WithLabelValues(operation, outcome)
		}
	}
	return m
}

// Register registers them.
func (m *Metrics) Register(reg prometheus.Registerer) {
	reg.MustRegister(m.devices, m.claims, m.publishErrors, m.kept)
}

func (m *Metrics) countClaim(operation string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.claims.WithLabelValues(operation, outcome).Inc()
}

func (m *Metrics) setKept(all []nodestate.Withheld) {
	m.kept.Reset()
	for _, k := range all {
		m.kept.WithLabelValues(string(k.Reason)).Inc()
	}
}

func (m *Metrics) setInventory(inv inventory.Inventory) {
	tainted := 0
	for _, d := range inv.Devices {
		if len(d.API.Taints) > 0 {
			tainted++
		}
	}
	m.devices.WithLabelValues("true").Set(float64(tainted))
	m.devices.WithLabelValues("false").Set(float64(len(inv.Devices) - tainted))
}
