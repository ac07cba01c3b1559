package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// fake is an NVML in this process: the functions that the code under test calls, with
// state that tests change. A function that it lacks is a nil pointer.
type fake struct {
	nvml.Interface
	mu                sync.Mutex
	gpus              []*fakeGPU
	sets              []*fakeSet
	driver            nvml.Return // result of every call, if not SUCCESS
	version           nvml.Return // the same, of the driver's version
	versionEnd        string      // what the version ends with
	waitFailures      int         // number of waits that fail from now on; -1 for ever
	setError          nvml.Return // result of creating an event set
	inits, shutdowns  int
	hangInit          chan struct{} // Shutdown and Init wait for it to close, if not nil
	hangWait          chan struct{} // the same, of waits for events
	impatient         bool          // waits for events end at once
	waitCount         int
	topologyCallCount int
	beforeHandle      func()          // called before each DeviceGetHandleByIndex, if not nil
	opened            func(index int) // the same
	searched          []string        // what DeviceGetHandleByUUID was called with
	confidential      nvml.ConfComputeSystemState
	confidentialCalls int
	accepts           uint32 // whether the GPUs accept work, with confidential computing
}

type fakeGPU struct {
	nvml.Device
	lib    *fake
	device gpu.Device
	links  []fakeLink
	fabric nvml.GpuFabricInfo_v3

	handle, calls, events nvml.Return            // results, if not SUCCESS
	profile, instances    nvml.Return            // the same, of profiles and lists of GPU instances
	compute               nvml.Return            // the same, of the creation of compute instances
	destroyed             int                    // GPU instances
	refuse                map[string]nvml.Return // the same, of single calls
	counts                map[string]int         // of calls
	gone                  bool
	hang                  chan struct{} // GetUUID waits for it to close, if not nil
	onName                func()        // called by GetName, if not nil
	support               uint64
	register              nvml.Return
	recovery              nvml.DeviceGpuRecoveryAction
	remapPending          bool
	remapFailed           bool
	retirePending         bool
	condition             fakeCondition
	telemetry             fakeTelemetry
}

type fakeLink struct {
	kind   nvml.IntNvLinkDeviceType
	remote int // index of the GPU
	down   bool
}

type fakeMIG struct {
	nvml.Device
	gpu    *fakeGPU
	device gpu.MIGDevice
}

type fakeSet struct {
	nvml.EventSet
	lib   *fake
	gpus  []*fakeGPU
	queue []nvml.EventData
	wake  chan struct{}
	freed bool
}

// newFake makes the driver of a node and a Source that uses it.
func newFake(t *testing.T, node gpu.Snapshot, o Options) (*fake, *Source) {
	f := &fake{inits: 1}
	for _, d := range node.Devices {
		f.gpus = append(f.gpus, &fakeGPU{lib: f, device: d, support: nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError})
	}
	if o.ProbeInterval == 0 {
		o.ProbeInterval = 20 * time.Millisecond
	}
	s := newSource(f, o)
	s.slice, s.quiet = 50*time.Millisecond, time.Hour
	s.fabricInfo = func(handle nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) { return handle.(*fakeGPU).fabricInfo() }
	s.has = map[string]bool{}
	for _, symbol := range optional {
		// Profiles are composed from structures that the fake lacks.
		s.has[symbol] = symbol != "nvmlDeviceIsMigDeviceHandle" && symbol != "nvmlDeviceGetMemoryAffinity"
	}
	return f, s
}

func (f *fake) locked(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) find(id gpu.UUID) *fakeGPU {
	return f.gpus[slices.IndexFunc(f.gpus, func(g *fakeGPU) bool { return g.device.UUID == id })]
}

// send puts an event of a GPU into every set that holds it.
func (f *fake) send(id gpu.UUID, kind, data uint64, gi, ci uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.find(id)
	for _, set := range f.sets {
		if !set.freed && slices.Contains(set.gpus, g) {
			set.queue = append(set.queue, nvml.EventData{Device: g, EventType: kind, EventData: data, GpuInstanceId: gi, ComputeInstanceId: ci})
		}
	}
	f.wakeWaiters()
}

func (f *fake) wakeWaiters() {
	for _, set := range f.sets {
		select {
		case set.wake <- struct{}{}:
		default:
		}
	}
}

// lose makes a GPU lost in one of the ways in which NVML reports that.
func (f *fake) lose(id gpu.UUID, way string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.find(id)
	switch way {
	case "calls":
		g.calls = nvml.ERROR_GPU_IS_LOST
	case "handle":
		g.handle = nvml.ERROR_GPU_IS_LOST
	case "gone":
		g.gone = true
	case "unknown":
		g.calls = nvml.ERROR_UNKNOWN
	case "events":
		g.calls, g.events = nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_IS_LOST
	}
	f.wakeWaiters()
}

