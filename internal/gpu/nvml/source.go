// Package nvml reads and watches GPUs through NVML, the driver's management
// library; no other package uses it. Its Source behaves as package gpu documents:
// one GPU that is lost, broken or hanging is a Fault of that GPU, never an error
// for its neighbours.
//
// Three facts shape it. A process can load only one libnvidia-ml in its life
// (see ErrOtherLibrary). go-nvml binds a function on its first call, and a missing
// one ends the process, so functions that an old driver may lack are looked up
// first. And each call may hang, so each goes through calls.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Options configure the location of the driver and the timeouts of a Source.
type Options struct {
	HostRoot   string // where the host's file system is mounted; "" is "/"
	DriverRoot string // host path below which to find the library; "" is "/"
	Library    string // path that FindLibrary returned; "": Open finds the library
	Log        *slog.Logger

	// CallTimeout is the time after which the GPU of an NVML call counts as hanging.
	// 0 is 20 s: the first call initialises GPUs that are not in persistence mode,
	// which takes seconds for each.
	CallTimeout time.Duration
	// ProbeInterval is the interval at which Watch probes for changes without an
	// event: a GPU that stopped or resumed answering, or another MIG layout (not all
	// drivers have that event). While a GPU is to be released, or is released, the
	// interval is at most 10 s. 0 is 10 s.
	ProbeInterval time.Duration
	// Slice is the time that Watch waits inside NVML before it checks whether to end;
	// each slice costs a few wake-ups of the process. Only an event ends a slice
	// early, so Watch, and Close after it, end up to one slice late. While a GPU is to
	// be released, a slice is at most 200 ms. 0 is 200 ms.
	Slice time.Duration
	// Partitions has snapshots list the profiles of GPUs in MIG mode and the GPU instances that exist,
	// which some drivers let only a process with the capability mig/config read.
	Partitions bool
	// ReadOutside reads GPUs that this process has released; nil: see Release.
	ReadOutside OutsideReader
	// WatchDevices delivers the kernel's events of GPUs that come and go, and of the driver's modules, until ctx
	// ends (host.WatchDevices). nil: Watch notices those changes by probing.
	WatchDevices func(ctx context.Context, changed func(host.DeviceEvent)) error

	// Process is shared by the Sources that a process opens one after the other. nil: there is only one.
	Process *Process

	// OnFailure is called for each call of NVML that failed or did not return, with its
	// code in nvml.h without "NVML_ERROR_" (GPU_IS_LOST), or HUNG. Normal results
	// (not supported, no event yet) are not failures. It is called from several
	// goroutines and must not block. It may be nil.
	OnFailure func(code string)
}

// Source is a gpu.Source that uses NVML.
type Source struct {
	lib        nvml.Interface
	library    string
	simulated  bool
	has        map[string]bool // optional functions that the library has
	places     places
	partitions bool // see Options.Partitions
	log        *slog.Logger
	probe      time.Duration // between two probes of Watch
	slice      time.Duration // see Options.Slice
	hurried    time.Duration // maximum of probe while a GPU is to be released, or is released
	quiet      time.Duration // time without an event before NVML is shut down to release a GPU

	outside      OutsideReader
	outsideEvery time.Duration
	watchDevices func(context.Context, func(host.DeviceEvent)) error
	fabricInfo   func(nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) // readFabricInfo; another in tests

	*calls
	watching atomic.Bool
	cycles   atomic.Int64  // beginnings and ends of initialising NVML again
	brief    atomic.Bool   // use short slices
	hurry    chan struct{} // capacity 1: there is a GPU to release

	mu     sync.Mutex
	closed bool
	memory memory
}

var _ gpu.Source = (*Source)(nil)

// isCycling reports whether NVML is being shut down and initialised.
func (s *Source) isCycling() bool { return s.cycles.Load()%2 == 1 }

// required lists the functions that every Source needs; every driver since R450 has
// them.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlSystemGetDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
	"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo",
}

// watching lists the functions that Watch needs to receive events. Without them it polls.
var watching = []string{"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"}

// waiting lists the versions of the function by which Watch waits for events. It needs one of them.
var waiting = []string{"nvmlEventSetWait", "nvmlEventSetWait_v2"}

// optional lists the functions that are called only if the library has them.
var optional = slices.Concat(watching, waiting, []string{
	"nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCudaComputeCapability",
	"nvmlSystemGetCudaDriverVersion_v2", getConfidentialState, getReadyState, "nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture", "nvmlDeviceGetAddressingMode",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2",
	"nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
	"nvmlDeviceGetGpuInstanceById", "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetInfo",
	"nvmlGpuInstanceGetComputeInstanceById", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlComputeInstanceGetInfo_v2",
	"nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstances",
	"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy", "nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceGetComputeInstances", "nvmlComputeInstanceDestroy",
	"nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryAffinity",
	"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
	"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV",
	"nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetCurrentClocksThrottleReasons",
	"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration",
	"nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature",
	"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetClockInfo",
	"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
	"nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
	"nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses_v3",
})

