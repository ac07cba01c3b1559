package gpu

import (
	"slices"
	"strconv"
)

// XIDClass classifies an XID by its consequence for the GPU.
type XIDClass string

// The classes of XID.
const (
	XIDApplication XIDClass = "application" // a program can cause it; ending the program ends it
	XIDNotice      XIDClass = "notice"      // the GPU works on
	XIDReset       XIDClass = "reset"       // the GPU has to be reset
	XIDFatal       XIDClass = "fatal"       // a reset is not enough: a reboot, another driver, or hands on the machine
)

// Action is the effect of a reported error on the GPU's health.
type Action string

// The actions.
const (
	ActionIgnore    Action = "ignore"    // it is reported, and the GPU's health does not change
	ActionUnhealthy Action = "unhealthy" // the GPU is not allocated
	// ActionAsk leaves the decision to the driver: the GPU becomes unhealthy if the driver then asks
	// for a recovery of the GPU, or if it cannot be asked, because it is older than R570.
	ActionAsk Action = "ask"
)

// Recovery is the evidence needed before a GPU that is unhealthy after an error may be
// allocated again. Each value needs more than the one before it.
type Recovery string

// The ways to recover.
const (
	RecoveryQuiet Recovery = "quiet" // a while without another error and then a probe that passes, or a reset
	RecoveryReset Recovery = "reset" // a reset of the GPU, observed from outside
	RecoveryNever Recovery = "never" // a reload of the driver, or a reboot
)

// XIDInfo describes one XID, or a run of XIDs with the same meaning for several
// engines. An XID is the number under which the driver reports an error of a GPU.
type XIDInfo struct {
	First, Last uint64 // the numbers; most runs have one
	Meaning     string // a few words, to follow the number
	Class       XIDClass
	Action      Action   // by default
	Recovery    Recovery // by default, where the action is, or is made, ActionUnhealthy
	// Contained reports whether the error is confined to the MIG GPU instance that the
	// driver names with it: the affected engines and memory belong to that instance
	// alone. Its compute instances share them.
	Contained bool
	Hardware  bool   // the GPU is at fault and not the program, though ending the program ends the error
	Advice    string // the immediate action in NVIDIA's catalogue, in its words; "": none
	Source    XIDSource
	Note      string // the reason for the default, if class and advice do not explain it
}

// XIDSource is a bit set of the sources of an XIDInfo.
type XIDSource uint8

// The sources.
const (
	// SourceCatalog is https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html,
	// as of October 2025: Ampere and newer.
	SourceCatalog XIDSource = 1 << iota
	// SourceListing is the list for older GPUs in https://docs.nvidia.com/deploy/xid-errors/.
	SourceListing
	// SourceReference is the list of ignored XIDs in the reference device
	// plugin, NVIDIA/k8s-device-plugin, internal/rm/health.go.
	SourceReference
	// SourceMemory is https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/.
	SourceMemory
	// SourceGPUd is leptonai/gpud, components/accelerator/nvidia/xid.
	SourceGPUd
	// SourceDriver is the list of errors in NVIDIA/open-gpu-kernel-modules,
	// src/common/sdk/nvidia/inc/nverror.h, up to 595.45.04.
	SourceDriver
)

// XIDs returns all known XIDs, by number.
func XIDs() []XIDInfo { return slices.Clone(xidTable) }

// XID looks up an XID; ok is false if it is not in the table, which does not mean that
// it is harmless.
func XID(number uint64) (info XIDInfo, ok bool) {
	i, ok := slices.BinarySearchFunc(xidTable, number, func(row XIDInfo, n uint64) int {
		switch {
		case row.Last < n:
			return -1
		case row.First > n:
			return 1
		}
		return 0
	})
	if !ok {
		return XIDInfo{}, false
	}
	return xidTable[i], true
}

// XIDText returns the number with its meaning, for logs: "XID 79 (the GPU no longer
// answers on PCIe)", or "XID 1234" if it is not in the table.
func XIDText(number uint64) string {
	text := "XID " + strconv.FormatUint(number, 10)
	if info, ok := XID(number); ok {
		text += " (" + info.Meaning + ")"
	}
	return text
}