func (f *fake) restore(id gpu.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.find(id)
	g.calls, g.handle, g.events, g.gone = nvml.SUCCESS, nvml.SUCCESS, nvml.SUCCESS, false
	g.remapPending = false
}

func (f *fake) present() []*fakeGPU {
	return slices.DeleteFunc(slices.Clone(f.gpus), func(g *fakeGPU) bool { return g.gone })
}

func (f *fake) Init() nvml.Return {
	f.waitInit()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inits++
	return f.driver
}

// waitInit waits while shutting down and initialising hang.
func (f *fake) waitInit() {
	f.mu.Lock()
	hang := f.hangInit
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
}

func (f *fake) Shutdown() nvml.Return {
	f.waitInit()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shutdowns++
	return nvml.SUCCESS
}

func (f *fake) SystemGetDriverVersion() (string, nvml.Return) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return "580.95.05" + f.versionEnd, cmp.Or(f.driver, f.version)
}

func (f *fake) SystemGetCudaDriverVersion_v2() (int, nvml.Return) { return 13000, nvml.SUCCESS }

func (f *fake) SystemGetConfComputeState() (nvml.ConfComputeSystemState, nvml.Return) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.confidentialCalls++
	return f.confidential, f.driver
}

func (f *fake) SystemGetConfComputeGpusReadyState() (uint32, nvml.Return) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accepts, f.driver
}

func (f *fake) DeviceGetCount() (int, nvml.Return) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.present()), f.driver
}

func (f *fake) DeviceGetHandleByIndex(i int) (nvml.Device, nvml.Return) {
	if f.beforeHandle != nil {
		f.beforeHandle()
	}
	if f.opened != nil {
		f.opened(i)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.present()
	if i >= len(list) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return list[i], cmp.Or(list[i].handle, list[i].count("nvmlDeviceGetHandleByIndex_v2"))
}

func (f *fake) EventSetCreate() (nvml.EventSet, nvml.Return) {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := &fakeSet{lib: f, wake: make(chan struct{}, 1)}
	f.sets = append(f.sets, set)
	return set, f.setError
}

// begin starts each call on a GPU and returns its result.
func (g *fakeGPU) begin(name string) nvml.Return {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	return g.result(name)
}

// count counts a call that does not need the GPU, and returns its result. The lock is held.
func (g *fakeGPU) count(name string) nvml.Return {
	calls := g.calls
	g.calls = nvml.SUCCESS
	defer func() { g.calls = calls }()
	return g.result(name)
}

// result counts a call and returns its result. The lock is held.
func (g *fakeGPU) result(name string) nvml.Return {
	if g.counts == nil {
		g.counts = map[string]int{}
	}
	g.counts[name]++
	return cmp.Or(g.calls, g.refuse[name])
}

func (g *fakeGPU) GetUUID() (string, nvml.Return) {
	g.lib.mu.Lock()
	hang := g.hang
	g.lib.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if ret := g.begin("nvmlDeviceGetUUID"); ret != nvml.SUCCESS {
		return "", ret
	}
	return string(g.device.UUID), nvml.SUCCESS
}

func (g *fakeGPU) GetPciInfo() (nvml.PciInfo, nvml.Return) {
	return fakePCI(g.device.PCI), g.begin("nvmlDeviceGetPciInfo_v3")
}

// fakePCI spells an address as NVML does.
func fakePCI(address gpu.PCIAddress) nvml.PciInfo {
	var info nvml.PciInfo
	for i, c := range []byte("0000" + string(address)) {
		info.BusId[i] = int8(c)
	}
	return info
}

func (g *fakeGPU) GetName() (string, nvml.Return) {
	if g.onName != nil {
		g.onName()
	}
	return g.device.Product, g.begin("nvmlDeviceGetName")
}
func (g *fakeGPU) GetBrand() (nvml.BrandType, nvml.Return) {
	return map[string]nvml.BrandType{"Nvidia": nvml.BRAND_NVIDIA, "Tesla": nvml.BRAND_TESLA}[g.device.Brand], g.begin("nvmlDeviceGetBrand")
}

func (g *fakeGPU) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return map[string]nvml.DeviceArchitecture{
		"Volta": nvml.DEVICE_ARCH_VOLTA, "Turing": nvml.DEVICE_ARCH_TURING, "Ampere": nvml.DEVICE_ARCH_AMPERE, "Ada Lovelace": nvml.DEVICE_ARCH_ADA,
		"Hopper": nvml.DEVICE_ARCH_HOPPER, "Blackwell": nvml.DEVICE_ARCH_BLACKWELL,
	}[g.device.Architecture], g.begin("nvmlDeviceGetArchitecture")
}

