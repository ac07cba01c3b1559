package nvml

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Snapshot reads the driver, all GPUs and how they are linked.
func (s *Source) Snapshot(ctx context.Context) (gpu.Snapshot, error) {
	driver, all, err := s.read(ctx)
	if err != nil {
		return gpu.Snapshot{}, err
	}
	snapshot := gpu.Snapshot{Driver: driver, Links: s.links(ctx, all)}
	for _, r := range all {
		snapshot.Devices = append(snapshot.Devices, r.Device)
	}
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, err
	}
	snapshot = snapshot.Sorted()
	s.show(snapshot.Clone().Devices)
	return snapshot, nil
}

// reading is a GPU with what only links are made of.
type reading struct {
	gpu.Device
	lanes lanes
}

// read reads the driver and all GPUs, in the order of their indexes. Those
// that cannot be read carry a Fault and what is known of them from before.
func (s *Source) read(ctx context.Context) (gpu.Driver, []reading, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Driver{}, nil, err
	}
	if err := s.open(); err != nil {
		return gpu.Driver{}, nil, err
	}
	type node struct {
		gpu.Driver
		count int
	}
	n, err := call(ctx, s.calls, "the driver", func() (node, error) {
		driver, err := s.readDriver()
		if err != nil {
			return node{}, err
		}
		count, ret := s.lib.DeviceGetCount()
		return node{driver, count}, check("nvmlDeviceGetCount", ret)
	})
	if err != nil {
		return gpu.Driver{}, nil, fmt.Errorf("reading the driver: %w", err)
	}
	all, errs := make([]reading, n.count), make([]error, n.count)
	out := s.out(n.count)
	var group sync.WaitGroup
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range n.count {
		if r, is := out[i]; is {
			all[i] = r
			continue
		}
		leave := enter(places)
		group.Go(func() {
			defer leave()
			all[i], errs[i] = call(ctx, s.calls, subject(i), func() (reading, error) { return s.readDevice(i) })
			if errs[i] != nil && all[i].UUID == "" {
				all[i].Device = gpu.Device{Index: i, NUMANode: -1, Minor: -1}
			}
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return gpu.Driver{}, nil, err
	}
	if err := s.settle(all, errs); err != nil {
		return gpu.Driver{}, nil, fmt.Errorf("reading the GPUs: %w", err)
	}
	return n.Driver, all, nil
}

// slow is how long a GPU may keep the next from being asked. One that is woken takes
// seconds, and one that hangs for ever.
const slow = 20 * time.Millisecond

// enter waits for a place, so that no more GPUs are asked at a time than can be: each
// would need a thread, and what is more urgent would wait behind all of them. Where
// none becomes free soon it goes on without.
func enter(places chan struct{}) (leave func()) {
	patience := time.NewTimer(slow)
	defer patience.Stop()
	select {
	case places <- struct{}{}:
		return func() { <-places }
	case <-patience.C:
		return func() {}
	}
}

func subject(index int) string { return fmt.Sprintf("GPU %d", index) }

func (s *Source) readDriver() (d gpu.Driver, err error) {
	version, ret := s.lib.SystemGetDriverVersion()
	if err := check("nvmlSystemGetDriverVersion", ret); err != nil {
		return d, err
	}
	own, ret := s.lib.SystemGetNVMLVersion()
	if err := check("nvmlSystemGetNVMLVersion", ret); err != nil {
		return d, err
	}
	d = gpu.Driver{Version: version, NVMLVersion: own, Simulated: s.simulated}
	if s.has["nvmlSystemGetCudaDriverVersion_v2"] {
		cuda, ret := s.lib.SystemGetCudaDriverVersion_v2()
		switch ret {
		case nvml.SUCCESS:
			d.CUDAVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10) // as cuda.h codes it: 13000
		case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NOT_SUPPORTED:
			// NVML asks libcuda, which a driver root may lack: other steps say so.
		default:
			return d, check("nvmlSystemGetCudaDriverVersion_v2", ret)
		}
	}
	return d, nil
}

// readDevice reads one GPU. With an error it returns what it had read until then.
func (s *Source) readDevice(index int) (reading, error) {
	r := reading{Device: gpu.Device{Index: index, NUMANode: -1, Minor: -1}}
	device, ret := s.lib.DeviceGetHandleByIndex(index)
	if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
		return r, err
	}
	err := firstError(
		func() error {
			id, ret := device.GetUUID()
			r.UUID = gpu.UUID(id)
			return check("nvmlDeviceGetUUID", ret)
		},
		func() error {
			address, err := pciOf(device.GetPciInfo())
			r.PCI = address
			return err
		},
		func() error {
			name, ret := device.GetName()
			r.Product = name
			return check("nvmlDeviceGetName", ret)
		},
		func() error {
			minor, ret := device.GetMinorNumber()
			r.Minor = minor
			return check("nvmlDeviceGetMinorNumber", ret)
		},
		func() error {
			memory, ret := device.GetMemoryInfo()
			r.MemoryBytes = memory.Total
			if ret == nvml.ERROR_NOT_SUPPORTED {
				return nil // GPUs whose memory is the CPU's have none to tell of
			}
			return check("nvmlDeviceGetMemoryInfo", ret)
		},
		func() error {
			major, minor, ret := device.GetCudaComputeCapability()
			r.Compute = gpu.Compute{Major: major, Minor: minor}
			return check("nvmlDeviceGetCudaComputeCapability", ret)
		},
		func() error { return s.readMIG(device, &r.Device) },
		func() error { return s.readLanes(device, &r.lanes) },
		func() error { s.readFabric(device, &r.Device); return nil },
		func() error { return s.readHealth(device, &r.Device) },
	)
	if err != nil {
		return r, err
	}
	r.NUMANode = s.numa(r.PCI, device)
	return r, nil
}

func firstError(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// pciOf returns the address of a PCI device. NVML's busId is an array whose
// element type changed between versions of go-nvml: it is read here only.
func pciOf(info nvml.PciInfo, ret nvml.Return) (gpu.PCIAddress, error) {
	if err := check("nvmlDeviceGetPciInfo", ret); err != nil {
		return "", err
	}
	text := make([]byte, 0, len(info.BusId))
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return gpu.ParsePCIAddress(string(text))
}
