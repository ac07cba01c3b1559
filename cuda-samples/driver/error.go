package driver

import (
	"fmt"
	"strings"
)

// Results that code branches on (cuda.h, CUresult).
const (
	OutOfMemory = 2
	noJIT       = 221
	unknown     = 999
)

// Error is a driver call that failed.
type Error struct {
	Call string // "cuInit"
	Code int    // CUresult
	Name string // "CUDA_ERROR_NO_DEVICE"; empty where the driver has none
	Log  string // output of the PTX compiler, for cuModuleLoadDataEx
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

// action returns what the reader should do next.
func (e *Error) action() string {
	// The driver's release decides which of the two it returns.
	if e.Code == noJIT || e.Code == unknown && e.Call == compileCall {
		return "the JIT compiler library (libnvidia-ptxjitcompiler.so.1) is not in this container: let the container runtime inject all of the driver's compute libraries (CDI, or NVIDIA_DRIVER_CAPABILITIES with compute)"
	}
	return actions[e.Code]
}

const (
	tooOld    = "the driver is too old for this program, or the GPU older than Maxwell"
	mps       = "the MPS daemon does not serve this process: is it running, has it room for another client, and is its pipe directory mounted here?"
	disturbed = "the GPU computed wrongly or was disturbed: look for Xid lines in dmesg"
)

// actions holds the next action for each result (cuda.h, CUresult).
var actions = map[int]string{
	OutOfMemory: "the GPU's memory is taken: nvidia-smi shows by whom",
	34:          "this libcuda is the toolkit's stub, which has no driver in it: take the stubs folder off the library path",
	46:          "another process has the GPU for itself (compute mode, nvidia-smi -q -d COMPUTE), or the GPU is lost: look for Xid lines in dmesg",
	100:         "no GPU is visible here: is the container given one, and does CUDA_VISIBLE_DEVICES name one that is there?",
	101:         "there is no such device: list them with nvidia-smi -L",
	102:         "the virtual GPU has no licence yet: nvidia-smi -q tells its state",
	209:         tooOld,
	214:         "the GPU's memory has an error that ECC cannot correct: drain the node and reset the GPU, which remaps the row; look for Xid 48, 63, 64 or 94 in dmesg",
	218:         "the kernel cannot be compiled: this program or the driver is damaged",
	220:         "an NVLink has an error that cannot be corrected: look for Xid 74 in dmesg, and at nvidia-smi nvlink -e",
	222:         tooOld,
	304:         "the driver's device nodes cannot be opened: is the container allowed to use /dev/nvidia*?",
	700:         disturbed,
	702:         "the kernel took longer than the driver allows, as on a GPU that drives a display",
	714:         disturbed,
	715:         disturbed,
	716:         disturbed,
	717:         disturbed,
	718:         disturbed,
	719:         disturbed,
	802:         "the GPUs are not ready yet: is nvidia-fabricmanager running?",
	803:         "libcuda and the kernel module are of different driver versions: restart the container or, on the host, reload the module",
	804:         "a compatibility libcuda is in use that this GPU does not support: remove cuda-compat from the library path",
	805:         mps,
	806:         mps,
	807:         mps,
	808:         mps,
	809:         mps,
	unknown:     "may this process open /dev/nvidia-uvm, and is the nvidia-uvm module loaded? Has the GPU fallen off the bus (Xid 79 in dmesg)?",
}
