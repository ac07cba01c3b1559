package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestEachGPUIsOneDevice(t *testing.T) {
	now := time.Unix(1, 0)
	s := gputest.Node("h100-sxm", 8)
	h := health.New(gpu.Fault{}).ApplySnapshot(s, now).ApplyEvent(gputest.XID(gputest.GPU(6), 79), now)
	s.Devices = s.Devices[1:]
	devices := plan.Devices(h.ApplySnapshot(s, now.Add(time.Hour)))
	require.Len(t, devices, 8)
	for i, d := range devices {
		require.Equal(t, string(gputest.GPU(i)), d.ID)
		require.Equal(t, i/4, d.NUMANode)
		require.Equal(t, i != 0 && i != 6, d.Healthy())
	}
	require.Equal(t, gpu.ReasonMissing, devices[0].Fault.Reason)
	require.Equal(t, now, devices[6].Since)
}

func TestNamelessGPUIsNotADevice(t *testing.T) {
	s := gputest.Node("t4", 2)
	s.Devices[1].UUID = ""
	require.Len(t, plan.Devices(health.New(gpu.Fault{}).ApplySnapshot(s, time.Now())), 1)
}
