// Package gpu defines the vocabulary of the project: a GPU, the link between two
// GPUs, the faults of a GPU, and a snapshot of a node at one moment.
//
// A Source (NVML, or the in-memory one of gputest) returns a whole Snapshot and
// delivers Events. A Snapshot never changes after it was made, so goroutines may
// share it.
package gpu

import (
	"context"
	"errors"
	"time"
)

// UUID names a GPU ("GPU-…") or a MIG device ("MIG-…") as NVML spells it.
type UUID string

// PCIAddress is a PCI address as sysfs spells it: "0000:3b:00.0", lower case,
// four-digit domain.
type PCIAddress string

// Driver describes the driver that a Source talks to.
type Driver struct {
	Version     string // of the kernel module, "580.95.05"
	CUDAVersion string // highest CUDA version the driver supports, "13.0"
	Simulated   bool   // the library reports that there is no GPU under it
	// AwaitsAttestation: confidential computing is on, and the GPUs accept no work before somebody
	// has set their ready state.
	AwaitsAttestation bool
}

// Device is one physical GPU.
type Device struct {
	Index        int // NVML index; may change between boots
	UUID         UUID
	Product      string // NVML name, "NVIDIA H100 80GB HBM3"
	Brand        string // as go-nvlib spells NVML's brand: "Nvidia", "GeForce"; "": not known
	Architecture string // as go-nvlib spells NVML's architecture: "Hopper", "Ada Lovelace"; "": not known
	PCI          PCIAddress
	Minor        int    // N of /dev/nvidiaN; -1: not known
	MemoryBytes  uint64 // total device memory
	NUMANode     int    // -1: unknown or the machine has none
	Compute      Compute
	ComputeMode  ComputeMode
	MIGCapable   bool
	MIGEnabled   bool
	MIG          []MIGDevice        // sorted by Index; empty unless MIGEnabled
	Profiles     []PartitionProfile // sorted by ID; empty unless MIGEnabled and the source reads them
	Instances    []Instance         // sorted by ID; read with Profiles
	Fabric       Fabric             // zero: it has joined none
	FabricState  FabricState        // progress of joining the fabric
	NVLink       NVLinkGroup        // zero: no NVLink leads to another GPU, or nobody has grouped the snapshot
	Recovery     RecoveryAction     // what the driver asks for; "": it cannot be asked
	Remap        Remap              // of faulty memory
	Fault        Fault              // the fault found while reading; zero: none
	Notes        []Note             // what people should know of it, though it may be allocated; sorted by Reason
	// AddressingMode says how the GPU reaches memory of the CPU, as go-nvlib spells it: "HMM", "ATS", "None".
	// "": the platform has no such mode, or it is not known.
	AddressingMode string
}

// OfflinesPages reports whether the GPU keeps faulty memory out of use until rows are remapped, so that new
// work may start meanwhile: GA100, GH100, GB10x (NVIDIA, "GPU Memory Error Management"; nvml.h at
// nvmlDeviceGetRemappedRows). Others, such as GA10x and Ada, need the reset first.
func (d Device) OfflinesPages() bool {
	switch d.Compute {
	case Compute{8, 0}, Compute{9, 0}, Compute{10, 0}, Compute{10, 3}:
		return true
	}
	return false
}

// Compute is a CUDA compute capability, 9.0 for Hopper.
type Compute struct{ Major, Minor int }

// MIGDevice is one compute instance of a GPU in MIG mode. It is the unit that a
// container can get.
type MIGDevice struct {
	Index           int // among the MIG devices of its GPU
	UUID            UUID
	Profile         string // "1g.10gb", "1c.3g.40gb", "1g.10gb+me"
	GPUInstance     int
	ComputeInstance int
	MemoryBytes     uint64
	Attributes      Attributes // zero: not known
}

// Attributes is a MIG device's share of its GPU: nvmlDeviceAttributes_t.
type Attributes struct {
	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
}

// Fabric is the NVLink partition that a GPU has joined: GPUs of one cluster and
// clique reach each other's memory, also across machines.
type Fabric struct {
	Cluster [16]byte // a UUID; all zeros: the machine's own switches, and no other machine
	Clique  uint32
}

// NVLinkGroup names the GPUs of the machine that a GPU reaches by NVLink. Those of one group have the
// same name: the UUID of its first GPU.
type NVLinkGroup struct {
	Domain  UUID // each two of it are linked
	Nearest UUID // each two of it have the most links of the domain; it is Domain where all are alike
}

// FabricState is a GPU's progress in joining the fabric of its NVSwitches.
type FabricState int

// The states of Joining.
const (
	JoiningNone    FabricState = iota // no fabric to join, or the driver does not report it
	JoiningWaiting                    // not begun: the fabric manager is not there yet
	JoiningBegun                      // on its way
	JoiningDone                       // it has joined Device.Fabric
	JoiningFailed                     // it ended with an error
)

// Reason is one CamelCase word for why something is as it is. Reasons are
// part of the contract: they appear in logs, metrics, state files and Events.
type Reason string

// Reasons for which a GPU is not healthy.
const (
	ReasonXID         Reason = "XID"             // a critical XID was reported
	ReasonFabric      Reason = "FabricNotJoined" // it has not joined its NVLink fabric, though its siblings have
	ReasonLost        Reason = "GPULost"         // fell off the bus or NVML cannot reach it
	ReasonECC         Reason = "ECC"             // uncorrectable memory error
	ReasonRowRemap    Reason = "RowRemap"        // row remapping failed
	ReasonUnreadable  Reason = "Unreadable"      // NVML failed on it in another way
	ReasonUnwatched   Reason = "Unwatched"       // its health cannot be watched
	ReasonResetNeeded Reason = "ResetNeeded"     // the driver asks for a reset
	ReasonMissing     Reason = "Missing"         // was there in this boot, is not any more
)

