package mps

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// metricValues returns the values of all metrics, by their last label, reason or
// resource.
func metricValues(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	families, err := reg.Gather()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if len(labels) > 0 {
				all[f.GetName()+" "+labels["resource"]+" "+labels["reason"]] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return all
}

func TestOnlyFailuresAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.InitResource("one")
	want := map[string]float64{
		"gpuready_mps_ready one ":                             0,
		"gpuready_mps_failures_total one MPSDaemonFailed":     0,
		"gpuready_mps_failures_total one MPSDaemonSilent":     0,
		"gpuready_mps_failures_total one ComputeModeConflict": 0,
	}
	require.Equal(t, want, metricValues(t, reg), "each begins at 0")
	for _, r := range []nodestate.MPSResource{
		{Reason: reasonStarting}, {Reason: reasonFailed}, {Ready: true, Reason: reasonMode}, {Reason: reasonSilent}, {Ready: true}, {Reason: ReasonEnded},
	} {
		r.Name = "one"
		m.recordStatus(r)
		require.Equal(t, r.Ready, metricValues(t, reg)["gpuready_mps_ready one "] == 1)
	}
	want["gpuready_mps_failures_total one MPSDaemonFailed"] = 1
	want["gpuready_mps_failures_total one MPSDaemonSilent"] = 1
	require.Equal(t, want, metricValues(t, reg))
	m.removeResource("one")
	require.Empty(t, metricValues(t, reg))
}
