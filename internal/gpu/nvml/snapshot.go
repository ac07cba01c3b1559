package nvml

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
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

// reading is a GPU with the data for computing links and for judging it.
type reading struct {
	gpu.Device
	lanes      lanes
	fabricMask uint32 // the health of its fabric, nvmlGpuFabricInfo_v3_t; 0: not known
	// recoveryRead holds when the driver last said what it asks for.
	recoveryRead time.Time
}

// read reads the driver and all GPUs, in the order of their indexes. A GPU that cannot
// be read has a Fault and the data of its last successful read. While NVML is initialised again, all
// are as they were last read.
func (s *Source) read(ctx context.Context) (gpu.Driver, []reading, error) {
	if err := ctx.Err(); err != nil {
		return gpu.Driver{}, nil, err
	}
	if err := s.checkOpen(); err != nil {
		return gpu.Driver{}, nil, err
	}
	var n node
	var all []reading
	var errs []error
	var err error
	for range maxRereads {
		before := s.cycles.Load()
		if !s.isCycling() {
			n, all, errs, err = s.readAll(ctx)
		}
		if ctx.Err() != nil {
			return gpu.Driver{}, nil, ctx.Err()
		}
		if s.isCycling() { // and calls may have waited for its end
			driver, all := s.lastReading()
			return driver, all, nil
		}
		if s.cycles.Load() == before {
			break
		}
	}
	if err != nil {
		return gpu.Driver{}, nil, fmt.Errorf("reading the driver: %w", err)
	}
	if err := s.settle(all, errs); err != nil {
		return gpu.Driver{}, nil, fmt.Errorf("reading the GPUs: %w", err)
	}
	judgeFabric(all)
	s.keepReading(n.Driver, all)
	return n.Driver, all, nil
}

// readAll reads the driver and all GPUs, with an error for each that cannot be read.
func (s *Source) readAll(ctx context.Context) (node, []reading, []error, error) {
	n, err := s.readNode(ctx)
	if err != nil {
		return n, nil, nil, err
	}
	all, errs := s.readDevices(ctx, n.count)
	// When a GPU leaves the bus or returns, the indexes of its neighbours shift: some would be
	// read twice and others not at all.
	for range maxRereads {
		before := n.count
		if n.count, err = s.readCount(ctx); err != nil || n.count == before {
			break
		}
		all, errs = s.readDevices(ctx, n.count)
	}
	return n, all, errs, err
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

func (s *Source) readCount(ctx context.Context) (int, error) {
	return call(ctx, s.calls, "the driver", func() (int, error) {
		count, ret := s.lib.DeviceGetCount()
		return count, check("nvmlDeviceGetCount", ret)
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
			all[i], errs[i] = call(ctx, s.calls, subject(i, count), func() (reading, error) {
				// Look again: the GPU may have been released while the call waited to begin.
				if r, out := s.released(count)[i]; out {
					return r, nil
				}
				return s.readDevice(i)
			})
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

// subject names a GPU by its index among count. When a GPU leaves the bus, an index is that of another one, which a call
// that hangs does not concern.
func subject(index, count int) string { return fmt.Sprintf("GPU %d of %d", index, count) }

func (s *Source) readDriver() (d gpu.Driver, err error) {
	version, ret := s.lib.SystemGetDriverVersion()
	if err := check("nvmlSystemGetDriverVersion", ret); err != nil {
		if version = s.knownVersion(); version == "" || wholeDriver(err) {
			return d, err
		}
	}
	version = record.Clean(version, 64) // state files and labels have it
	d = gpu.Driver{Version: version, Simulated: s.simulated}
	if s.has["nvmlSystemGetCudaDriverVersion_v2"] {
		// NVML asks libcuda, which a driver root may lack: other steps report that.
		if cuda, ret := s.lib.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS {
			d.CUDAVersion = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10) // as cuda.h codes it: 13000
		}
	}
	d.AwaitsAttestation = s.awaitsAttestation()
	return d, nil
}

// The functions about confidential computing.
const (
	getConfidentialState = "nvmlSystemGetConfComputeState"
	getReadyState        = "nvmlSystemGetConfComputeGpusReadyState"
)

// awaitsAttestation reports whether confidential computing is on and the GPUs accept no work yet. It is
// turned on and off only while no driver has the GPUs, so that it is asked for once if it is off.
func (s *Source) awaitsAttestation() bool {
	s.mu.Lock()
	off := s.memory.notSecret
	s.mu.Unlock()
	if off || !s.has[getConfidentialState] || !s.has[getReadyState] {
		return false
	}
	state, ret := s.lib.SystemGetConfComputeState()
	switch {
	case isAbsent(ret), ret == nvml.SUCCESS && state.CcFeature != nvml.CC_SYSTEM_FEATURE_ENABLED:
		s.mu.Lock()
		s.memory.notSecret = true
		s.mu.Unlock()
		return false
	case ret != nvml.SUCCESS:
		return false
	}
	accepts, ret := s.lib.SystemGetConfComputeGpusReadyState()
	return ret == nvml.SUCCESS && accepts == nvml.CC_ACCEPTING_CLIENT_REQUESTS_FALSE
}

// knownVersion returns the driver's version as last read, or as the name of its library ends; "": neither is known.
func (s *Source) knownVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, suffix, _ := strings.Cut(path.Base(s.library), ".so.")
	if !strings.Contains(suffix, ".") { // "1", of a link
		suffix = ""
	}
	return cmp.Or(s.memory.driver.Version, suffix)
}

// isName reports whether a text can be a UUID: it names the GPU on command lines, in files and to the kubelet. On
// Tegra it lacks the usual prefix.
func isName(text string) bool {
	return text != "" && len(text) <= 64 && !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// readDevice reads one GPU. With an error it returns the data read until then.
func (s *Source) readDevice(index int) (reading, error) {
	r := reading{Device: gpu.Device{Index: index, NUMANode: -1, Minor: -1}}
	handle, ret := s.lib.DeviceGetHandleByIndex(index)
	if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
		return r, err
	}
	id, ret := handle.GetUUID()
	if err := check("nvmlDeviceGetUUID", ret); err != nil {
		return r, err
	}
	if !isName(id) {
		return r, fmt.Errorf("nvmlDeviceGetUUID: %.80q is not the UUID of a GPU", id)
	}
	r.UUID = gpu.UUID(id)
	f, err := s.factsOf(r.UUID, index, handle)
	if err != nil {
		return r, err
	}
	r.PCI, r.Product, r.Brand, r.Architecture, r.Minor = f.pci, f.product, f.brand, f.arch, f.minor
	r.MemoryBytes, r.Compute, r.NUMANode, r.lanes, r.AddressingMode = f.memoryBytes, f.compute, f.numa, f.lanes, f.addressing
	o := &optionalReads{s: s, facts: &f}
	s.readComputeMode(o, handle, &r.Device)
	if err := s.readMIG(o, handle, &r.Device); err != nil {
		return r, err
	}
	s.expireFactsAtMIG(r.Device)
	if err := s.readPartitions(handle, &r.Device); err != nil {
		return r, err
	}
	s.readFabric(o, handle, &r)
	s.readHealth(o, handle, &r)
	if o.err != nil {
		return r, o.err
	}
	judge(&r.Device, f.noXIDs || s.isPolled(r.UUID), r.fabricMask)
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
