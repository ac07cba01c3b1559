package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestAGPUIsJudgedByWhatItReports(t *testing.T) {
	ampere, hopper := gpu.Compute{Major: 8, Minor: 6}, gpu.Compute{Major: 9}
	for name, c := range map[string]struct {
		change func(g *fakeGPU)
		fault  gpu.Reason
		text   string // in the message of the fault or the note
		note   gpu.Reason
	}{
		"nothing":                     {func(*fakeGPU) {}, "", "", ""},
		"a row could not be remapped": {func(g *fakeGPU) { g.remapFailed = true }, gpu.ReasonRowRemap, "must be replaced", ""},
		"which no reset mends":        {func(g *fakeGPU) { g.remapFailed, g.recovery = true, nvml.GPU_RECOVERY_ACTION_GPU_RESET }, gpu.ReasonRowRemap, "must be replaced", ""},
		"a row waits on GA10x":        {func(g *fakeGPU) { g.remapPending, g.device.Compute = true, ampere }, gpu.ReasonResetNeeded, "wait to be replaced", ""},
		"a row waits on GH100":        {func(g *fakeGPU) { g.remapPending, g.device.Compute = true, hopper }, "", "when it is idle", gpu.NoteRemapPending},
		"a row waits and a reset too": {func(g *fakeGPU) { g.remapPending, g.recovery = true, nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET }, gpu.ReasonResetNeeded, "the driver asks", ""},
		"pages wait": {func(g *fakeGPU) {
			g.retirePending, g.refuse = true, refuseRows
			g.device.Compute = gpu.Compute{Major: 7}
		}, gpu.ReasonResetNeeded, "wait to be replaced", ""},
		"reset":                        {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_GPU_RESET }, gpu.ReasonResetNeeded, "reset the GPU", ""},
		"reboot":                       {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_NODE_REBOOT }, gpu.ReasonResetNeeded, "reboot the node", ""},
		"drain and reset":              {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET }, gpu.ReasonResetNeeded, "end the programs", ""},
		"bus reset":                    {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_BUS_RESET }, gpu.ReasonResetNeeded, "PCI bus", ""},
		"system reboot":                {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT }, gpu.ReasonResetNeeded, "reboot the node", ""},
		"drain P2P":                    {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_DRAIN_P2P }, "", "NVLink", gpu.NoteDrainP2P},
		"recover the IMEX domain":      {func(g *fakeGPU) { g.recovery = nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN }, "", "nvidia-imex", gpu.NoteRecoverIMEX},
		"an action of a later driver":  {func(g *fakeGPU) { g.recovery = 20 }, "", "Action20", gpu.NoteRecovery},
		"joined with an error":         {func(g *fakeGPU) { g.fabric = joined; g.fabric.Status = uint32(nvml.ERROR_UNKNOWN) }, gpu.ReasonFabric, "failed to join", ""},
		"not joined":                   {func(g *fakeGPU) { g.fabric = joined; g.fabric.State = nvml.GPU_FABRIC_STATE_IN_PROGRESS }, gpu.ReasonFabric, "has not joined", ""},
		"a fabric in order":            {func(g *fakeGPU) { g.fabric = joined; g.fabric.HealthMask = 0xaa }, "", "", ""},
		"a fabric with less bandwidth": {func(g *fakeGPU) { g.fabric = joined; g.fabric.HealthMask = 0xa9 }, "", "less bandwidth", gpu.NoteFabricDegraded},
		"a route that is unhealthy":    {func(g *fakeGPU) { g.fabric = joined; g.fabric.HealthMask = 0x9a }, "", "a route is unhealthy", gpu.NoteFabricDegraded},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newFake(t, gputest.Node("h100-sxm", 2), Options{})
			f.gpus[1].fabric = joined
			c.change(f.gpus[0])
			got, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			d := got.Devices[0]
			require.Equal(t, c.fault, d.Fault.Reason)
			if c.note == "" {
				require.Empty(t, d.Notes)
				require.Contains(t, d.Fault.Message, c.text)
			} else {
				require.Len(t, d.Notes, 1)
				require.Equal(t, c.note, d.Notes[0].Reason)
				require.Contains(t, d.Notes[0].Message, c.text)
			}
			require.Zero(t, got.Devices[1].Fault, "the neighbour")
		})
	}
}

var (
	refuseRows = map[string]nvml.Return{"nvmlDeviceGetRemappedRows": nvml.ERROR_NOT_SUPPORTED}
	joined     = nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_COMPLETED}
)

