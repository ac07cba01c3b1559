package gpu

import (
	"slices"
	"strconv"
)

// XIDClass says in one word what an XID tells of the GPU.
type XIDClass string

// The classes of XID.
const (
	XIDApplication XIDClass = "application" // a program can cause it; ending the program ends it
	XIDNotice      XIDClass = "notice"      // the GPU works on
	XIDReset       XIDClass = "reset"       // the GPU has to be reset
	XIDFatal       XIDClass = "fatal"       // a reset is not enough: a reboot, another driver, or hands on the machine
)

// Action is what a report of an error does to the GPU's health.
type Action string

// The actions.
const (
	ActionIgnore    Action = "ignore"    // it is told, and the GPU stays as it is
	ActionUnhealthy Action = "unhealthy" // the GPU is given to nobody
)

// Recovery is what it takes before a GPU that is unhealthy for an error may be
// given away again. Each takes more than the one before it.
type Recovery string

// The ways to recover.
const (
	RecoveryQuiet Recovery = "quiet" // a while without another one and then a probe that passes, or a reset
	RecoveryReset Recovery = "reset" // a reset of the GPU, seen from outside
	RecoveryNever Recovery = "never" // nothing but a driver that is loaded anew, or a reboot
)

// XIDInfo is what is known of one XID, or of a run of them that mean the same
// of several engines. An XID is the number under which the driver reports an
// error of a GPU.
type XIDInfo struct {
	First, Last uint64 // the numbers; most runs have one
	Meaning     string // a few words, to stand after the number
	Class       XIDClass
	Action      Action   // by default
	Recovery    Recovery // by default, where the action is, or is made, ActionUnhealthy
	// Contained says that the error stays in the GPU instance of MIG that the
	// driver names with it: the engines and the memory that it concerns belong to
	// that instance alone. Its compute instances share them.
	Contained bool
	Advice    string // what NVIDIA's catalogue calls for at once, in its word; "": nothing
	Source    XIDSource
	Note      string // why the default is what it is, where class and advice do not say it
}

// XIDSource says where the knowledge of an XID is from. Sources add up.
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
)

// XIDs returns all that is known, by number.
func XIDs() []XIDInfo { return slices.Clone(xidTable) }

// XID looks up what is known of an XID; ok is false for one that is not in the
// table, which says nothing about how bad it is.
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
// answers on PCIe)", or "XID 1234" when nothing is known of it.
func XIDText(number uint64) string {
	text := "XID " + strconv.FormatUint(number, 10)
	if info, ok := XID(number); ok {
		text += " (" + info.Meaning + ")"
	}
	return text
}
