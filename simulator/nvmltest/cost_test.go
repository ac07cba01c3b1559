package nvmltest

import (
	"encoding/binary"
	"math"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/simulator/state"
)

// A price is a lower bound, which no machine is too busy to keep. What must not
// be paid is looked for in the quickest of some tries.
const price = 20 * time.Millisecond

func measure(do func()) time.Duration {
	began := time.Now()
	do()
	return time.Since(began)
}

func quickest(do func()) time.Duration {
	least := measure(do)
	for range 9 {
		least = min(least, measure(do))
	}
	return least
}

func costs(init, call time.Duration) func(*state.State) {
	return func(s *state.State) { s.InitCostNs, s.CallCostNs = uint64(init), uint64(call) }
}

func TestInitTakesTheConfiguredTimeOnce(t *testing.T) {
	alone(t, "t4", func(m machine) { m.change(t, costs(price, 0)) }, func(t *testing.T, m machine, lib nvml.Interface) {
		start := func() { require.Equal(t, nvml.SUCCESS, lib.Init()) }
		stop := func() { require.Equal(t, nvml.SUCCESS, lib.Shutdown()) }
		require.GreaterOrEqual(t, measure(start), price)
		require.Less(t, quickest(func() { start(); stop() }), price, "NVML was initialised already")
		stop()
		require.GreaterOrEqual(t, measure(start), price, "a new beginning costs anew")
		stop()

		m.change(t, func(s *state.State) { s.InitError, s.CallCostNs = uint32(nvml.ERROR_IRQ_ISSUE), uint64(price) })
		require.Less(t, quickest(func() { require.Equal(t, nvml.ERROR_IRQ_ISSUE, lib.Init()) }), price, "what fails opens no GPU")
		require.Less(t, quickest(func() { _, _ = lib.DeviceGetCount() }), price, "NVML is not initialised")
	})
}

func TestEveryCallTakesTheConfiguredTime(t *testing.T) {
	alone(t, "a100-80gb", func(m machine) { m.change(t, costs(0, price)) }, func(t *testing.T, m machine, lib nvml.Interface) {
		free := func(what string, do func()) {
			t.Helper()
			require.Less(t, quickest(do), price, what)
		}
		free("nvmlInit has a price of its own", func() { require.Equal(t, nvml.SUCCESS, lib.Init()) })
		free("a table of the library's", func() { _ = lib.ErrorString(nvml.ERROR_UNKNOWN) })
		device := handle(t, lib, 0)
		set := must[nvml.EventSet](t)(lib.EventSetCreate())
		for name, call := range map[string]func(){
			"count":            func() { _, _ = lib.DeviceGetCount() },
			"a number":         func() { _, _ = device.GetMinorNumber() },
			"a string":         func() { _, _ = device.GetUUID() },
			"a bad argument":   func() { _, _ = lib.DeviceGetHandleByIndex(99) },
			"not supported":    func() { _, _ = device.GetBridgeChipInfo() },
			"events":           func() { _, _ = set.Wait(0) },
			"driver's version": func() { _, _ = lib.SystemGetDriverVersion() },
		} {
			require.GreaterOrEqual(t, measure(call), price, name)
		}

		m.change(t, costs(0, 0))
		free("the price has gone", func() { _, _ = device.GetUUID() })
		m.change(t, costs(0, price))
		require.GreaterOrEqual(t, measure(func() { _, _ = device.GetUUID() }), price, "it is back")
		require.GreaterOrEqual(t, measure(func() { _ = lib.Shutdown() }), price)
	})
}

func TestACallThatUsesOthersIsPaidOnce(t *testing.T) {
	alone(t, "a100-80gb", func(m machine) { m.change(t, costs(0, price)) }, func(t *testing.T, _ machine, lib nvml.Interface) {
		initialised(t, lib)
		device := handle(t, lib, 0)
		values := make([]nvml.FieldValue, 100)
		for i := range values {
			values[i].FieldId = nvml.FI_DEV_ECC_SBE_VOL_TOTAL
		}
		least := quickest(func() { require.Equal(t, nvml.SUCCESS, device.GetFieldValues(values)) })
		require.GreaterOrEqual(t, least, price)
		require.Less(t, least, 50*price)
		require.EqualValues(t, nvml.SUCCESS, values[99].NvmlReturn)
	})
}

func TestThreadsDoNotPayForOneAnother(t *testing.T) {
	alone(t, "t4", func(m machine) { m.change(t, costs(0, price)) }, func(t *testing.T, _ machine, lib nvml.Interface) {
		initialised(t, lib)
		device := handle(t, lib, 0)
		least := quickest(func() {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { _, _ = device.GetUUID() })
			}
			all.Wait()
		})
		require.GreaterOrEqual(t, least, price)
		require.Less(t, least, 10*price)
	})
}

func TestExcessiveCostIsIgnored(t *testing.T) {
	alone(t, "t4", func(m machine) {
		// gpusim writes no such thing, so it is written behind its back.
		var s state.State
		slot := int64(state.Size) - 2*int64(unsafe.Sizeof(s))
		f, err := os.OpenFile(m.statePath(), os.O_RDWR, 0)
		require.NoError(t, err)
		most := binary.LittleEndian.AppendUint64(nil, math.MaxUint64)
		for _, offset := range []uintptr{unsafe.Offsetof(s.InitCostNs), unsafe.Offsetof(s.CallCostNs)} {
			_, err = f.WriteAt(most, slot+int64(offset))
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	}, func(t *testing.T, _ machine, lib nvml.Interface) {
		initialised(t, lib)
		require.Equal(t, 1, must[int](t)(lib.DeviceGetCount()))
	})
}
