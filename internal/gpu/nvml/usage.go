package nvml

import (
	"cmp"
	"context"
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
			found, _ := call(ctx, s.calls, "the processes of "+subject(d.Index), func() (map[gpu.UUID]gpu.Usage, error) { return s.readUsage(d) })
			mu.Lock()
			defer mu.Unlock()
			for id, u := range found {
				all[id] = u
			}
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
	whole := s.readDeviceUsage(device)
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
		if id, ret := handle.GetUUID(); ret == nvml.SUCCESS && gpu.UUID(id) == m.UUID {
			all[m.UUID] = s.readDeviceUsage(handle)
		}
	}
	return all, nil
}

const graphicsProcesses = "nvmlDeviceGetGraphicsRunningProcesses"

// readDeviceUsage reads the processes and the memory of a GPU or MIG device. What the driver does not
// report is absent.
func (s *Source) readDeviceUsage(device nvml.Device) gpu.Usage {
	var u gpu.Usage
	for _, list := range []struct {
		symbol string // the first version, which every library with a later one has
		read   func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", device.GetComputeRunningProcesses},
		{"nvmlDeviceGetMPSComputeRunningProcesses", device.GetMPSComputeRunningProcesses},
		{graphicsProcesses, device.GetGraphicsRunningProcesses}, // last: what also computes is known by then
	} {
		if !s.has[list.symbol] {
			continue
		}
		found, ret := list.read()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, p := range found {
			if slices.ContainsFunc(u.Processes, func(known gpu.Process) bool { return known.PID == p.Pid }) {
				continue
			}
			one := gpu.Process{PID: p.Pid, Memory: p.UsedGpuMemory, Graphics: list.symbol == graphicsProcesses}
			if one.Memory == math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
				one.Memory = 0
			}
			u.Processes = append(u.Processes, one)
		}
	}
	slices.SortFunc(u.Processes, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	if memory, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
		u.MemorySize, u.MemoryFree = memory.Total, memory.Free
	}
	return u
}
