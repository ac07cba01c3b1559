package nvml

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
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
	s.keepSnapshot(snapshot.Clone().Devices)
	return snapshot, nil
}

// reading is a GPU with the data for computing links.
type reading struct {
	gpu.Device
	lanes lanes
}

// read reads the driver and all GPUs, in the order of their indexes. A GPU that cannot
// be read has a Fault and the data of its last successful read.
func (s *Source) read(ctx context.Context) (gpu.Driver, []reading, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Driver{}, nil, err
	}
	if err := s.checkOpen(); err != nil {
		return gpu.Driver{}, nil, err
	}
	n, err := s.readNode(ctx)
	if err != nil {
		return gpu.Driver{}, nil, fmt.Errorf("reading the driver: %w", err)
	}
	all, errs := s.readDevices(ctx, n.count)
	// When a GPU leaves the bus or returns, the indexes of its neighbours shift: some would be
	// read twice and others not at all.
	for range maxRereads {
		before := n.count
		if n, err = s.readNode(ctx); err != nil {
			return gpu.Driver{}, nil, fmt.Errorf("reading the driver: %w", err)
		}
		if n.count == before {
			break
		}
		all, errs = s.readDevices(ctx, n.count)
	}
	if err := ctx.Err(); err != nil {
		return gpu.Driver{}, nil, err
	}
	if err := s.settle(all, errs); err != nil {
		return gpu.Driver{}, nil, fmt.Errorf("reading the GPUs: %w", err)
	}
	return n.Driver, all, nil
}

// maxRereads bounds how often the GPUs are read again because their number has changed meanwhile.
const maxRereads = 3

// node is the driver and the number of its GPUs.
type node struct {
	gpu.Driver
	count int
}

func (s *Source) readNode(ctx context.Context) (node, error) {
	return call(ctx, s.calls, "the driver", func() (node, error) {
		driver, err := s.readDriver()
		if err != nil {
			return node{}, err
		}
		count, ret := s.lib.DeviceGetCount()
		return node{driver, count}, check("nvmlDeviceGetCount", ret)
	})
}

// readDevices reads the GPUs of the indexes below count.
func (s *Source) readDevices(ctx context.Context, count int) ([]reading, []error) {
	all, errs := make([]reading, count), make([]error, count)
	released := s.released(count)
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range count {
		if r, ok := released[i]; ok {
			all[i] = r
			continue
		}
		leave := acquireSlot(slots)
		group.Go(func() {
			defer leave()
			all[i], errs[i] = call(ctx, s.calls, subject(i), func() (reading, error) { return s.readDevice(i) })
			if errs[i] != nil && all[i].UUID == "" {
				all[i].Device = gpu.Device{Index: i, NUMANode: -1, Minor: -1}
			}
		})
	}
	group.Wait()
	return all, errs
}

// slotWait bounds the time that a slow GPU delays the read of the next. A GPU being
// initialised takes seconds, and one that hangs never returns.
const slotWait = 20 * time.Millisecond

// acquireSlot waits for a slot, so that no more GPUs are read at a time than there are
// CPUs: each read needs a thread, and more urgent work would wait behind all of them.
// If no slot becomes free in time, it returns without one.
func acquireSlot(slots chan struct{}) (leave func()) {
	patience := time.NewTimer(slotWait)
	defer patience.Stop()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }
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
			// NVML asks libcuda, which a driver root may lack: other steps report that.
		default:
			return d, check("nvmlSystemGetCudaDriverVersion_v2", ret)
		}
	}
	return d, nil
}

// readDevice reads one GPU. With an error it returns the data read until then.
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
				return nil // GPUs that use the CPU's memory have none of their own
			}
			return check("nvmlDeviceGetMemoryInfo", ret)
		},
		func() error {
			major, minor, ret := device.GetCudaComputeCapability()
			r.Compute = gpu.Compute{Major: major, Minor: minor}
			return check("nvmlDeviceGetCudaComputeCapability", ret)
		},
		func() error { s.readModel(device, &r.Device); return nil },
		func() error { s.readComputeMode(device, &r.Device); return nil },
		func() error { return s.readMIG(device, &r.Device) },
		func() error { return s.readPartitions(device, &r.Device) },
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

// readModel reads brand, architecture and addressing mode. A driver newer than go-nvlib may report others than
// go-nvlib can name; they are then not known, which is no fault of the GPU.
func (s *Source) readModel(handle nvml.Device, d *gpu.Device) {
	if !s.hasAll("nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture") {
		return
	}
	if named, err := device.New(s.lib, device.WithVerifySymbols(false)).NewDevice(handle); err == nil {
		d.Brand, _ = named.GetBrandAsString()
		d.Architecture, _ = named.GetArchitectureAsString()
		if s.has["nvmlDeviceGetAddressingMode"] {
			d.AddressingMode, _ = named.GetAddressingModeAsString()
		}
	}
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
