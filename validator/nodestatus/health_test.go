package nodestatus

import (
	"strings"
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
	held := facts().broken(1, gpu.ReasonXID, "XID 48", time.Time{}).broken(2, gpu.ReasonXID, "XID 48", time.Time{})
	held.Outcomes[3].Holders = map[gpu.UUID][]string{gputest.GPU(1): {"team/a", "team/b"}}
	for i := range held.States[nodestate.DevicePlugin].DevicePlugin.Resources[0].Devices {
		held.States[nodestate.DevicePlugin].DevicePlugin.Resources[0].Devices[i].Action = "reset the GPU"
	}
	for _, c := range []struct {
		name string
		f    Facts
		want Condition
	}{
		{"pods hold one, and both need the same", held, Condition{"False", "XID", g1 + ": XID 48, held by team/a, team/b; " + g2 + ": XID 48; next: reset the GPU"}},
		{"nothing is known", Facts{}, Condition{"Unknown", "Proving", "the driver has not been asked yet since the node was started"}},
		{"all is well", facts(), Condition{"True", "Healthy", "nothing is wrong with 3 GPUs, driver 580.95.05"}},
		{"the device plugin holds one back", facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}), Condition{"False", "XID", g1 + ": XID 79"}},
		{"the driver finds one bad", faulty(facts(), 2), Condition{"False", "GPULost", g2 + ": GPULost: fell off the bus; next: " + gpu.Fault{Reason: gpu.ReasonLost}.NextAction("")}},
		{"both say it of the same", faulty(facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}), 1), Condition{"False", "XID", g1 + ": XID 79"}},
		{"both, of two", faulty(facts().broken(1, gpu.ReasonXID, "XID 79", time.Time{}), 2), Condition{"False", "XID", g1 + ": XID 79; " + g2 + ": GPULost: fell off the bus; next: " + gpu.Fault{Reason: gpu.ReasonLost}.NextAction("")}},
		{"a layer above is refused, and no GPU is broken", facts().refused(readiness.Toolkit, "ToolkitSilent"), Condition{"True", "Healthy", "nothing is wrong with 3 GPUs, driver 580.95.05"}},
		{"the driver cannot be asked", facts().refused(readiness.Driver, "DriverNotLoaded"), Condition{"Unknown", "DriverNotLoaded", "driver: it is broken; next: mend it"}},
		{"it cannot, and the plugin knows of one", facts().refused(readiness.Driver, "DriverNotLoaded").broken(1, gpu.ReasonXID, "XID 79", time.Time{}),
			Condition{"False", "XID", g1 + ": XID 79"}},
		{"nobody watches", silent, Condition{"Unknown", "HealthNotWatched", "the driver finds nothing wrong; the device plugin, which watches for more, offers nothing"}},
		{"who watches has failed", facts().plugin(nodestate.Failed, "SourceFailed", "NVML: gone"),
			Condition{"Unknown", "HealthNotWatched", "the device plugin, which watches the GPUs, has failed: NVML: gone"}},
		{"who watches was stopped", facts().plugin(nodestate.Waiting, "DevicePluginStopped", "the device plugin was stopped"),
			Condition{"Unknown", "HealthNotWatched", "the device plugin was stopped"}},
		{"one is not watched", facts().broken(1, gpu.ReasonUnwatched, "no events", time.Time{}), Condition{"False", "Unwatched", g1 + ": no events"}},
		{"none is watched", unwatched(), Condition{"Unknown", "HealthNotWatched", "nobody watches the GPUs: " + firstFew([]string{
			"GPU 0 (" + string(gputest.GPU(0)) + ", 0000:10:00.0): no driver", g1 + ": no driver", g2 + ": no driver"}, "; ")}},
		{"none is watched, and the driver finds one bad", faulty(unwatched(), 2), Condition{"False", "Unwatched", ""}},
		{"no GPU", noGPU(), Condition{"True", "NoGPU", "there is no GPU, so none is broken"}},
	} {
		have := c.f.health()
		if c.want.Message == "" {
			have.Message = ""
		}
		require.Equal(t, c.want, have, c.name)
	}
}

func TestALongMessageKeepsTheNextAction(t *testing.T) {
	f := facts().broken(1, gpu.ReasonXID, strings.Repeat("x", 2*maxMessage), time.Now())
	devices := f.States[nodestate.DevicePlugin].DevicePlugin.Resources[0].Devices
	for i := range devices {
		devices[i].Action = "reset the GPU"
	}
	events, _ := f.planEvents(memory{Proven: true}, map[subject]observation{}, time.Now())
	require.Len(t, events, 1)
	for _, text := range []string{f.health().Message, f.condition().Message, events[0].message} {
		require.LessOrEqual(t, len(text), maxMessage)
		require.Contains(t, text, "; next: reset the GPU")
	}
	refused := facts().refused(readiness.Driver, "DriverNotLoaded")
	refused.Outcomes[0].NotReady.Message = strings.Repeat("x", 2*maxMessage)
	require.Contains(t, refused.condition().Message, "; next: mend it")
}

// unwatched are the facts while the driver is replaced.
func unwatched() Facts {
	f := facts()
	for i := range 3 {
		f = f.broken(i, gpu.ReasonUnwatched, "no driver", time.Time{})
	}
	return f
}

func TestNoEventForEachGPUWhileNoneIsWatched(t *testing.T) {
	s := newStage(t)
	s.publish(facts())
	s.publish(unwatched())
	s.publish(facts())
	require.Empty(t, s.server.Events())
	s.publish(facts().broken(1, gpu.ReasonUnwatched, "no events", time.Time{}))
	require.NotEmpty(t, s.server.Events())
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