// Before the fabric manager has come up no GPU has joined: that is no fault of a GPU.
func TestNoGPUIsFaultyBeforeTheFabricManagerRuns(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 4), Options{})
	for _, g := range f.gpus {
		g.fabric.State = nvml.GPU_FABRIC_STATE_NOT_STARTED
	}
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	for _, d := range got.Devices {
		require.Zero(t, d.Fault)
	}
}

// An error has not ended because it cannot be read for a moment.
func TestAFaultThatCannotBeReadStays(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 1), Options{})
	f.gpus[0].recovery = nvml.GPU_RECOVERY_ACTION_GPU_RESET
	before, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonResetNeeded, before.Devices[0].Fault.Reason)
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetFieldValues": nvml.ERROR_TIMEOUT, "nvmlDeviceGetRemappedRows": nvml.ERROR_UNKNOWN}
	after, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.Devices, after.Devices)

	f.gpus[0].calls = nvml.ERROR_RESET_REQUIRED
	after, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonResetNeeded, after.Devices[0].Fault.Reason)
	require.Empty(t, after.Devices[0].Recovery, "which was not read")
}

// What a GPU has said that it has does not end with one call that fails.
func TestWhatAGPUHasStaysWhenACallFails(t *testing.T) {
	f, s := newFake(t, gputest.Node("a100-mig", 2), Options{})
	f.gpus[0].fabric, f.gpus[1].fabric = joined, joined
	before, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	for name, code := range map[string]nvml.Return{
		"nvmlDeviceGetGpuFabricInfoV": nvml.ERROR_TIMEOUT, "nvmlDeviceGetAttributes_v2": nvml.ERROR_UNKNOWN, "nvmlDeviceGetNvLinkState": nvml.ERROR_UNKNOWN,
		"nvmlDeviceGetName of a MIG device": nvml.ERROR_IN_USE, "nvmlDeviceGetMinorNumber": nvml.ERROR_UNKNOWN,
	} {
		f.gpus[0].refuse = map[string]nvml.Return{name: code}
		s.expireFacts()
		after, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, before.Devices, after.Devices, name)
	}
	f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceGetMigMode": nvml.ERROR_NOT_SUPPORTED}
	after, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonUnreadable, after.Devices[0].Fault.Reason, "it is divided, and nobody knows how")
	require.Zero(t, after.Devices[1].Fault)
}

// A GPU whose XIDs were received, and are not any more, is not one whose driver reports none.
func TestAWatchedGPUIsNotPolledAfterAnError(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	w := start(t, s)
	f.locked(func() {
		f.gpus[0].refuse = map[string]nvml.Return{"nvmlDeviceRegisterEvents": nvml.ERROR_NOT_SUPPORTED}
	})
	f.lose(gputest.GPU(1), "calls") // so that a new event set is made
	w.until(t, gpu.EventUnwatched, gputest.GPU(0))
	f.locked(func() { f.gpus[0].refuse = nil })
	w.until(t, gpu.EventChanged, gputest.GPU(0))
}

// A driver without events, as in WSL, is polled.
func TestADriverWithoutEventsIsPolled(t *testing.T) {
	f, s := newFake(t, gputest.Node("t4", 2), Options{})
	f.setError = nvml.ERROR_NOT_SUPPORTED
	w := start(t, s)
	w.until(t, gpu.EventChanged, "")
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	for _, d := range got.Devices {
		require.Zero(t, d.Fault)
		require.Equal(t, gpu.NoteNoXIDs, d.Notes[0].Reason)
	}
	f.lose(got.Devices[0].UUID, "calls")
	w.until(t, gpu.EventLost, got.Devices[0].UUID)
}

// What does not change is not read again: each call may delay the programs on the GPU.
func TestASnapshotOfAKnownGPUTakesFewCalls(t *testing.T) {
	f, s := newFake(t, gputest.Node("h100-sxm", 1), Options{})
	for range 18 {
		f.gpus[0].links = append(f.gpus[0].links, fakeLink{kind: nvml.NVLINK_DEVICE_TYPE_SWITCH})
	}
	g, calls := f.gpus[0], func() (n int) {
		for _, count := range f.gpus[0].counts {
			n += count
		}
		return n
	}
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Greater(t, calls(), 40)
	g.counts = nil
	_, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, calls(), 8, "%v", g.counts)

	f, s = newFake(t, gputest.Node("a100-mig", 1), Options{})
	_, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	f.gpus[0].counts = nil
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, calls(), 8+7+3*len(got.Devices[0].MIG), "%v", f.gpus[0].counts)
}
