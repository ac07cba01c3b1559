package nvml

import (
	"context"
	"runtime"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ReadTelemetry reads what the devices measure now, each in a call of its own, several at a time.
// The results are in the order of devices. A result is empty if the GPU is released, if another GPU
// has its index now, or if it has not answered when ctx ends. A GPU that hangs delays the others by
// at most slotWait. Quantities that a GPU or its driver does not report are absent.
func (s *Source) ReadTelemetry(ctx context.Context, devices []gpu.Device) []gpu.Telemetry {
	all := make([]gpu.Telemetry, len(devices))
	if s.checkOpen() != nil {
		return all
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, d := range devices {
		leave := acquireSlot(slots)
		group.Go(func() {
			defer leave()
			// A separate subject: while this call waits, the GPU does not count as hanging where its
			// health is read. calls counts the error.
			all[i], _ = call(ctx, s.calls, "the telemetry of "+string(d.UUID), func() (t gpu.Telemetry, err error) {
				// Check again: the source may have been closed, or the GPU released, while the call
				// waited to begin. Once it has begun, NVML is not shut down.
				if open := s.checkOpen() == nil; !open || s.isReleased(d.UUID) {
					return t, nil
				}
				return s.readTelemetry(d)
			})
		})
	}
	group.Wait()
	return all
}

// readTelemetry reads one GPU. It gets the handle by the index, since a search by UUID may open
// other GPUs (nvml.h at nvmlDeviceGetHandleByUUID), among them a released one. With an error it
// returns what could be read.
func (s *Source) readTelemetry(d gpu.Device) (gpu.Telemetry, error) {
	device, ret := s.lib.DeviceGetHandleByIndex(d.Index)
	if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
		return gpu.Telemetry{}, err
	}
	id, ret := device.GetUUID()
	if err := check("nvmlDeviceGetUUID", ret); err != nil || gpu.UUID(id) != d.UUID {
		return gpu.Telemetry{}, err
	}
	m := &measurement{s: s, device: device, values: gpu.Measurement{}}
	m.readMemory()
	m.readLoad()
	m.readErrors()
	t, err := gpu.Telemetry{GPU: m.values}, m.err
	for _, mig := range d.MIG {
		handle, ret := device.GetMigDeviceHandleByIndex(mig.Index)
		if ret != nvml.SUCCESS {
			continue // removed since
		}
		if id, ret := handle.GetUUID(); ret != nvml.SUCCESS || gpu.UUID(id) != mig.UUID {
			continue
		}
		part := &measurement{s: s, device: handle, values: gpu.Measurement{}, err: err}
		part.readMemory()
		if t.MIG == nil {
			t.MIG = map[gpu.UUID]gpu.Measurement{}
		}
		t.MIG[mig.UUID], err = part.values, part.err
	}
	return t, err
}

// measurement reads a GPU or MIG device.
type measurement struct {
	s      *Source
	device nvml.Device
	values gpu.Measurement
	err    error // the first failed call
}

// read makes a call of NVML. It reports whether there was a result.
func (m *measurement) read(name string, fn func() nvml.Return) bool {
	ok, err := m.s.callOptional(name, fn)
	if m.err == nil {
		m.err = err
	}
	return ok
}

// number reads a quantity.
func (m *measurement) number(q gpu.Quantity, name string, fn func() (uint32, nvml.Return)) {
	var value uint32
	if m.read(name, func() (ret nvml.Return) { value, ret = fn(); return ret }) {
		m.values[q] = uint64(value)
	}
}

func (m *measurement) readMemory() {
	const version2 = "nvmlDeviceGetMemoryInfo_v2" // from R510 on; it reports reserved memory separately
	if m.s.has[version2] {
		var memory nvml.Memory_v2
		if m.read(version2, func() (ret nvml.Return) { memory, ret = m.device.GetMemoryInfo_v2(); return ret }) {
			m.setMemory(memory.Total, memory.Used, memory.Free)
			m.values[gpu.MemoryReserved] = memory.Reserved
		}
		return
	}
	memory, ret := m.device.GetMemoryInfo()
	if ret == nvml.SUCCESS {
		m.setMemory(memory.Total, memory.Used, memory.Free)
	}
}

func (m *measurement) setMemory(size, used, free uint64) {
	m.values[gpu.MemorySize], m.values[gpu.MemoryUsed], m.values[gpu.MemoryFree] = size, used, free
}

// readLoad reads the quantities that change with the load: utilisation, temperature, power, clocks.
func (m *measurement) readLoad() {
	var busy nvml.Utilization
	if m.read("nvmlDeviceGetUtilizationRates", func() (ret nvml.Return) { busy, ret = m.device.GetUtilizationRates(); return ret }) {
		m.values[gpu.Utilization], m.values[gpu.MemoryUtilization] = uint64(busy.Gpu), uint64(busy.Memory)
	}
	m.number(gpu.Temperature, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return m.device.GetTemperature(nvml.TEMPERATURE_GPU) })
	m.number(gpu.Power, "nvmlDeviceGetPowerUsage", m.device.GetPowerUsage)
	m.number(gpu.PowerLimit, "nvmlDeviceGetEnforcedPowerLimit", m.device.GetEnforcedPowerLimit)
	m.number(gpu.SMClock, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return m.device.GetClockInfo(nvml.CLOCK_SM) })
	m.number(gpu.MemoryClock, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return m.device.GetClockInfo(nvml.CLOCK_MEM) })
}

// readErrors reads the counters of memory errors. There are none where ECC is off.
func (m *measurement) readErrors() {
	for _, c := range []struct {
		quantity gpu.Quantity
		kind     nvml.MemoryErrorType
		since    nvml.EccCounterType
	}{
		{gpu.ECCVolatileCorrected, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC},
		{gpu.ECCVolatileUncorrected, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC},
		{gpu.ECCAggregateCorrected, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC},
		{gpu.ECCAggregateUncorrected, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC},
	} {
		var count uint64
		if m.read("nvmlDeviceGetTotalEccErrors", func() (ret nvml.Return) { count, ret = m.device.GetTotalEccErrors(c.kind, c.since); return ret }) {
			m.values[c.quantity] = count
		}
	}
	var corrected, uncorrected int
	if m.read("nvmlDeviceGetRemappedRows", func() (ret nvml.Return) {
		corrected, uncorrected, _, _, ret = m.device.GetRemappedRows()
		return ret
	}) {
		m.values[gpu.RemappedRowsCorrected], m.values[gpu.RemappedRowsUncorrected] = uint64(corrected), uint64(uncorrected)
	}
}
