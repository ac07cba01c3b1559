package nvml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// wanted is the mask of events to register, as far as the GPU supports them: errors,
// and events after which a Snapshot would differ. Single-bit errors are corrected and
// of no concern.
const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventMigConfigChange |
	nvml.EventTypeDramRetirementFailure | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction

// eventSet is an NVML event set and the goroutine that waits on it. All of its
// methods but those of the goroutine are called by the watch that made it.
type eventSet struct {
	source   *Source
	set      nvml.EventSet
	names    map[nvml.Device]gpu.UUID // of the registered GPUs, by handle
	worked   atomic.Bool              // a wait on it has succeeded
	made     time.Time
	inside   atomic.Int64 // when the wait inside NVML began, after made; 0: there is none
	stopping bool
	stopped  time.Time     // when stop was called
	quit     chan struct{} // closed by stop
	ended    chan struct{} // closed when the goroutine has freed the set
}

// wait is the result of waiting on an event set, other than a timeout.
type wait struct {
	set  *eventSet
	data nvml.EventData
	ret  nvml.Return
	time time.Time
}

// errNoEvents means that the driver reports no XIDs of a GPU, or of any: it says so, and does not fail.
var errNoEvents = errors.New("the driver supports no such events")

// newEventSet creates an event set. The error wraps errNoEvents if the driver has none.
func (w *watch) newEventSet() (*eventSet, error) {
	if !w.hasAll(watching...) || !slices.ContainsFunc(waiting, func(symbol string) bool { return w.has[symbol] }) {
		return nil, errNoEvents
	}
	set, err := call(w.ctx, w.calls, "events", func() (nvml.EventSet, error) {
		set, ret := w.lib.EventSetCreate()
		if isUnsupported(ret) {
			return nil, errNoEvents
		}
		return set, check("nvmlEventSetCreate", ret)
	})
	if err != nil {
		return nil, err
	}
	return &eventSet{
		source: w.Source, set: set, names: map[nvml.Device]gpu.UUID{}, made: time.Now(),
		quit: make(chan struct{}), ended: make(chan struct{}),
	}, nil
}

// errShifted means that an index is that of another GPU by now: a GPU has left the bus or returned.
var errShifted = errors.New("the GPUs have other indexes now")

// registerOne adds a GPU to the set. The error wraps errShifted if the GPUs must be read again before, and
// errNoEvents if the driver reports no XIDs of the GPU.
func (w *watch) registerOne(set *eventSet, d gpu.Device) error {
	handle, err := call(w.ctx, w.calls, subject(d.Index, len(w.seen)), func() (nvml.Device, error) {
		device, ret := w.lib.DeviceGetHandleByIndex(d.Index)
		if ret == nvml.ERROR_INVALID_ARGUMENT { // there are fewer GPUs than that
			return nil, fmt.Errorf("%w: there is no GPU %d", errShifted, d.Index)
		}
		if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
			return nil, err
		}
		id, ret := device.GetUUID()
		if err := check("nvmlDeviceGetUUID", ret); err != nil {
			return nil, err
		}
		if gpu.UUID(id) != d.UUID {
			return nil, fmt.Errorf("%w: GPU %d is %s", errShifted, d.Index, id)
		}
		supported, ret := device.GetSupportedEventTypes()
		if isUnsupported(ret) || ret == nvml.SUCCESS && supported&nvml.EventTypeXidCriticalError == 0 {
			return nil, errNoEvents
		}
		if err := check("nvmlDeviceGetSupportedEventTypes", ret); err != nil {
			return nil, err
		}
		ret = device.RegisterEvents(wanted&supported, set.set)
		if isUnsupported(ret) {
			return nil, errNoEvents
		}
		return device, check("nvmlDeviceRegisterEvents", ret)
	})
	if err != nil {
		return err
	}
	set.names[handle] = d.UUID
	return nil
}

// count returns the number of registered GPUs with a UUID: several may have the same.
func (e *eventSet) count(id gpu.UUID) (n int) {
	for _, other := range e.names {
		if other == id {
			n++
		}
	}
	return n
}

func (e *eventSet) uuids() []gpu.UUID { return slices.Collect(maps.Values(e.names)) }

// start starts the goroutine that waits. It sends results to waits, until over is
// closed.
func (e *eventSet) start(waits chan<- wait, over <-chan struct{}) {
	go func() {
		defer close(e.ended)
		e.waitForEvents(waits, over)
	}()
}

// stop makes the goroutine end once it has delivered the events already queued.
func (e *eventSet) stop() {
	if !e.stopping {
		e.stopping, e.stopped = true, time.Now()
		close(e.quit)
	}
}

func (e *eventSet) hasEnded() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

func (e *eventSet) ending() bool { return e.stopping && !e.hasEnded() }

// hangs reports whether the goroutine should have ended a while ago.
func (e *eventSet) hangs() bool {
	return e.ending() && time.Since(e.stopped) > e.source.slice+e.source.limit
}

