package nvml

import (
	"cmp"
	"context"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ReadUsage reads who uses each GPU without a fault and each of their MIG devices. A device is absent
// if the driver does not answer, or if another GPU has its index now.
func (s *Source) ReadUsage(ctx context.Context, devices []gpu.Device) map[gpu.UUID]gpu.Usage {
	all := map[gpu.UUID]gpu.Usage{}
	if s.checkOpen() != nil {
		return all
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, d := range devices {
		if d.Fault != (gpu.Fault{}) {
			continue
		}
		leave := acquireSlot(slots)
		group.Go(func() {
			defer leave()
			// calls counts the error; a GPU that cannot be read is absent.
			found, _ := call(ctx, s.calls, "the processes of "+string(d.UUID), func() (map[gpu.UUID]gpu.Usage, error) { return s.readUsage(d) })
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(all, found)
		})
	}
	group.Wait()
	return all
}

// readUsage reads one GPU and its MIG devices.
func (s *Source) readUsage(d gpu.Device) (map[gpu.UUID]gpu.Usage, error) {
	device, ret := s.lib.DeviceGetHandleByIndex(d.Index)
	if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
		return nil, err
	}
	id, ret := device.GetUUID()
	if err := check("nvmlDeviceGetUUID", ret); err != nil || gpu.UUID(id) != d.UUID {
		return nil, err
	}
	listed := s.listProcesses(device)
	whole := readDeviceUsage(device, listed)
	if s.has["nvmlDeviceGetComputeMode"] {
		if mode, ret := device.GetComputeMode(); ret == nvml.SUCCESS {
			whole.Mode = gpu.ComputeMode(mode)
		}
	}
	all := map[gpu.UUID]gpu.Usage{d.UUID: whole}
	for _, m := range d.MIG {
		handle, ret := device.GetMigDeviceHandleByIndex(m.Index)
		if ret != nvml.SUCCESS {
			continue // removed since
		}
		if id, ret := handle.GetUUID(); ret != nvml.SUCCESS || gpu.UUID(id) != m.UUID {
			continue
		}
		own := s.listProcesses(handle)
		if len(own) == 0 { // some drivers list them at the GPU only
			own = slices.DeleteFunc(slices.Clone(listed), func(p process) bool {
				return p.GpuInstanceId != uint32(m.GPUInstance) || p.ComputeInstanceId != uint32(m.ComputeInstance)
			})
		}
		all[m.UUID] = readDeviceUsage(handle, own)
	}
	return all, nil
}

// process is a process as NVML lists it.
type process struct {
	nvml.ProcessInfo
	graphics bool
}

// processLists are the functions that list processes, in all their versions. go-nvml calls the newest one
// that the library has.
var processLists = []struct {
	versions []string
	read     func(nvml.Device) ([]nvml.ProcessInfo, nvml.Return)
	graphics bool
}{
	{versionsOf("nvmlDeviceGetComputeRunningProcesses"), nvml.Device.GetComputeRunningProcesses, false},
	{versionsOf("nvmlDeviceGetMPSComputeRunningProcesses"), nvml.Device.GetMPSComputeRunningProcesses, false},
	{versionsOf("nvmlDeviceGetGraphicsRunningProcesses"), nvml.Device.GetGraphicsRunningProcesses, true}, // last: what also computes is known by then
}

func versionsOf(symbol string) []string { return []string{symbol, symbol + "_v2", symbol + "_v3"} }

// listProcesses lists the processes of a GPU or MIG device. Where the driver lists none, there are none.
func (s *Source) listProcesses(device nvml.Device) (all []process) {
	for _, l := range processLists {
		if !slices.ContainsFunc(l.versions, func(symbol string) bool { return s.has[symbol] }) {
			continue
		}
		found, ret := l.read(device)
		if ret != nvml.SUCCESS {
			continue
		}
		for _, p := range found {
			if !slices.ContainsFunc(all, func(known process) bool {
				return known.Pid == p.Pid && known.GpuInstanceId == p.GpuInstanceId && known.ComputeInstanceId == p.ComputeInstanceId
			}) {
				all = append(all, process{p, l.graphics})
			}
		}
	}
	return all
}

// readDeviceUsage returns the usage of a GPU or MIG device with these processes. Memory that the driver does
// not report is absent.
func readDeviceUsage(device nvml.Device, processes []process) gpu.Usage {
	var u gpu.Usage
	for _, p := range processes {
		one := gpu.Process{PID: p.Pid, Memory: p.UsedGpuMemory, Graphics: p.graphics}
		if one.Memory == math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
			one.Memory = 0
		}
		u.Processes = append(u.Processes, one)
	}
	slices.SortFunc(u.Processes, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	if memory, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
		u.MemorySize, u.MemoryFree = memory.Total, memory.Free
	}
	return u
}