func (g *fakeGPU) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	modes := map[string]nvml.DeviceAddressingModeType{
		"None": nvml.DEVICE_ADDRESSING_MODE_NONE, "HMM": nvml.DEVICE_ADDRESSING_MODE_HMM, "ATS": nvml.DEVICE_ADDRESSING_MODE_ATS}
	mode, has := modes[g.device.AddressingMode]
	if !has {
		return nvml.DeviceAddressingMode{}, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.DeviceAddressingMode{Value: uint32(mode)}, g.begin("nvmlDeviceGetAddressingMode")
}

func (g *fakeGPU) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return nvml.ComputeMode(g.device.ComputeMode), g.begin("nvmlDeviceGetComputeMode")
}

func (g *fakeGPU) GetMinorNumber() (int, nvml.Return) {
	return g.device.Minor, g.begin("nvmlDeviceGetMinorNumber")
}
func (g *fakeGPU) GetCudaComputeCapability() (int, int, nvml.Return) {
	return g.device.Compute.Major, g.device.Compute.Minor, g.begin("nvmlDeviceGetCudaComputeCapability")
}

func (g *fakeGPU) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return nvml.Memory{Total: g.device.MemoryBytes}, g.begin("nvmlDeviceGetMemoryInfo")
}

func (g *fakeGPU) GetMigMode() (int, int, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	if ret := g.result("nvmlDeviceGetMigMode"); ret != nvml.SUCCESS && ret != g.calls {
		return 0, 0, ret
	}
	if !g.device.MIGCapable {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	if g.device.MIGEnabled {
		return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS
	}
	return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS
}

func (g *fakeGPU) GetMaxMigDeviceCount() (int, nvml.Return) {
	return 7, g.begin("nvmlDeviceGetMaxMigDeviceCount")
}

func (g *fakeGPU) GetMigDeviceHandleByIndex(i int) (nvml.Device, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	if ret := g.result("nvmlDeviceGetMigDeviceHandleByIndex"); ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, m := range g.device.MIG {
		if m.Index == i {
			return &fakeMIG{gpu: g, device: m}, nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func (g *fakeGPU) GetRemappedRows() (int, int, bool, bool, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	return 0, 0, g.remapPending, g.remapFailed, g.result("nvmlDeviceGetRemappedRows")
}

func (g *fakeGPU) GetRetiredPagesPendingStatus() (nvml.EnableState, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	if ret := g.result("nvmlDeviceGetRetiredPagesPendingStatus"); ret != nvml.SUCCESS {
		return 0, ret
	}
	if g.retirePending {
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED
}

func (g *fakeGPU) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	values[0].Value[0] = byte(g.recovery)
	return g.result("nvmlDeviceGetFieldValues")
}

func (g *fakeGPU) GetNvLinkState(i int) (nvml.EnableState, nvml.Return) {
	if ret := g.begin("nvmlDeviceGetNvLinkState"); ret != nvml.SUCCESS {
		return 0, ret
	}
	if i >= len(g.links) {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}
	if g.links[i].down {
		return nvml.FEATURE_DISABLED, nvml.SUCCESS
	}
	return nvml.FEATURE_ENABLED, nvml.SUCCESS
}

func (g *fakeGPU) GetNvLinkRemoteDeviceType(i int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	return g.links[i].kind, g.begin("nvmlDeviceGetNvLinkRemoteDeviceType")
}

func (g *fakeGPU) GetNvLinkRemotePciInfo(i int) (nvml.PciInfo, nvml.Return) {
	return fakePCI(g.lib.gpus[g.links[i].remote].device.PCI), g.begin("nvmlDeviceGetNvLinkRemotePciInfo_v2")
}

// fabricInfo is nvmlDeviceGetGpuFabricInfoV.
func (g *fakeGPU) fabricInfo() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return g.fabric, g.begin("nvmlDeviceGetGpuFabricInfoV")
}

func (g *fakeGPU) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	old := g.fabric
	return nvml.GpuFabricInfo{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State}, g.begin("nvmlDeviceGetGpuFabricInfo")
}

func (g *fakeGPU) GetTopologyCommonAncestor(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	g.lib.topologyCallCount++
	if ret := g.result("nvmlDeviceGetTopologyCommonAncestor"); ret != nvml.SUCCESS {
		return 0, ret
	}
	if g.device.NUMANode == other.(*fakeGPU).device.NUMANode {
		return nvml.TOPOLOGY_NODE, nvml.SUCCESS
	}
	return nvml.TOPOLOGY_SYSTEM, nvml.SUCCESS
}

func (g *fakeGPU) GetSupportedEventTypes() (uint64, nvml.Return) {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	return g.support, g.result("nvmlDeviceGetSupportedEventTypes")
}

func (g *fakeGPU) RegisterEvents(_ uint64, set nvml.EventSet) nvml.Return {
	g.lib.mu.Lock()
	defer g.lib.mu.Unlock()
	ret := cmp.Or(g.register, g.result("nvmlDeviceRegisterEvents"))
	if ret == nvml.SUCCESS {
		set.(*fakeSet).gpus = append(set.(*fakeSet).gpus, g)
	}
	return ret
}

func (m *fakeMIG) GetUUID() (string, nvml.Return) {
	return string(m.device.UUID), m.gpu.begin("nvmlDeviceGetUUID of a MIG device")
}
func (m *fakeMIG) GetName() (string, nvml.Return) {
	return fmt.Sprintf("%s MIG %s", m.gpu.device.Product, m.device.Profile), m.gpu.begin("nvmlDeviceGetName of a MIG device")
}
func (m *fakeMIG) GetGpuInstanceId() (int, nvml.Return) {
	return m.device.GPUInstance, m.gpu.begin("nvmlDeviceGetGpuInstanceId")
}
func (m *fakeMIG) GetComputeInstanceId() (int, nvml.Return) {
	return m.device.ComputeInstance, m.gpu.begin("nvmlDeviceGetComputeInstanceId")
}
func (m *fakeMIG) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return nvml.DeviceAttributes{MemorySizeMB: m.device.MemoryBytes >> 20, MultiprocessorCount: uint32(m.device.Attributes.Multiprocessors)}, m.gpu.begin("nvmlDeviceGetAttributes_v2")
}

func (s *fakeSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	deadline := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer deadline.Stop()
	s.lib.mu.Lock()
	hang, impatient := s.lib.hangWait, s.lib.impatient
	s.lib.waitCount++
	s.lib.mu.Unlock()
	if impatient {
		deadline.Reset(0)
	}
	if hang != nil {
		<-hang
	}
	for {
		if data, ret, ok := s.next(); ok {
			return data, ret
		}
		select {
		case <-s.wake:
		case <-deadline.C:
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		}
	}
}

func (s *fakeSet) next() (nvml.EventData, nvml.Return, bool) {
	s.lib.mu.Lock()
	defer s.lib.mu.Unlock()
	if s.lib.waitFailures != 0 {
		s.lib.waitFailures--
		return nvml.EventData{}, nvml.ERROR_UNKNOWN, true
	}
	for _, g := range s.gpus {
		if g.events != nvml.SUCCESS {
			return nvml.EventData{}, g.events, true
		}
	}
	if len(s.queue) == 0 {
		return nvml.EventData{}, 0, false
	}
	data := s.queue[0]
	s.queue = s.queue[1:]
	return data, nvml.SUCCESS, true
}

func (s *fakeSet) Free() nvml.Return {
	s.lib.mu.Lock()
	defer s.lib.mu.Unlock()
	s.freed = true
	return nvml.SUCCESS
}

// TestSourceOnAFakeConforms runs the suite on this package's logic alone, in
// this process; simulator_test.go runs it on a real libnvidia-ml.
func TestSourceOnAFakeConforms(t *testing.T) {
	gputest.Conformance(t, func(t *testing.T) gputest.Fixture {
		f, s := newFake(t, gputest.Node("a100-80gb", 4), Options{})
		fixture := gputest.Fixture{
			Source: s,
			XID: func(id gpu.UUID, xid uint64) {
				f.send(id, nvml.EventTypeXidCriticalError, xid, none, none)
			},
			MIGXID: func(id gpu.UUID, gi, ci int, xid uint64) {
				f.send(id, nvml.EventTypeXidCriticalError, xid, uint32(gi), uint32(ci))
			},
			Remap: func(id gpu.UUID) {
				f.mu.Lock()
				f.find(id).remapPending = true
				f.mu.Unlock()
				f.send(id, nvml.EventTypeXidCriticalError, 63, none, none)
			},
			ECC:     func(id gpu.UUID) { f.send(id, nvml.EventTypeDoubleBitEccError, 0, none, none) },
			Lose:    map[string]func(gpu.UUID){},
			Restore: f.restore,
			SetMIG: func(id gpu.UUID, layout ...string) {
				f.mu.Lock()
				defer f.mu.Unlock()
				g := f.find(id)
				g.device.MIGEnabled, g.device.MIG = false, nil
				if len(layout) > 0 {
					g.device = gputest.WithMIG(g.device, layout...)
				}
			},
		}
		for _, way := range []string{"calls", "handle", "gone", "unknown", "events"} {
			fixture.Lose[way] = func(id gpu.UUID) { f.lose(id, way) }
		}
		return fixture
	})
}