// isDeaf reports whether a wait should have returned a while ago, so that no event is received.
func (e *eventSet) isDeaf() bool {
	began := time.Duration(e.inside.Load())
	return began != 0 && time.Since(e.made)-began > e.source.slice+e.source.limit
}

// waitForEvents waits for events until stop is called or waiting fails, and then
// frees the set. A wait cannot be interrupted, so it is done in slices; an event
// ends a slice at once.
func (e *eventSet) waitForEvents(waits chan<- wait, over <-chan struct{}) {
	for {
		slice := e.source.nextSlice()
		select {
		case <-e.quit:
			slice = 0 // still report the events queued until now
		default:
		}
		began := time.Now()
		data, ret, ok := e.waitOnce(slice)
		if !ok {
			return // the source was closed, which frees everything
		}
		if ret == nvml.SUCCESS || ret == nvml.ERROR_TIMEOUT {
			e.worked.Store(true)
		}
		if ret == nvml.ERROR_TIMEOUT && slice > 0 {
			e.sleep(slice/2 - time.Since(began))
			continue
		}
		if ret != nvml.SUCCESS {
			e.free()
		}
		if ret == nvml.ERROR_TIMEOUT {
			return
		}
		e.source.reportFailure(check("nvmlEventSetWait", ret))
		select {
		case waits <- wait{e, data, ret, time.Now()}:
		case <-over:
			if ret == nvml.SUCCESS {
				e.free()
			}
			return
		}
		if ret != nvml.SUCCESS {
			return
		}
	}
}

// sleep waits for a time, or until stop is called: a driver that does not wait itself must not keep a CPU busy.
func (e *eventSet) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-e.quit:
	case <-timer.C:
	}
}

// shortSlice is a slice short enough not to delay anybody.
const shortSlice = 200 * time.Millisecond

// nextSlice returns the time to wait inside NVML now.
func (s *Source) nextSlice() time.Duration {
	if s.brief.Load() {
		return min(s.slice, shortSlice)
	}
	return s.slice
}

// waitOnce waits for one event; ok is false when the source is closed.
func (e *eventSet) waitOnce(slice time.Duration) (data nvml.EventData, ret nvml.Return, ok bool) {
	defer e.source.enter()()
	if e.source.checkOpen() != nil {
		return data, nvml.ERROR_UNINITIALIZED, false
	}
	e.inside.Store(int64(time.Since(e.made)))
	defer e.inside.Store(0)
	data, ret = e.set.Wait(uint32(slice.Milliseconds()))
	return data, ret, true
}

func (e *eventSet) free() {
	defer e.source.enter()()
	if e.source.checkOpen() != nil {
		return
	}
	if ret := e.set.Free(); ret != nvml.SUCCESS {
		e.source.log.Warn("an NVML event set could not be freed", "message", check("nvmlEventSetFree", ret).Error())
	}
}

// none is NVML's value for an event that concerns no particular MIG device.
const none = 0xffffffff

// event translates an event of NVML. ok is false if the wait failed or the event is of a kind that
// package gpu does not have.
func (w wait) event() (e gpu.Event, ok bool) {
	if w.ret != nvml.SUCCESS {
		return e, false
	}
	e = gpu.Event{UUID: w.set.uuid(w.data.Device), GPUInstance: -1, ComputeInstance: -1, Time: w.time}
	if w.data.GpuInstanceId != none {
		e.GPUInstance = int(w.data.GpuInstanceId)
	}
	if w.data.ComputeInstanceId != none {
		e.ComputeInstance = int(w.data.ComputeInstanceId)
	}
	switch w.data.EventType {
	case nvml.EventTypeXidCriticalError:
		e.Kind, e.XID, e.Message = gpu.EventXID, w.data.EventData, gpu.XIDText(w.data.EventData)
	case nvml.EventTypeDoubleBitEccError:
		e.Kind, e.Message = gpu.EventECC, "uncorrectable ECC error"
	case nvml.EventMigConfigChange:
		e.Kind, e.Message = gpu.EventChanged, "the MIG layout changed"
	case nvml.EventTypeDramRetirementFailure:
		e.Kind, e.Message = gpu.EventChanged, "faulty memory could not be retired"
	case nvml.EventTypeGpuUnavailableError:
		e.Kind, e.Message = gpu.EventLost, "the driver says that the GPU is not available"
	case nvml.EventTypeGpuRecoveryAction:
		e.Kind, e.Message = gpu.EventChanged, "what the driver asks to be done to recover the GPU changed"
	default:
		return e, false
	}
	return e, true
}

// uuid returns the UUID of an event's GPU. A lost GPU cannot be queried, so the UUID is
// from its registration. "" stands for every GPU: an error whose GPU is unknown must
// not be ignored.
func (e *eventSet) uuid(handle nvml.Device) gpu.UUID {
	return e.names[handle]
}
