package controller

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// The kind may come after the policy that wants it, and go again.
func TestServiceMonitorFollowsItsKind(t *testing.T) {
	w := newWorld(t)
	yes := true
	p := simulated("p")
	p.Spec.DCGMExporter.Enabled = &yes
	p.Spec.DCGMExporter.ServiceMonitor = &v1.DCGMExporterServiceMonitorConfig{Enabled: &yes, Interval: "15s"}
	w.create(p, gpuNode("n1"))
	w.settle()
	require.Contains(t, w.policy("p").Status.Unserved, "dcgmExporter.serviceMonitor: the cluster has no ServiceMonitors: install the prometheus-operator, or set dcgmExporter.serviceMonitor.enabled to false")

	w.monitors.onServed(w.model, nil)
	require.Empty(t, monitorWrites(w.settle()), "nothing is applied before the objects that exist are known")
	require.NotContains(t, w.policy("p").Status.Unserved, "dcgmExporter.serviceMonitor")

	w.monitors.failed(errors.New("forbidden"))
	w.settle()
	require.ErrorContains(t, w.passErr, "read ServiceMonitors: forbidden")

	w.monitors.synced()
	require.Equal(t, []string{"apply nvidia-dcgm-exporter"}, monitorWrites(w.settle()))
	require.NoError(t, w.passErr)
	require.Empty(t, w.settle(), "it is as wanted")

	changed := w.policy("p")
	changed.Spec.DCGMExporter.ServiceMonitor.Enabled = nil
	changed.Generation++
	require.NoError(t, w.Update(t.Context(), changed))
	require.Equal(t, []string{"delete nvidia-dcgm-exporter"}, monitorWrites(w.settle()))

	w.monitors.onUnserved(w.model, nil)
	require.False(t, w.model.serviceMonitors)
}

// monitorWrites returns the writes of a ServiceMonitor: its name is that of the exporter's Service
// and DaemonSet, which are not written again.
func monitorWrites(writes []string) (of []string) {
	for _, write := range writes {
		if write == "apply nvidia-dcgm-exporter" || write == "delete nvidia-dcgm-exporter" {
			of = append(of, write)
		}
	}
	return of
}
