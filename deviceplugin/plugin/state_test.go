package plugin

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/prefer"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// A node's life needs neither a driver nor a kubelet to be played.
func TestStateFollowsFromFacts(t *testing.T) {
	at := time.Unix(1, 0)
	s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{})}
	phase := func(want nodestate.Phase, why gpu.Reason) {
		t.Helper()
		phase, reason, message := s.phase()
		require.Equal(t, want, phase, message)
		require.Equal(t, why, reason, message)
	}
	next := func(f fact) {
		at = at.Add(time.Second)
		s = s.Next(f, at)
	}
	envvar := &config.Config{}
	envvar.Flags.Plugin.DeviceListStrategy = config.StringList{config.ListVariable}
	next(configInForce(Settings{Config: envvar}))
	phase(nodestate.Waiting, reasonStarting)
	next(driverAbsent(absence{reason: "NoDriver"}, gpu.ErrNoDriver, true))
	phase(nodestate.Waiting, "NoDriver")
	next(driverFound(gputest.Node("h100-sxm", 8), "/", true))
	phase(nodestate.Waiting, reasonNoKubelet)
	next(kubeletReached(config.GPU, kubelet.Status{Registered: true}))
	phase(nodestate.Ready, "")

	before := s
	next(eventsSeen([]gpu.Event{gputest.XID(gputest.GPU(3), 79)}))
	phase(nodestate.Degraded, reasonUnhealthy)
	require.False(t, s.plan.Resources[0].Devices[3].Healthy())
	require.True(t, before.plan.Resources[0].Devices[3].Healthy(), "an earlier state stays as it was")
	phaseBefore, _, _ := before.phase()
	require.Equal(t, nodestate.Ready, phaseBefore)

	next(watchFailed(errors.New("NVML error 999"), false))
	phase(nodestate.Failed, reasonNoHealthy)
	next(configRefused(errors.New("x")))
	phase(nodestate.Failed, reasonNoHealthy)
	next(pluginEnds(ending{nodestate.Failed, reasonFolder, "it was replaced"}))
	next(pluginEnds(ending{nodestate.Failed, reasonFailed, "later"}))
	phase(nodestate.Failed, reasonFolder)
}