// Fault describes why a device cannot be used. The zero Fault means no fault.
type Fault struct {
	Reason  Reason
	Message string // for people, one sentence
	XID     uint64 // with ReasonXID
}

// RecoveryAction names the action that the driver asks for to recover a GPU: nvmlDeviceGpuRecoveryAction_t,
// which drivers report from R570 on. A number that this version does not know is "Action" with the number.
type RecoveryAction string

// The recovery actions.
const (
	RecoverNothing       RecoveryAction = "None"
	RecoverReset         RecoveryAction = "GPUReset"
	RecoverReboot        RecoveryAction = "NodeReboot"
	RecoverDrainP2P      RecoveryAction = "DrainP2P"
	RecoverDrainAndReset RecoveryAction = "DrainAndReset"
	RecoverIMEXDomain    RecoveryAction = "RecoverIMEXDomain"
	RecoverBusReset      RecoveryAction = "BusReset"
	RecoverSystemReboot  RecoveryAction = "SystemReboot"
)

// Remap is the state of the GPU's faulty memory: of its rows, or before Ampere of its pages.
type Remap string

// The states of Remap, from good to bad.
const (
	RemapNone    Remap = ""        // nothing waits, or the GPU does not report it
	RemapPending Remap = "Pending" // some are replaced at the next reset
	RemapFailed  Remap = "Failed"  // one could not be replaced
)

// LinkKind is the kind of path between two GPUs, ordered from far to near.
type LinkKind int

// The kinds of link, with the names nvidia-smi topo -m gives them.
const (
	LinkUnknown  LinkKind = iota
	LinkSystem            // SYS: across NUMA nodes
	LinkNode              // NODE: across host bridges of one NUMA node
	LinkHost              // PHB: through one host bridge
	LinkMultiple          // PXB: through several PCIe switches
	LinkSingle            // PIX: through one PCIe switch
	LinkBoard             // on one board
	LinkNVLink            // NV#: NVLink, direct or through NVSwitch
)

// Link joins the GPUs A and B; it is symmetric and listed once, with A before
// B in Snapshot.Devices.
type Link struct {
	A, B  UUID
	Kind  LinkKind
	Lanes int // NVLink lanes between the two; 0 unless LinkNVLink
}

// Snapshot is the state of a node's GPUs at one moment.
type Snapshot struct {
	Driver  Driver
	Devices []Device // sorted by Index
	Links   []Link
}

// Device returns the GPU with the given UUID.
func (s Snapshot) Device(id UUID) (Device, bool) {
	for _, d := range s.Devices {
		if d.UUID == id {
			return d, true
		}
	}
	return Device{}, false
}

// EventKind is the kind of an Event.
type EventKind int

// The kinds of Event.
const (
	EventXID       EventKind = iota + 1 // an XID was reported; XID is set
	EventECC                            // an uncorrectable (double-bit) ECC error
	EventLost                           // NVML reports that the GPU is lost
	EventChanged                        // devices, MIG layout or driver may have changed: read a new Snapshot
	EventUnwatched                      // health can no longer be watched
	EventGap                            // events were not received for a moment and may be lost
)

// Event is one thing that happened to a GPU.
type Event struct {
	Kind EventKind
	UUID UUID // "" means every GPU of the node
	// GPUInstance and ComputeInstance confine the event to one MIG device; -1
	// when it concerns the whole GPU.
	GPUInstance, ComputeInstance int
	XID                          uint64
	// Observed, of EventLost, reports whether the source itself read the GPU and found it
	// lost, as a Snapshot at that moment would. Otherwise the driver reported the loss.
	Observed bool
	Message  string
	Time     time.Time
}

// Source reads and watches a node's GPUs. It passes the suite gputest.Conformance.
type Source interface {
	// Snapshot reads the present state. A GPU that cannot be read is in the
	// Snapshot with a Fault. Only a failure of the whole driver is an error; it
	// wraps one of the sentinels below if one fits, or ctx.Err(). A GPU that the
	// driver no longer counts is not in the Snapshot. Snapshot may be called
	// concurrently with everything but Close.
	Snapshot(ctx context.Context) (Snapshot, error)
	// Watch calls deliver for each event, one at a time. It returns ctx.Err() when
	// ctx ends, or the reason when nothing can be watched any more. A GPU that
	// cannot be watched gets an EventUnwatched, and the others go on.
	//
	// Watch calls ready, when not nil, once watching has begun: later events are not
	// missed, but one may be delivered twice. The receiver decides what an event
	// means for health, after reading a new Snapshot. Only one Watch may run at a
	// time, and it must return before Close.
	Watch(ctx context.Context, ready func(), deliver func(Event)) error
	// Close releases the driver. Calling it twice is fine.
	Close() error
}

// Errors that a Source wraps when it cannot read a Snapshot.
var (
	// ErrNoDriver means that there is no driver library, or no module loaded.
	// This is absence, not failure: wait for a driver.
	ErrNoDriver = errors.New("no NVIDIA driver")
	// ErrNoPermission means that the device nodes may not be opened.
	ErrNoPermission = errors.New("no permission to use the NVIDIA device nodes")
	// ErrVersionMismatch means that library and kernel module differ.
	ErrVersionMismatch = errors.New("driver library and kernel module versions differ")
)
