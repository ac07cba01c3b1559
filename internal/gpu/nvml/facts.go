package nvml

import (
	"maps"
	"time"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Facts are kept for factsLast, or for factsRetry if some could not be read. They are read again earlier after
// an event and after a failure of the GPU.
const (
	factsLast  = 5 * time.Minute
	factsRetry = 30 * time.Second
)

// maxMIGFacts bounds the MIG devices of a GPU that are remembered, including those that are gone.
const maxMIGFacts = 256

// facts holds what does not change about a GPU while nobody touches the machine. To read them takes up to 50
// calls, each of which may delay the programs on the GPU, so they are not read with each snapshot.
type facts struct {
	until time.Time // when they are to be read again
	index int       // of the GPU: another may have its UUID

	pci         gpu.PCIAddress
	product     string
	brand       string
	arch        string
	addressing  string
	minor       int // -1: not known
	memoryBytes uint64
	compute     gpu.Compute
	numa        int // -1: not known
	lanes       lanes
	noXIDs      bool // the driver supports no events of the GPU, or no XIDs among them
	maxMIG      int  // the highest number of MIG devices; 0: not known

	// The maps are shared by all copies and guarded by Source.mu.
	mig         map[gpu.UUID]migFacts // by MIG device
	unsupported map[string]bool       // the calls that the GPU does not support
}

// migFacts holds what does not change about a MIG device.
type migFacts struct {
	// The attributes and the GPU instance are read each time: where they differ, it is another MIG device.
	attributes      nvml.DeviceAttributes
	gpuInstance     int
	computeInstance int
	profile         string
}

// factsOf returns the facts of a GPU. Those that cannot be read are as they were before. An error means that
// the GPU cannot be used.
func (s *Source) factsOf(id gpu.UUID, index int, handle nvml.Device) (facts, error) {
	s.mu.Lock()
	f, known := s.memory.facts[id]
	epoch := s.memory.epoch
	s.mu.Unlock()
	if known && f.index == index && time.Now().Before(f.until) {
		return f, nil
	}
	if !known || f.index != index {
		f = facts{index: index, minor: -1, numa: -1}
	}
	f.maxMIG, f.unsupported = 0, map[string]bool{}
	s.mu.Lock()
	if f.mig == nil || len(f.mig) > maxMIGFacts {
		f.mig = map[gpu.UUID]migFacts{}
	}
	// The others stay: what they belong to is read each time.
	maps.DeleteFunc(f.mig, func(_ gpu.UUID, m migFacts) bool { return m.attributes == nvml.DeviceAttributes{} })
	s.mu.Unlock()
	complete, err := s.readFacts(handle, &f)
	if err != nil {
		return f, err
	}
	f.until = time.Now().Add(factsRetry)
	if complete {
		f.until = time.Now().Add(factsLast)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.memory.epoch != epoch {
		f.until = time.Time{}
	}
	s.memory.facts[id] = f
	return f, nil
}

// expireFacts makes the next read of each GPU complete, also where one is under way.
func (s *Source) expireFacts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.epoch++
	for id, f := range s.memory.facts {
		f.until = time.Time{}
		s.memory.facts[id] = f
	}
}

// expireFactsAtMIG makes the next read complete if a GPU was just switched to MIG mode, or back: what it
// supports differs.
func (s *Source) expireFactsAtMIG(d gpu.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, read := s.memory.devices[d.UUID]
	if f, known := s.memory.facts[d.UUID]; read && known && before.MIGEnabled != d.MIGEnabled {
		f.until = time.Time{}
		s.memory.facts[d.UUID] = f
	}
}

// readFacts reads the facts of a GPU. It reports whether they are complete: if not, what failed may work
// the next time. Only the address and the size of the memory are needed to use a GPU.
func (s *Source) readFacts(handle nvml.Device, f *facts) (complete bool, err error) {
	address, err := pciOf(handle.GetPciInfo())
	if err != nil {
		return false, err
	}
	f.pci = address
	memory, ret := handle.GetMemoryInfo()
	switch {
	case ret == nvml.SUCCESS:
		f.memoryBytes = memory.Total
	case !isUnsupported(ret): // GPUs that use the CPU's memory have none of their own
		return false, check("nvmlDeviceGetMemoryInfo", ret)
	}
	o := &optionalReads{s: s, facts: f}
	_ = o.read("nvmlDeviceGetName", func() nvml.Return { return set(&f.product)(handle.GetName()) })
	_ = o.read("nvmlDeviceGetMinorNumber", func() nvml.Return { return set(&f.minor)(handle.GetMinorNumber()) })
	if f.minor < 0 {
		f.minor = s.places.minor(address)
	}
	_ = o.read("nvmlDeviceGetCudaComputeCapability", func() nvml.Return {
		major, minor, ret := handle.GetCudaComputeCapability()
		if ret == nvml.SUCCESS {
			f.compute = gpu.Compute{Major: major, Minor: minor}
		}
		return ret
	})
	s.readModel(handle, f)
	s.readLanes(o, handle)
	_ = o.read("nvmlDeviceGetSupportedEventTypes", func() nvml.Return {
		supported, ret := handle.GetSupportedEventTypes()
		f.noXIDs = isUnsupported(ret) || ret == nvml.SUCCESS && supported&nvml.EventTypeXidCriticalError == 0
		return ret
	})
	f.numa = s.numa(address, handle)
	return !o.failed, o.err
}

// readModel reads brand, architecture and addressing mode. A driver newer than go-nvlib may report others than
// go-nvlib can name; they are then not known, which is no fault of the GPU.
func (s *Source) readModel(handle nvml.Device, f *facts) {
	if !s.hasAll("nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture") {
		return
	}
	if named, err := device.New(s.lib, device.WithVerifySymbols(false)).NewDevice(handle); err == nil {
		if brand, ret := named.GetBrandAsString(); ret == nil {
			f.brand = brand
		}
		if arch, ret := named.GetArchitectureAsString(); ret == nil {
			f.arch = arch
		}
		if s.has["nvmlDeviceGetAddressingMode"] {
			if mode, err := named.GetAddressingModeAsString(); err == nil {
				f.addressing = mode
			}
		}
	}
}

// set returns a function that keeps the result of a call, if it has one.
func set[T any](to *T) func(T, nvml.Return) nvml.Return {
	return func(value T, ret nvml.Return) nvml.Return {
		if ret == nvml.SUCCESS {
			*to = value
		}
		return ret
	}
}

// optionalReads makes calls without whose results a GPU can be used.
type optionalReads struct {
	s      *Source
	facts  *facts // remembers what the GPU does not support
	failed bool   // a call failed that may work the next time
	err    error  // the GPU is gone
}

// read makes a call, unless the GPU has said before that it does not support it. It returns what try returns.
func (o *optionalReads) read(name string, fn func() nvml.Return) nvml.Return {
	o.s.mu.Lock()
	unsupported := o.facts.unsupported[name]
	o.s.mu.Unlock()
	if unsupported {
		return nvml.ERROR_NOT_SUPPORTED
	}
	ret := o.try(name, fn)
	if isUnsupported(ret) && o.err == nil {
		o.s.mu.Lock()
		defer o.s.mu.Unlock()
		o.facts.unsupported[name] = true
	}
	return ret
}

// try makes a call, unless the library lacks it or the GPU is gone. It returns what the call returned.
func (o *optionalReads) try(name string, fn func() nvml.Return) nvml.Return {
	if o.err != nil || !o.s.has[name] {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	ret := fn()
	switch {
	case ret == nvml.SUCCESS, isAbsent(ret):
	case isGone(ret):
		o.err = check(name, ret)
	default:
		o.failed = true
		o.s.reportFailure(check(name, ret))
	}
	return ret
}

// isUnsupported reports whether a code of a call means that the GPU or its driver never does it.
func isUnsupported(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND
}

// isGone reports whether a code of any call means that the GPU cannot be used at all. Whether the driver can, only its
// own calls tell: see settle.
func isGone(ret nvml.Return) bool {
	return ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED
}

// isAbsent reports whether a code of an optional call means that the GPU or its driver does not have what was
// asked for, and will not have it the next time.
func isAbsent(ret nvml.Return) bool {
	return isUnsupported(ret) || ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_NO_PERMISSION
}
