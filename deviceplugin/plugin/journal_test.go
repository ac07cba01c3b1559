package plugin

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// recorder is a Journal and its output.
type recorder struct {
	*journal
	log bytes.Buffer
}

func newRecorder() *recorder {
	b := &recorder{}
	b.journal = newJournal(slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	return b
}

// lines returns the lines written since the last call.
func (b *recorder) lines() []string {
	defer b.log.Reset()
	text := strings.TrimSuffix(b.log.String(), "\n")
	if text == "" {
		return []string{}
	}
	return strings.Split(text, "\n")
}

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lost  = gpu.Fault{Reason: gpu.ReasonLost, Message: "off the bus"}
	blind = gpu.Fault{Reason: gpu.ReasonUnwatched, Message: "nothing is heard"}
)

// devices are n GPUs, with faults by index.
func devices(n int, faults map[int]gpu.Fault) plan.Plan {
	r := plan.Resource{Name: "nvidia.com/gpu"}
	for i := range n {
		id := fmt.Sprintf("GPU-%d", i)
		r.Devices = append(r.Devices, plan.Device{ID: id, GPU: gpu.UUID(id), Fault: faults[i], Since: start.Add(time.Duration(i) * time.Second)})
	}
	return plan.Plan{Resources: []plan.Resource{r}}
}

func all(n int, f gpu.Fault) map[int]gpu.Fault {
	faults := map[int]gpu.Fault{}
	for i := range n {
		faults[i] = f
	}
	return faults
}

func TestEachChangeOfADeviceIsLogged(t *testing.T) {
	b := newRecorder()
	b.LogPlan(devices(8, nil))
	require.Empty(t, b.lines(), "that a device is healthy is no news")
	b.LogPlan(devices(8, map[int]gpu.Fault{3: lost}))
	require.Equal(t, []string{`level=WARN msg="device is unhealthy" gpu=GPU-3 resource=nvidia.com/gpu reason=GPULost message="off the bus" since=2026-01-02T03:04:08Z`}, b.lines())
	b.LogPlan(devices(8, map[int]gpu.Fault{3: lost}))
	require.Empty(t, b.lines())
	b.LogPlan(devices(8, nil))
	require.Equal(t, []string{`level=INFO msg="device is healthy again" gpu=GPU-3 resource=nvidia.com/gpu before=GPULost`}, b.lines())
}

func TestSimultaneousChangesShareALine(t *testing.T) {
	b := newRecorder()
	b.LogPlan(devices(5, map[int]gpu.Fault{4: lost}))
	b.lines()
	b.LogPlan(devices(5, all(5, blind)))
	require.Equal(t, []string{`level=WARN msg="5 devices are unhealthy" gpus=GPU-0,GPU-1,GPU-2,GPU-3,GPU-4 resource=nvidia.com/gpu reason=Unwatched message="nothing is heard" since=2026-01-02T03:04:05Z`}, b.lines())
	b.LogPlan(devices(5, map[int]gpu.Fault{4: lost}))
	require.Equal(t, []string{
		`level=INFO msg="4 devices are healthy again" gpus=GPU-0,GPU-1,GPU-2,GPU-3 resource=nvidia.com/gpu before=Unwatched`,
		`level=WARN msg="device is unhealthy" gpu=GPU-4 resource=nvidia.com/gpu reason=GPULost message="off the bus" since=2026-01-02T03:04:09Z`,
	}, b.lines())
}

func TestDifferentChangesAreLoggedSeparately(t *testing.T) {
	b, faults := newRecorder(), map[int]gpu.Fault{}
	for i := range 6 {
		faults[i] = gpu.Fault{Reason: gpu.ReasonLost, Message: fmt.Sprint("slot ", i)}
	}
	b.LogPlan(devices(6, faults))
	require.Len(t, b.lines(), 6)
}

// The whole log determines the state of every device.
func TestLogReflectsEveryDevice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, last := newRecorder(), map[string]string{}
		names := []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			faults := map[int]gpu.Fault{}
			for i := range 8 {
				faults[i] = rapid.SampledFrom([]gpu.Fault{{}, lost, blind}).Draw(t, "fault")
			}
			p, there := devices(8, faults), [8]bool{}
			for i := range there {
				there[i] = rapid.Bool().Draw(t, "listed")
			}
			p.Resources[0].Devices = slices.DeleteFunc(p.Resources[0].Devices, func(d plan.Device) bool { return !there[slices.Index(names, string(d.GPU))] })
			b.LogPlan(p)
			for _, line := range b.lines() {
				reason := ""
				if strings.Contains(line, "unhealthy") {
					_, reason, _ = strings.Cut(line, "reason=")
					reason, _, _ = strings.Cut(reason, " ")
				}
				_, ids, _ := strings.Cut(line, " gpu")
				ids, _, _ = strings.Cut(ids[strings.Index(ids, "=")+1:], " ")
				for id := range strings.SplitSeq(ids, ",") {
					last[id] = reason
				}
			}
			for i := range 8 {
				if there[i] {
					require.Equal(t, string(faults[i].Reason), last[names[i]])
				}
			}
		}
	})
}

