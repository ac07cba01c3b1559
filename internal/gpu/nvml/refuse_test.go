package nvml

import (
	"fmt"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// codes lists the codes with which each call is refused.
var codes = []nvml.Return{
	nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN, nvml.ERROR_NOT_FOUND,
	nvml.ERROR_IN_USE, nvml.ERROR_TIMEOUT, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_GPU_IS_LOST,
}

// offer describes what becomes of the GPU of a refused call.
type offer string

const (
	offered    offer = "offered"
	polled     offer = "offered, with a note"
	lost       offer = "GPULost"
	unreadable offer = "Unreadable"
	unwatched  offer = "Unwatched"
)

// refusals lists the calls about a GPU, with what becomes of it: by code, or for any other code but GPU_IS_LOST.
var refusals = map[string]struct {
	other  offer
	byCode map[nvml.Return]offer
}{
	// Without these nobody knows which GPU it is, or what of it may be given away.
	"nvmlDeviceGetHandleByIndex_v2":  {other: unreadable},
	"nvmlDeviceGetUUID":              {other: unreadable},
	"nvmlDeviceGetPciInfo_v3":        {other: unreadable},
	"nvmlDeviceGetMemoryInfo":        {other: unreadable, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_SUPPORTED: offered, nvml.ERROR_FUNCTION_NOT_FOUND: offered}},
	"nvmlDeviceGetMigMode":           {other: unreadable, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_SUPPORTED: offered, nvml.ERROR_FUNCTION_NOT_FOUND: offered}},
	"nvmlDeviceGetMaxMigDeviceCount": {other: unreadable},
	"nvmlDeviceGetMigDeviceHandleByIndex": {other: unreadable, byCode: map[nvml.Return]offer{
		nvml.ERROR_NOT_FOUND: offered, nvml.ERROR_INVALID_ARGUMENT: offered, // no MIG device there
	}},
	"nvmlDeviceGetUUID of a MIG device": {other: unreadable, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_FOUND: offered}}, // it was just removed
	"nvmlDeviceGetGpuInstanceId":        {other: unreadable, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_FOUND: offered}},
	"nvmlDeviceGetComputeInstanceId":    {other: unreadable, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_FOUND: offered}},
	"nvmlDeviceGetName of a MIG device": {other: unreadable, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_FOUND: offered}}, // its profile
	// Without these a GPU works.
	"nvmlDeviceGetName":                      {other: offered},
	"nvmlDeviceGetMinorNumber":               {other: offered},
	"nvmlDeviceGetCudaComputeCapability":     {other: offered},
	"nvmlDeviceGetBrand":                     {other: offered, byCode: map[nvml.Return]offer{nvml.ERROR_GPU_IS_LOST: offered}},
	"nvmlDeviceGetArchitecture":              {other: offered, byCode: map[nvml.Return]offer{nvml.ERROR_GPU_IS_LOST: offered}},
	"nvmlDeviceGetComputeMode":               {other: offered},
	"nvmlDeviceGetAttributes_v2":             {other: offered},
	"nvmlDeviceGetNvLinkState":               {other: offered},
	"nvmlDeviceGetNvLinkRemoteDeviceType":    {other: offered},
	"nvmlDeviceGetNvLinkRemotePciInfo_v2":    {other: offered},
	"nvmlDeviceGetTopologyCommonAncestor":    {other: offered, byCode: map[nvml.Return]offer{nvml.ERROR_GPU_IS_LOST: offered}}, // of either GPU
	"nvmlDeviceGetGpuFabricInfoV":            {other: offered},
	"nvmlDeviceGetFieldValues":               {other: offered},
	"nvmlDeviceGetRemappedRows":              {other: offered},
	"nvmlDeviceGetRetiredPagesPendingStatus": {other: offered},
	// Without these it is not watched: on purpose, or by an error.
	"nvmlDeviceGetSupportedEventTypes": {other: unwatched, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_SUPPORTED: polled, nvml.ERROR_FUNCTION_NOT_FOUND: polled}},
	"nvmlDeviceRegisterEvents":         {other: unwatched, byCode: map[nvml.Return]offer{nvml.ERROR_NOT_SUPPORTED: polled, nvml.ERROR_FUNCTION_NOT_FOUND: polled}},
}

// A call that is refused costs a GPU only where nobody could use the GPU without its result, and never its
// neighbour.
func TestARefusedCallCostsAtMostItsGPU(t *testing.T) {
	for name, refusal := range refusals {
		for _, code := range codes {
			want, special := refusal.byCode[code]
			switch {
			case special:
			case code == nvml.ERROR_GPU_IS_LOST:
				want = lost
			default:
				want = refusal.other
			}
			t.Run(fmt.Sprintf("%s/%d", name, code), func(t *testing.T) {
				t.Parallel()
				f, s := newFake(t, gputest.Node("a100-mig", 2), Options{ProbeInterval: time.Hour})
				a, b := f.gpus[0], f.gpus[1]
				to := func(gpu int) []fakeLink { return []fakeLink{{kind: nvml.NVLINK_DEVICE_TYPE_GPU, remote: gpu}} }
				a.links, b.links = to(1), to(0)
				if name == "nvmlDeviceGetTopologyCommonAncestor" {
					a.links, b.links = nil, nil
				}
				if name == "nvmlDeviceGetRetiredPagesPendingStatus" {
					a.refuse = map[string]nvml.Return{"nvmlDeviceGetRemappedRows": nvml.ERROR_NOT_SUPPORTED}
				} else {
					a.refuse = map[string]nvml.Return{}
				}
				a.refuse[name] = code
				first, second := offersOf(t, f, s)
				require.Equal(t, want, first)
				require.Equal(t, offered, second, "the neighbour")
				f.locked(func() { require.NotZero(t, a.counts[name], "the call is never made") })
			})
		}
	}
}

// offersOf returns what is offered of the two GPUs, after a snapshot and while they are watched.
func offersOf(t *testing.T, f *fake, s *Source) (first, second offer) {
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	w := start(t, s)
	offers := map[gpu.UUID]offer{}
	f.send(f.gpus[1].device.UUID, nvml.EventTypeXidCriticalError, 13, none, none) // after the events of the start
	for e := w.next(t); e.Kind != gpu.EventXID; e = w.next(t) {
		switch e.Kind {
		case gpu.EventUnwatched:
			offers[e.UUID] = unwatched
		case gpu.EventLost:
			offers[e.UUID] = lost
		}
	}
	got, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Devices, 2)
	of := func(d gpu.Device) offer {
		switch {
		case offers[d.UUID] != "":
			return offers[d.UUID]
		case d.Fault.Reason != "":
			return offer(d.Fault.Reason)
		case len(d.Notes) == 1 && d.Notes[0].Reason == gpu.NoteNoXIDs:
			return polled
		}
		require.Empty(t, d.Notes)
		return offered
	}
	return of(got.Devices[0]), of(got.Devices[1])
}