// Open finds libnvidia-ml, loads it into the process and initialises it. Without
// Options.Library it searches as FindLibrary does, then in the loader's directories. Its error wraps
// gpu.ErrNoDriver when there is no library or no kernel module,
// gpu.ErrNoPermission, gpu.ErrVersionMismatch, or ErrOtherLibrary.
func Open(o Options) (*Source, error) {
	path := o.Library
	if path == "" {
		var err error
		if path, err = findAnywhere(o.HostRoot, o.DriverRoot); err != nil {
			return nil, err
		}
	}
	if err := checkLoadable(path); err != nil {
		return nil, err
	}
	// This reference is never dropped: the library stays loaded for the life of
	// the process, however often NVML is shut down.
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := library.Open(); err != nil {
		return nil, fmt.Errorf("%w: the library is there but cannot be loaded: %w; is its file system mounted noexec?", gpu.ErrNoDriver, err)
	}
	for _, symbol := range required {
		if err := library.Lookup(symbol); err != nil {
			return nil, fmt.Errorf("%s is too old or is no NVML: %w; install driver 450 or newer", path, err)
		}
	}
	has := map[string]bool{}
	for _, symbol := range optional {
		has[symbol] = library.Lookup(symbol) == nil
	}
	s := newSource(nvml.New(nvml.WithLibraryPath(path)), o)
	s.library, s.has, s.simulated = path, has, library.Lookup("gpusim_simulated") == nil
	var err error
	if s.places, err = openPlaces(o, s.simulated); err != nil {
		return nil, err
	}
	if err := s.initialise(context.Background()); err != nil {
		return nil, errors.Join(wrapOpen(path, err), s.places.Close())
	}
	return s, nil
}

func newSource(lib nvml.Interface, o Options) *Source {
	s := &Source{
		lib: lib, partitions: o.Partitions, log: o.Log, probe: o.ProbeInterval, slice: o.Slice, hurried: 10 * time.Second, hurry: make(chan struct{}, 1), quiet: 10 * time.Second,
		outside: o.ReadOutside, outsideEvery: outsideEvery, watchDevices: o.WatchDevices,
		fabricInfo: readFabricInfo,
		memory:     memory{devices: map[gpu.UUID]reading{}, facts: map[gpu.UUID]facts{}, noXIDs: map[gpu.UUID]time.Time{}, out: map[gpu.UUID]gpu.Fault{}, ancestors: map[[2]gpu.PCIAddress]gpu.LinkKind{}, numa: map[gpu.PCIAddress]int{}, unlisted: map[gpu.UUID]string{}},
	}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if s.probe <= 0 {
		s.probe = 10 * time.Second
	}
	if s.slice <= 0 {
		s.slice = shortSlice
	}
	limit := o.CallTimeout
	if limit <= 0 {
		limit = 20 * time.Second
	}
	s.calls = newCalls(o.Process, limit, o.OnFailure)
	return s
}

// checkLoadable returns an error if the process has already loaded another library.
func checkLoadable(path string) error {
	there, err := loaded()
	if err != nil {
		return fmt.Errorf("looking for a libnvidia-ml that is loaded already: %w", err)
	}
	if there == "" || there == path {
		return nil
	}
	return fmt.Errorf("%w: %s, and not %s: the driver was replaced; start the process again", ErrOtherLibrary, there, path)
}

// initialise calls nvmlInit, which may hang like any other call.
func (s *Source) initialise(ctx context.Context) error {
	_, err := call(ctx, s.calls, "the driver", func() (struct{}, error) {
		return struct{}{}, check("nvmlInit", s.lib.Init())
	})
	return err
}

// Library returns the real path of the loaded library. If FindLibrary returns another
// path, the library was replaced.
func (s *Source) Library() string { return s.library }

// Simulated reports whether the library says that there is no GPU under it.
func (s *Source) Simulated() bool { return s.simulated }

// Close ends the use of NVML, which releases the GPUs. Watch must have ended before.
func (s *Source) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	results, err := s.startAlone(context.Background(), s.limit, func() error { return check("nvmlShutdown", s.lib.Shutdown()) })
	if err == nil {
		patience := time.NewTimer(s.limit)
		defer patience.Stop()
		select {
		case err = <-results:
		case <-patience.C:
			err = &hungError{"its shutdown", s.limit}
		}
	}
	return errors.Join(err, s.places.Close())
}

// checkOpen returns an error if the source is closed.
func (s *Source) checkOpen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return nil
}