func TestLeftOutDeviceIsLoggedOncePerReason(t *testing.T) {
	b := newRecorder()
	out := func(reason gpu.Reason) plan.Plan {
		return plan.Plan{LeftOut: []plan.LeftOut{{GPU: "GPU-1", PCI: "0000:3b:00.0", Index: 1, Reason: reason, Message: "do this"}}}
	}
	b.LogPlan(out(plan.ReasonNoMIGDevice))
	b.LogPlan(out(plan.ReasonNoMIGDevice))
	b.LogPlan(out(plan.ReasonExcluded))
	require.Equal(t, []string{
		`level=WARN msg="device is left out" gpu=GPU-1 index=1 pci=0000:3b:00.0 reason=NoMIGDevice message="do this"`,
		`level=INFO msg="device is left out" gpu=GPU-1 index=1 pci=0000:3b:00.0 reason=Excluded message="do this"`,
	}, b.lines())
}

func TestEndOfLeavingOutIsLogged(t *testing.T) {
	b := newRecorder()
	b.LogPlan(plan.Plan{LeftOut: []plan.LeftOut{{GPU: "GPU-1", Reason: plan.ReasonExcluded, Message: "do this"}}})
	b.lines()
	b.LogPlan(devices(2, nil))
	require.Equal(t, []string{`level=INFO msg="device is no longer left out" gpu=GPU-1 resource=nvidia.com/gpu`}, b.lines())
	b.LogPlan(devices(2, nil))
	require.Empty(t, b.lines())
}

func TestRepeatedRefusalIsLoggedOnceAMinute(t *testing.T) {
	b := newRecorder()
	refuse := func(device string, at time.Duration) {
		b.LogRefused("nvidia.com/gpu", "FailedPrecondition", device+" is unhealthy", start.Add(at))
	}
	for i := range 500 {
		refuse("GPU-1", time.Duration(i)*time.Millisecond)
	}
	refuse("GPU-2", time.Second)
	refuse("GPU-1", time.Minute)
	require.Equal(t, []string{
		`level=WARN msg="allocation refused" resource=nvidia.com/gpu reason=FailedPrecondition message="GPU-1 is unhealthy"`,
		`level=WARN msg="allocation refused" resource=nvidia.com/gpu reason=FailedPrecondition message="GPU-2 is unhealthy"`,
		`level=WARN msg="allocation refused" resource=nvidia.com/gpu reason=FailedPrecondition message="GPU-1 is unhealthy" more=499`,
	}, b.lines())
	for range 3 {
		refuse("GPU-y", 2*time.Minute)
	}
	require.Len(t, b.lines(), 1)
	for i := range 10_000 { // the log and the memory stay bounded whatever is requested
		refuse(fmt.Sprint("GPU-", i), 10*time.Minute)
	}
	lines := b.lines()
	require.Len(t, lines, 64)
	require.Equal(t, 1, strings.Count(strings.Join(lines, "\n"), "more=2"), "those of GPU-y, which is forgotten")
	refuse("GPU-x", 11*time.Minute)
	require.Equal(t, []string{
		`level=WARN msg="allocation refused" resource=nvidia.com/gpu reason=FailedPrecondition message="GPU-x is unhealthy" more=9936`,
	}, b.lines())
}

func TestRepeatedXIDIsLoggedOnceAMinute(t *testing.T) {
	b := newRecorder()
	for i := range 1000 {
		b.LogIgnored(gpu.Event{Kind: gpu.EventXID, UUID: "GPU-1", XID: 13, Message: "XID 13"}, start.Add(time.Duration(i)*time.Millisecond))
	}
	b.LogIgnored(gpu.Event{Kind: gpu.EventXID, UUID: "GPU-1", XID: 31, Message: "XID 31"}, start)
	b.LogIgnored(gpu.Event{Kind: gpu.EventXID, UUID: "GPU-1", XID: 13, Message: "XID 13"}, start.Add(time.Minute))
	require.Equal(t, []string{
		`level=INFO msg="XID that is not held against the GPU" gpu=GPU-1 message="XID 13"`,
		`level=INFO msg="XID that is not held against the GPU" gpu=GPU-1 message="XID 31"`,
		`level=INFO msg="XID that is not held against the GPU" gpu=GPU-1 message="XID 13" more=999`,
	}, b.lines())
}
