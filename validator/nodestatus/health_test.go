package nodestatus

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
)

func TestTheHealthConditionNamesBrokenGPUs(t *testing.T) {
	faulty := func(f Facts, i int) Facts {
		f.Faults = map[gpu.UUID]gpu.Fault{gputest.GPU(i): {Reason: gpu.ReasonLost, Message: "fell off the bus"}}
		return f
	}
	silent := facts()
	delete(silent.States, nodestate.DevicePlugin)
	g1, g2 := "GPU 1 ("+string(gputest.GPU(1))+", 0000:11:00.0)", "GPU 2 ("+string(gputest.GPU(2))+", 0000:12:00.0)"
	for _, c := range []struct {
		name string
		f    Facts
		want Condition
	}{
		{"nothing is known", Facts{}, Condition{"Unknown", "Proving", "the driver has not been asked yet since the node was started"}},
		{"all is well", facts(), Condition{"True", "Healthy", "nothing is wrong with 3 GPUs, driver 580.95.05"}},
		{"the device plugin holds one back", facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}), Condition{"False", "XID", g1 + ": XID 79"}},
		{"the driver finds one bad", faulty(facts(), 2), Condition{"False", "GPULost", g2 + ": GPULost: fell off the bus"}},
		{"both say it of the same", faulty(facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}), 1), Condition{"False", "XID", g1 + ": XID 79"}},
		{"both, of two", faulty(facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}), 2), Condition{"False", "XID", g1 + ": XID 79; " + g2 + ": GPULost: fell off the bus"}},
		{"a layer above is refused, and no GPU is broken", facts().refused(readiness.Toolkit, "ToolkitSilent"), Condition{"True", "Healthy", "nothing is wrong with 3 GPUs, driver 580.95.05"}},
		{"the driver cannot be asked", facts().refused(readiness.Driver, "DriverNotLoaded"), Condition{"Unknown", "DriverNotLoaded", "driver: it is broken; mend it"}},
		{"it cannot, and the plugin knows of one", facts().refused(readiness.Driver, "DriverNotLoaded").broken(1, gpu.ReasonXID, "XID 79", time.Time{}),
			Condition{"False", "XID", g1 + ": XID 79"}},
		{"nobody watches", silent, Condition{"Unknown", "HealthNotWatched", "the driver finds nothing wrong; the device plugin, which watches for more, offers nothing"}},
		{"who watches has failed", facts().plugin(nodestate.Failed, "SourceFailed", "NVML: gone"),
			Condition{"Unknown", "HealthNotWatched", "the device plugin, which watches the GPUs, has failed: NVML: gone"}},
		{"no GPU", noGPU(), Condition{"True", "NoGPU", "there is no GPU, so none is broken"}},
	} {
		require.Equal(t, c.want, c.f.health(), c.name)
	}
}

func TestTheConditionsTransitionIndependently(t *testing.T) {
	s := newStage(t)
	s.publish(facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}))
	require.Equal(t, corev1.ConditionTrue, s.condition().Status)
	healthy := s.server.Condition(node, HealthType)
	require.Equal(t, corev1.ConditionFalse, healthy.Status)
	began := healthy.LastTransitionTime

	s.clock.advance(time.Minute)
	s.publish(facts().refused(readiness.CUDA, "CUDASampleFailed").broken(1, gpu.ReasonXID, "XID 79", time.Time{}))
	require.Equal(t, corev1.ConditionFalse, s.condition().Status)
	require.Equal(t, began, s.server.Condition(node, HealthType).LastTransitionTime, "its own status is the same")
}
