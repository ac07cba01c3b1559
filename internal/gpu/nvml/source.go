// Package nvml is the one place that touches NVML, the library through which
// the driver tells about GPUs. Its Source answers as package gpu promises: one
// GPU that is lost, broken or hanging is a Fault of that GPU, never an error
// for its neighbours.
//
// Three facts shape it. A process can load only one libnvidia-ml in its life
// (see ErrOtherLibrary). go-nvml binds a function when it is first called, and
// one that the library lacks ends the process, so whatever an old driver may
// lack is looked up first. And each call may hang, so each is made by calls.
package nvml

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Options say where the driver is and how patient to be.
type Options struct {
	HostRoot   string // where the host's file system is seen; "" is "/"
	DriverRoot string // of the host, below which the library is looked for; "" is "/"
	Log        *slog.Logger

	// CallTimeout is how long a call of NVML may take before its GPU counts as
	// hanging; 0 is 20 s: the first one wakes GPUs that are not in persistence
	// mode, which takes seconds for each.
	CallTimeout time.Duration
	// ProbeInterval is how often Watch looks for what the driver reports by no
	// event: a GPU that fell silent or came back, another MIG layout (the
	// event for that exists, but not in all drivers). While a GPU is to be let go of,
	// or was, it is no longer than 10 s. 0 is 10 s.
	ProbeInterval time.Duration
	// Slice is how long Watch waits inside NVML before it looks whether it is to end,
	// each time a few wake-ups of the process. An event ends a slice at once, but
	// nothing else does: the end of Watch is that late, and Close after it. While a GPU
	// is to be let go of, it is no longer than 200 ms. 0 is 200 ms.
	Slice time.Duration
	// Outside looks at GPUs that this process lets go of; nil: see LetGo.
	Outside Outside

	// Failed is told of each call of NVML that failed, or did not come back, by
	// its code in nvml.h without "NVML_ERROR_" (GPU_IS_LOST), or HUNG. What NVML
	// answers as a matter of course (not supported, no event yet) is no failure.
	// It is called from several goroutines and must not wait. nil: nobody is told.
	Failed func(code string)
}

// Source is a gpu.Source that asks NVML.
type Source struct {
	lib       nvml.Interface
	library   string
	simulated bool
	has       map[string]bool // optional functions that the library has
	places    places
	log       *slog.Logger
	probe     time.Duration // between two probes of Watch
	slice     time.Duration // see Options.Slice
	hurried   time.Duration // the longest between two probes while there is something to let go of, or was
	quiet     time.Duration // without an event before NVML is shut down to let go of a GPU

	outside      Outside
	outsideEvery time.Duration

	*calls
	watching atomic.Bool
	brief    atomic.Bool   // slices are to be short
	hurry    chan struct{} // capacity 1: there is something to let go of

	mu     sync.Mutex
	closed bool
	memory memory
}

var _ gpu.Source = (*Source)(nil)

// required are the functions without which nothing can be told; every driver
// since R450 has them.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
	"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability",
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes",
}

// optional are those that are called only where the library has them.
var optional = []string{
	"nvmlSystemGetCudaDriverVersion_v2",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2",
	"nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
	"nvmlDeviceGetGpuInstanceById", "nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetInfo",
	"nvmlGpuInstanceGetComputeInstanceById", "nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlComputeInstanceGetInfo_v2",
	"nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryAffinity",
	"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
	"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetGpuFabricInfo",
	"nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetCurrentClocksThrottleReasons",
	"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration",
	"nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
}

// Open finds libnvidia-ml (see FindLibrary), or else where the loader would,
// loads it into the process and initialises it. Its error wraps gpu.ErrNoDriver
// when there is no library or no kernel module, gpu.ErrNoPermission,
// gpu.ErrVersionMismatch, or ErrOtherLibrary.
func Open(o Options) (*Source, error) {
	path, err := findAnywhere(o.HostRoot, o.DriverRoot)
	if err != nil {
		return nil, err
	}
	if err := mayLoad(path); err != nil {
		return nil, err
	}
	// This reference is never dropped: the library stays what it is for the
	// life of the process, however often NVML is shut down.
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
		lib: lib, log: o.Log, probe: o.ProbeInterval, slice: o.Slice, hurried: 10 * time.Second, hurry: make(chan struct{}, 1), quiet: 10 * time.Second,
		outside: o.Outside, outsideEvery: outsideEvery,
		memory: memory{devices: map[gpu.UUID]reading{}, out: map[gpu.UUID]gpu.Fault{}, ancestors: map[[2]gpu.PCIAddress]gpu.LinkKind{}, numa: map[gpu.PCIAddress]int{}},
	}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if s.probe <= 0 {
		s.probe = 10 * time.Second
	}
	if s.slice <= 0 {
		s.slice = briefly
	}
	limit := o.CallTimeout
	if limit <= 0 {
		limit = 20 * time.Second
	}
	s.calls = newCalls(limit, o.Failed)
	return s
}

// mayLoad refuses a library where another is in the process already.
func mayLoad(path string) error {
	there, err := loaded()
	if err != nil {
		return fmt.Errorf("looking for a libnvidia-ml that is loaded already: %w", err)
	}
	if there == "" || there == path {
		return nil
	}
	return fmt.Errorf("%w: %s, and not %s: the driver was replaced; start the process again", ErrOtherLibrary, there, path)
}

// initialise is nvmlInit, which may hang as any other call.
func (s *Source) initialise(ctx context.Context) error {
	_, err := call(ctx, s.calls, "the driver", func() (struct{}, error) {
		return struct{}{}, check("nvmlInit", s.lib.Init())
	})
	return err
}

// Library is the real path of the library that is loaded: compare it with
// FindLibrary to see that it was replaced.
func (s *Source) Library() string { return s.library }

// Close ends the use of NVML, which lets go of the GPUs. End Watch before.
func (s *Source) Close() error {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if was {
		return nil
	}
	err := s.alone(context.Background(), s.limit, func() error { return check("nvmlShutdown", s.lib.Shutdown()) })
	return errors.Join(err, s.places.Close())
}

// open reports whether the source is still open.
func (s *Source) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return nil
}
