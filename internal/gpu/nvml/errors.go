package nvml

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ErrOtherLibrary is returned by Open in a process that has already loaded
// a libnvidia-ml other than the one it found, because the driver was replaced.
// A process cannot swap it: replace the process (exec).
var ErrOtherLibrary = errors.New("another libnvidia-ml is already loaded into this process")

var (
	errClosed   = errors.New("nvml: the source is closed")
	errWatching = errors.New("nvml: Watch is already running; one at a time")
)

// words maps codes of nvmlReturn_t in nvml.h to their names and meanings. go-nvml
// would query the library, through a variable that it changes while it loads and
// unloads the library.
var words = map[nvml.Return]struct{ name, text string }{
	nvml.ERROR_UNINITIALIZED:           {"UNINITIALIZED", "NVML is not initialised"},
	nvml.ERROR_INVALID_ARGUMENT:        {"INVALID_ARGUMENT", "invalid argument"},
	nvml.ERROR_NOT_SUPPORTED:           {"NOT_SUPPORTED", "not supported"},
	nvml.ERROR_NO_PERMISSION:           {"NO_PERMISSION", "no permission"},
	nvml.ERROR_NOT_FOUND:               {"NOT_FOUND", "not found"},
	nvml.ERROR_INSUFFICIENT_POWER:      {"INSUFFICIENT_POWER", "the GPU lacks power: look at its cables"},
	nvml.ERROR_DRIVER_NOT_LOADED:       {"DRIVER_NOT_LOADED", "the kernel module is not loaded"},
	nvml.ERROR_TIMEOUT:                 {"TIMEOUT", "timeout"},
	nvml.ERROR_IRQ_ISSUE:               {"IRQ_ISSUE", "the kernel found an interrupt problem with the GPU"},
	nvml.ERROR_LIBRARY_NOT_FOUND:       {"LIBRARY_NOT_FOUND", "the library was not found"},
	nvml.ERROR_FUNCTION_NOT_FOUND:      {"FUNCTION_NOT_FOUND", "the library lacks the function"},
	nvml.ERROR_CORRUPTED_INFOROM:       {"CORRUPTED_INFOROM", "the GPU's InfoROM is damaged"},
	nvml.ERROR_GPU_IS_LOST:             {"GPU_IS_LOST", "the GPU is lost: nothing reaches it any more"},
	nvml.ERROR_RESET_REQUIRED:          {"RESET_REQUIRED", "the GPU needs a reset"},
	nvml.ERROR_OPERATING_SYSTEM:        {"OPERATING_SYSTEM", "the operating system blocked the GPU's control device"},
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: {"LIB_RM_VERSION_MISMATCH", "library and kernel module are of different versions"},
	nvml.ERROR_IN_USE:                  {"IN_USE", "in use"},
	nvml.ERROR_INSUFFICIENT_RESOURCES:  {"INSUFFICIENT_RESOURCES", "the GPU has no room for it"},
	nvml.ERROR_MEMORY:                  {"MEMORY", "out of memory"},
	nvml.ERROR_GPU_NOT_FOUND:           {"GPU_NOT_FOUND", "no GPU was found"},
	nvml.ERROR_UNKNOWN:                 {"UNKNOWN", "unknown error of the driver"},
}

// name returns the code without "NVML_ERROR_": GPU_IS_LOST, or the number of an
// unknown code.
func name(ret nvml.Return) string {
	if word, known := words[ret]; known {
		return word.name
	}
	return strconv.Itoa(int(ret))
}

// callError is a call of NVML that failed.
type callError struct {
	call string
	ret  nvml.Return
}

func (e *callError) Error() string {
	text := "failed"
	if word, known := words[e.ret]; known {
		text = word.text
	}
	return fmt.Sprintf("%s: %s (NVML error %d)", e.call, text, int(e.ret))
}

// Unwrap returns the sentinel of package gpu for failures of the whole driver.
func (e *callError) Unwrap() error {
	switch e.ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_UNINITIALIZED:
		return gpu.ErrNoDriver
	case nvml.ERROR_NO_PERMISSION:
		return gpu.ErrNoPermission
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return gpu.ErrVersionMismatch
	default:
		return nil
	}
}

// check converts a return code of NVML to an error.
func check(call string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return &callError{call, ret}
}

// returned returns the code that NVML returned, or SUCCESS if err is not from NVML.
func returned(err error) nvml.Return {
	if failed, ok := errors.AsType[*callError](err); ok {
		return failed.ret
	}
	return nvml.SUCCESS
}

// hungError is the error of a call that has not returned in time.
type hungError struct {
	what  string
	limit time.Duration
}

func (e *hungError) Error() string {
	return fmt.Sprintf("NVML has not answered about %s for %v: the GPU or its driver hangs; look for NVRM lines in the kernel log", e.what, e.limit)
}

// wholeDriver reports whether an error that one GPU's call returned is about the
// driver and so about all GPUs. NO_PERMISSION is not: one device node may be
// closed to us while others are open.
func wholeDriver(err error) bool {
	return errors.Is(err, gpu.ErrNoDriver) || errors.Is(err, gpu.ErrVersionMismatch)
}

// faultOf returns the Fault of a GPU that could not be read.
func faultOf(err error) gpu.Fault {
	reason := gpu.ReasonUnreadable
	switch returned(err) {
	case nvml.ERROR_GPU_IS_LOST:
		reason = gpu.ReasonLost
	case nvml.ERROR_RESET_REQUIRED:
		reason = gpu.ReasonResetNeeded
	}
	return gpu.Fault{Reason: reason, Message: err.Error()}
}

// wrapOpen adds the remedy to an error of opening a source.
func wrapOpen(library string, err error) error {
	next := "see the kernel log (dmesg) for NVRM lines"
	switch {
	case errors.Is(err, gpu.ErrNoDriver):
		next = "load the nvidia kernel module"
	case errors.Is(err, gpu.ErrNoPermission):
		next = "let this process open /dev/nvidiactl and /dev/nvidia*"
	case errors.Is(err, gpu.ErrVersionMismatch):
		next = "finish the driver upgrade: load the kernel module that belongs to the library, or reboot"
	}
	if sentinel := errors.Unwrap(err); sentinel != nil {
		return fmt.Errorf("%w: %s: %w; %s", sentinel, library, err, next)
	}
	return fmt.Errorf("%s: %w; %s", library, err, next)
}
