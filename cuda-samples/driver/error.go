package driver

import (
	"fmt"
	"strings"
)

// Results that a sample has something to say about (cuda.h, CUresult).
const (
	OutOfMemory    = 2
	NotInitialized = 3
	NoDevice       = 100
	InvalidDevice  = 101
	NoBinary       = 209
	Uncorrectable  = 214
	InvalidPTX     = 218
	NoJIT          = 221
	NewerPTX       = 222
	System         = 304
	IllegalAddress = 700
	NotSupported   = 801
	NotReady       = 802
	Mismatch       = 803
	NotCompatible  = 804
	Unknown        = 999
)

// Error is a driver call that failed.
type Error struct {
	Call string // "cuInit"
	Code int    // CUresult
	Name string // "CUDA_ERROR_NO_DEVICE"; empty where the driver has none
	Log  string // what the PTX compiler said, for cuModuleLoadDataEx
	// Refused lists the device nodes that this process has no permission to open.
	Refused []string
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: error %d", e.Call, e.Code)
	if e.Name != "" {
		s += " (" + e.Name + ")"
	}
	if e.Log != "" {
		s += ": " + e.Log
	}
	if len(e.Refused) > 0 {
		return s + ": no permission to open " + strings.Join(e.Refused, ", ") +
			"; nodes that are only mounted are refused: let the container runtime inject the GPU (CDI), or give the user access to the nodes"
	}
	if next := e.action(); next != "" {
		s += "; " + next
	}
	return s
}

// compileCall is the call that compiles PTX.
const compileCall = "cuModuleLoadDataEx"

// action is what the reader should do next.
func (e *Error) action() string {
	// Which of the two depends on the driver's release.
	if e.Code == NoJIT || e.Code == Unknown && e.Call == compileCall {
		return "the JIT compiler library (libnvidia-ptxjitcompiler.so.1) is not in this container: let the container runtime inject all of the driver's compute libraries (CDI, or NVIDIA_DRIVER_CAPABILITIES with compute)"
	}
	switch e.Code {
	case NoDevice:
		return "no GPU is visible here: is the container given one, and does CUDA_VISIBLE_DEVICES name one that is there?"
	case InvalidDevice:
		return "there is no such device: list them with nvidia-smi -L"
	case System:
		return "the driver's device nodes cannot be opened: is the container allowed to use /dev/nvidia*?"
	case NotReady:
		return "the GPUs are not ready yet: is nvidia-fabricmanager running?"
	case Mismatch:
		return "libcuda and the kernel module are of different driver versions: restart the container or, on the host, reload the module"
	case NotCompatible:
		return "a compatibility libcuda is in use that this GPU does not support: remove cuda-compat from the library path"
	case OutOfMemory:
		return "the GPU's memory is taken: nvidia-smi shows by whom"
	case NoBinary, NewerPTX:
		return "the driver is too old for this program, or the GPU older than Maxwell"
	case Uncorrectable:
		return "the GPU's memory has an error that ECC cannot correct: drain the node and reset the GPU, which remaps the row; look for Xid 48, 63, 64 or 94 in dmesg"
	case InvalidPTX:
		return "the kernel cannot be compiled: this program or the driver is damaged"
	case Unknown:
		return "may this process open /dev/nvidia-uvm, and is the nvidia-uvm module loaded? Has the GPU fallen off the bus (Xid 79 in dmesg)?"
	case IllegalAddress, 714, 715, 716, 717, 718, 719:
		return "the GPU computed wrongly or was disturbed: look for Xid lines in dmesg"
	}
	return ""
}
