package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
)

func TestTheGaugesOfTheReferenceAreReadFromTheFiles(t *testing.T) {
	dir := t.TempDir()
	read := func(boot, name string) float64 {
		families, err := gauges(dir, boot, "n1").Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "gpu_operator_node_"+name {
				require.Equal(t, "n1", f.GetMetric()[0].GetLabel()[0].GetValue())
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		require.Fail(t, "no such gauge", name)
		return 0
	}
	proof := readiness.Proof{BootID: "b", Driver: &nodestate.DriverInfo{Root: "/"}, Resources: map[string]int{"nvidia.com/gpu": 7}}
	require.NoError(t, readiness.WriteReady(dir, readiness.Driver, proof))
	require.NoError(t, readiness.WriteNotReady(dir, readiness.Toolkit, readiness.NotReady{BootID: "b", Reason: "ToolkitSilent"}))
	require.EqualValues(t, 1, read("b", "driver_ready"))
	require.EqualValues(t, 0, read("b", "toolkit_ready"))
	require.EqualValues(t, -1, read("b", "device_plugin_devices_total"))
	require.NoError(t, readiness.WriteReady(dir, readiness.Plugin, proof))
	require.EqualValues(t, 1, read("b", "plugin_ready"))
	require.EqualValues(t, 7, read("b", "device_plugin_devices_total"))
	require.EqualValues(t, 0, read("another boot", "driver_ready"))
	require.Positive(t, read("b", "metrics_ready_ts_seconds"))
}
