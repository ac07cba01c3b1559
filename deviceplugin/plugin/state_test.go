package plugin

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/mps"
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
	next := func(f fact) (changed bool) {
		t.Helper()
		at = at.Add(time.Second)
		s, changed = s.Next(f, at)
		again := s.derive(at)
		require.Equal(t, again.plan, s.plan, "it follows from the other fields, computed again or not")
		require.Equal(t, again.unallocatable, s.unallocatable)
		require.Equal(t, again.choice, s.choice)
		return changed
	}
	envvar := &config.Config{}
	envvar.Flags.Plugin.DeviceListStrategy = config.StringList{config.ListVariable}
	next(configInForce(Settings{Config: envvar}))
	phase(nodestate.Waiting, reasonStarting)
	next(driverAbsent(absence{reason: "NoDriver"}, gpu.ErrNoDriver, true))
	phase(nodestate.Waiting, "NoDriver")
	next(driverFound(gputest.Node("h100-sxm", 8), "/", true))
	phase(nodestate.Waiting, reasonNoKubelet)
	require.False(t, next(kubeletReached(config.GPU, kubelet.Status{Registered: true})), "the devices are not planned again")
	phase(nodestate.Ready, "")
	require.False(t, next(mpsServes(allocate.MPSStateFrom(nodestate.State{}, nil))), "nothing is shared by MPS")
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

func TestMPSThatBeganBeforeItWasConfiguredCounts(t *testing.T) {
	at := time.Unix(1, 0)
	s := state{settings: &config.Config{}, topology: prefer.NewTopology(gpu.Snapshot{}), health: health.New(gpu.Fault{})}
	shared := &config.Config{Sharing: config.Sharing{MPS: &config.Replicated{Resources: []config.ReplicatedResource{{Name: config.GPU, Replicas: 2}}}}}
	shared.Flags.Plugin.DeviceListStrategy = config.StringList{config.ListVariable}
	served := func(replicas int) fact {
		r := nodestate.MPSResource{Name: config.GPU, Ready: true, Root: mps.Root(shared), GPUs: []gpu.UUID{gputest.GPU(0)}, Replicas: map[gpu.UUID]int{gputest.GPU(0): replicas}}
		return mpsServes(allocate.MPSStateFrom(nodestate.State{MPS: &nodestate.MPSInfo{Resources: []nodestate.MPSResource{r}}}, nil))
	}
	for _, f := range []fact{driverFound(gputest.Node("h100-sxm", 1), "/", true), served(2), configInForce(Settings{Config: shared})} {
		s, _ = s.Next(f, at)
	}
	require.True(t, s.plan.Resources[0].Devices[0].Healthy())
	s, _ = s.Next(served(3), at)
	require.Equal(t, allocate.ReasonMPS, s.plan.Resources[0].Devices[0].Fault.Reason)
}
