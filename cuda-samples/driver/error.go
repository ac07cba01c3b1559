package driver

import (
	"fmt"
	"strings"
)

// Results of the driver (CUresult in cuda.h, there CUDA_ERROR_OUT_OF_MEMORY and so on).
const (
	OutOfMemory                = 2
	stubLibrary                = 34
	deviceUnavailable          = 46
	noDevice                   = 100
	invalidDevice              = 101
	deviceNotLicensed          = 102
	noBinaryForGPU             = 209
	eccUncorrectable           = 214
	invalidPTX                 = 218
	nvlinkUncorrectable        = 220
	jitCompilerNotFound        = 221
	unsupportedPTXVersion      = 222
	operatingSystem            = 304
	illegalAddress             = 700
	launchTimeout              = 702
	hardwareStackError         = 714
	illegalInstruction         = 715
	misalignedAddress          = 716
	invalidAddressSpace        = 717
	invalidPC                  = 718
	launchFailed               = 719
	systemNotReady             = 802
	systemDriverMismatch       = 803
	compatNotSupportedOnDevice = 804
	mpsConnectionFailed        = 805
	mpsRPCFailure              = 806
	mpsServerNotReady          = 807
	mpsMaxClientsReached       = 808
	mpsMaxConnectionsReached   = 809
	unknown                    = 999
)

// Error is a driver call that failed.
type Error struct {
	Call string // "cuInit"
	Code int    // CUresult
	Name string // "CUDA_ERROR_NO_DEVICE"; "" if the driver has no name for the code
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
			"; mounting /dev/nvidia* alone is not enough, the device cgroup must allow it; let the container runtime inject the GPU (CDI), or give the user access to the nodes"
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
	// If the compiler's library is missing, some releases of the driver return the first code, others the second.
	if e.Code == jitCompilerNotFound || e.Code == unknown && e.Call == compileCall {
		return "the JIT compiler library (libnvidia-ptxjitcompiler.so.1) is not in this container: let the container runtime inject all of the driver's compute libraries (CDI, or NVIDIA_DRIVER_CAPABILITIES with compute)"
	}
	return actions[e.Code]
}

const (
	tooOld = "the driver is too old for this program, or the GPU older than Maxwell"
	mps    = "the MPS daemon does not serve this process: is it running, has it room for another client, and is its pipe directory mounted here?"
	// The samples' kernels are known to be right, so these results point at the hardware.
	disturbed = "the GPU computed wrongly or was disturbed: look for Xid lines in dmesg"
)

// actions holds the next action for each result.
var actions = map[int]string{
	OutOfMemory:                "the GPU's memory is taken: nvidia-smi shows by whom",
	stubLibrary:                "this libcuda is the toolkit's stub, which has no driver in it: take the stubs folder off the library path",
	deviceUnavailable:          "another process has the GPU for itself (compute mode, nvidia-smi -q -d COMPUTE), or the GPU is lost: look for Xid lines in dmesg",
	noDevice:                   "no GPU is visible here: is the container given one, and does CUDA_VISIBLE_DEVICES name one that is there?",
	invalidDevice:              "there is no such device: list them with nvidia-smi -L",
	deviceNotLicensed:          "the virtual GPU has no licence yet: nvidia-smi -q tells its state",
	noBinaryForGPU:             tooOld,
	eccUncorrectable:           "the GPU's memory has an error that ECC cannot correct: drain the node and reset the GPU, which remaps the row; look for Xid 48, 63, 64 or 94 in dmesg",
	invalidPTX:                 "the GPU's program (PTX) cannot be compiled: this program or the driver is damaged",
	nvlinkUncorrectable:        "an NVLink has an error that cannot be corrected: look for Xid 74 in dmesg, and at nvidia-smi nvlink -e",
	unsupportedPTXVersion:      tooOld,
	operatingSystem:            "the driver's device nodes cannot be opened: is the container allowed to use /dev/nvidia*?",
	illegalAddress:             disturbed,
	launchTimeout:              "the GPU's program took longer than the driver allows, as on a GPU that drives a display",
	hardwareStackError:         disturbed,
	illegalInstruction:         disturbed,
	misalignedAddress:          disturbed,
	invalidAddressSpace:        disturbed,
	invalidPC:                  disturbed,
	launchFailed:               disturbed,
	systemNotReady:             "the GPUs are not ready yet: is nvidia-fabricmanager running?",
	systemDriverMismatch:       "libcuda and the kernel module are of different driver versions: restart the container or, on the host, reload the module",
	compatNotSupportedOnDevice: "a compatibility libcuda is in use that this GPU does not support: remove cuda-compat from the library path",
	mpsConnectionFailed:        mps,
	mpsRPCFailure:              mps,
	mpsServerNotReady:          mps,
	mpsMaxClientsReached:       mps,
	mpsMaxConnectionsReached:   mps,
	unknown:                    "may this process open /dev/nvidia-uvm, and is the nvidia-uvm module loaded? Has the GPU fallen off the bus (Xid 79 in dmesg)?",
}
