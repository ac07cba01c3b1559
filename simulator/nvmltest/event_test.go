package nvmltest

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/state"
)

// long is a deadline that only a failure reaches.
const long = 60_000

func xid(gpu int, number uint64) state.Event {
	return state.Event{Type: nvml.EventTypeXidCriticalError, Data: number, Gpu: uint32(gpu), Gi: state.None, Ci: state.None}
}

func registered(t *testing.T, lib nvml.Interface, gpus ...int) nvml.EventSet {
	t.Helper()
	set := must[nvml.EventSet](t)(lib.EventSetCreate())
	for _, gpu := range gpus {
		require.Equal(t, nvml.SUCCESS, handle(t, lib, gpu).RegisterEvents(nvml.EventTypeXidCriticalError, set))
	}
	return set
}

func TestAnEventReachesEveryRegisteredSetOnce(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		m.emit(t, xid(0, 13)) // before registration: nobody's
		both, second := registered(t, lib, 0, 1), registered(t, lib, 1)
		m.emit(t, xid(2, 14), xid(0, 48), xid(1, 79))
		for _, want := range []state.Event{xid(0, 48), xid(1, 79)} {
			got := must[nvml.EventData](t)(both.Wait(long))
			require.Equal(t, handle(t, lib, int(want.Gpu)), got.Device)
			require.EqualValues(t, want.Data, got.EventData)
			require.EqualValues(t, nvml.EventTypeXidCriticalError, got.EventType)
			require.EqualValues(t, state.None, got.GpuInstanceId)
		}
		require.EqualValues(t, 79, must[nvml.EventData](t)(second.Wait(long)).EventData)
		for _, set := range []nvml.EventSet{both, second} {
			_, ret := set.Wait(0)
			require.Equal(t, nvml.ERROR_TIMEOUT, ret)
			require.Equal(t, nvml.SUCCESS, set.Free())
			require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, set.Free())
		}
	})
}

func TestASleepingWaiterIsWokenByAnEvent(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		set := registered(t, lib, 0)
		got := make(chan nvml.EventData)
		for number := range uint64(50) {
			go func() {
				data, _ := set.Wait(long)
				got <- data
			}()
			if number%2 == 0 { // half of them while it surely sleeps, half in a race with it
				time.Sleep(2 * time.Millisecond)
			}
			m.emit(t, xid(0, number))
			require.Equal(t, number, (<-got).EventData)
		}
	})
}

func TestAWaitKeepsToItsTimeoutWhateverElseChanges(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		set := registered(t, lib, 0)
		type result struct {
			ret  nvml.Return
			took time.Duration
		}
		done := make(chan result)
		go func() {
			start := time.Now()
			_, ret := set.Wait(300)
			done <- result{ret, time.Since(start)}
		}()
		for temperature := uint32(0); ; temperature++ {
			select {
			case got := <-done:
				require.Equal(t, nvml.ERROR_TIMEOUT, got.ret)
				require.GreaterOrEqual(t, got.took, 300*time.Millisecond)
				return
			default:
				m.change(t, func(s *state.State) { s.Gpu[0].Temperature = temperature })
			}
		}
	})
}

func TestFreeingASetEndsItsWaits(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		for range 50 {
			set := registered(t, lib, 0)
			results := make(chan nvml.Return)
			for range 3 {
				go func() {
					_, ret := set.Wait(long)
					results <- ret
				}()
			}
			require.Equal(t, nvml.SUCCESS, set.Free())
			for range 3 {
				require.Equal(t, nvml.ERROR_INVALID_ARGUMENT, <-results)
			}
		}
	})
}

func TestEventsOfMIGInstancesNameThem(t *testing.T) {
	alone(t, "a100-80gb", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		set := registered(t, lib, 0)
		event := xid(0, 31)
		event.Gi, event.Ci = 7, 0
		m.emit(t, event)
		got := must[nvml.EventData](t)(set.Wait(long))
		require.Equal(t, []uint32{7, 0}, []uint32{got.GpuInstanceId, got.ComputeInstanceId})
	})
}

func TestASlowReaderGetsTheLatestEvents(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		set := registered(t, lib, 0)
		const n = state.MaxEvents + 40
		for number := range uint64(n) {
			m.emit(t, xid(0, number))
		}
		for want := uint64(n - state.MaxEvents); want < n; want++ {
			require.Equal(t, want, must[nvml.EventData](t)(set.Wait(0)).EventData)
		}
		_, ret := set.Wait(0)
		require.Equal(t, nvml.ERROR_TIMEOUT, ret)
	})
}

func TestEventCallsFailAsConfigured(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		set := registered(t, lib, 0)
		m.change(t, func(s *state.State) { s.EventError = uint32(nvml.ERROR_UNKNOWN) })
		_, ret := set.Wait(long)
		require.Equal(t, nvml.ERROR_UNKNOWN, ret)
		require.Equal(t, nvml.ERROR_UNKNOWN, handle(t, lib, 0).RegisterEvents(nvml.EventTypeXidCriticalError, set))
		_, ret = lib.EventSetCreate()
		require.Equal(t, nvml.ERROR_UNKNOWN, ret)
		m.change(t, func(s *state.State) { s.EventError = 0 })
		require.Equal(t, nvml.ERROR_NOT_SUPPORTED, handle(t, lib, 0).RegisterEvents(nvml.EventMigConfigChange, set))
	})
}
