package nvmltest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/state"
)

// refuse has a call answer with a code after a delay; neither ends it.
func refuse(t *testing.T, m machine, call string, gpu uint32, code nvml.Return, delay time.Duration) {
	t.Helper()
	m.change(t, func(s *state.State) { require.NoError(t, s.SetRules([]string{call}, gpu, uint32(code), delay)) })
}

func TestEachCallCanBeRefused(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		refuse(t, m, "nvmlInitWithFlags", state.None, nvml.ERROR_UNKNOWN, 0)
		require.Equal(t, nvml.ERROR_UNKNOWN, lib.InitWithFlags(0), "also before NVML is initialised")
		refuse(t, m, "nvmlInitWithFlags", state.None, nvml.SUCCESS, 0)
		initialised(t, lib)
		device := handle(t, lib, 1)
		set := must[nvml.EventSet](t)(lib.EventSetCreate())
		for call, do := range map[string]func() nvml.Return{
			"nvmlDeviceGetCount_v2":               func() nvml.Return { _, ret := lib.DeviceGetCount(); return ret },
			"nvmlDeviceGetHandleByIndex_v2":       func() nvml.Return { _, ret := lib.DeviceGetHandleByIndex(1); return ret },
			"nvmlSystemGetDriverVersion":          func() nvml.Return { _, ret := lib.SystemGetDriverVersion(); return ret },
			"nvmlDeviceGetUUID":                   func() nvml.Return { _, ret := device.GetUUID(); return ret },
			"nvmlDeviceGetMemoryInfo_v2":          func() nvml.Return { _, ret := device.GetMemoryInfo_v2(); return ret },
			"nvmlDeviceGetTopologyCommonAncestor": func() nvml.Return { _, ret := device.GetTopologyCommonAncestor(device); return ret },
			"nvmlDeviceGetMaxMigDeviceCount":      func() nvml.Return { _, ret := device.GetMaxMigDeviceCount(); return ret },
			"nvmlDeviceGetGpuInstanceRemainingCapacity": func() nvml.Return {
				_, ret := device.GetGpuInstanceRemainingCapacity(&nvml.GpuInstanceProfileInfo{Id: 19})
				return ret
			},
			"nvmlDeviceGetBridgeChipInfo": func() nvml.Return { _, ret := device.GetBridgeChipInfo(); return ret }, // a stub
			"nvmlDeviceRegisterEvents":    func() nvml.Return { return device.RegisterEvents(nvml.EventTypeXidCriticalError, set) },
			"nvmlEventSetWait_v2":         func() nvml.Return { _, ret := set.Wait(0); return ret },
			"nvmlShutdown":                lib.Shutdown,
		} {
			before := nvml.SUCCESS
			if call != "nvmlShutdown" {
				before = do()
			}
			refuse(t, m, call, state.None, nvml.ERROR_IRQ_ISSUE, 0)
			require.Equal(t, nvml.ERROR_IRQ_ISSUE, do(), call)
			refuse(t, m, call, state.None, nvml.SUCCESS, 0)
			if call != "nvmlShutdown" {
				require.Equal(t, before, do(), call)
			}
		}
	})
}

func TestACallIsRefusedForOneGPU(t *testing.T) {
	alone(t, "h100-sxm", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		refuse(t, m, "nvmlDeviceGetNvLinkState", 3, nvml.ERROR_UNKNOWN, 0)
		for i := range 8 {
			want := nvml.SUCCESS
			if i == 3 {
				want = nvml.ERROR_UNKNOWN
			}
			_, ret := handle(t, lib, i).GetNvLinkState(0)
			require.Equal(t, want, ret, i)
		}
		// What others ask with is not taken for it: nvmlDeviceGetNvLinkRemotePciInfo asks for the link's state itself.
		_, ret := handle(t, lib, 3).GetNvLinkRemotePciInfo(0)
		require.Equal(t, nvml.SUCCESS, ret)
	})
}

func TestACallHangsUntilItMayGoOn(t *testing.T) {
	alone(t, "t4", nil, func(t *testing.T, m machine, lib nvml.Interface) {
		initialised(t, lib)
		device := handle(t, lib, 0)
		refuse(t, m, "nvmlDeviceGetUUID", 0, nvml.ERROR_TIMEOUT, price)
		require.GreaterOrEqual(t, measure(func() {
			_, ret := device.GetUUID()
			require.Equal(t, nvml.ERROR_TIMEOUT, ret)
		}), price)
		refuse(t, m, "nvmlDeviceGetUUID", 0, nvml.SUCCESS, 0)

		refuse(t, m, "nvmlDeviceGetUUID", state.None, nvml.SUCCESS, time.Hour)
		answered := make(chan nvml.Return)
		go func() { _, ret := device.GetUUID(); answered <- ret }()
		select {
		case ret := <-answered:
			require.FailNow(t, "it does not hang", ret)
		case <-time.After(price):
		}
		_, ret := device.GetMinorNumber()
		require.Equal(t, nvml.SUCCESS, ret, "others do not")
		refuse(t, m, "nvmlDeviceGetUUID", state.None, nvml.SUCCESS, 0)
		require.Equal(t, nvml.SUCCESS, <-answered)
	})
}

func TestCallsAreCounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "calls")
	require.NoError(t, os.WriteFile(file, make([]byte, 16), 0o600))
	t.Setenv("GPUSIM_CALLS", file)
	alone(t, "h100-sxm", nil, func(t *testing.T, _ machine, lib nvml.Interface) {
		count := func() (all, waits uint64) {
			data, err := os.ReadFile(os.Getenv("GPUSIM_CALLS"))
			require.NoError(t, err)
			return binary.NativeEndian.Uint64(data), binary.NativeEndian.Uint64(data[8:])
		}
		initialised(t, lib)
		device := handle(t, lib, 0)
		set := must[nvml.EventSet](t)(lib.EventSetCreate())
		before, waits := count()
		require.NotZero(t, before)
		require.Zero(t, waits)
		_, _ = device.GetUUID()
		_ = device.GetFieldValues(make([]nvml.FieldValue, 9)) // one, whatever it asks
		_, _ = device.GetBridgeChipInfo()
		_, _ = set.Wait(0)
		all, waits := count()
		require.Equal(t, []uint64{before + 4, 1}, []uint64{all, waits})
	})
}
