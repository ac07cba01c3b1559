package allocate

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// A container cannot use every healthy device. A device may have no CDI name that the container
// runtime resolves (naming.go), its MPS control daemon may not be ready (mpsstate.go), or a
// required IMEX channel may be missing. The caller passes in the state of the other components.

// Reasons why a device could not be given to a container.
const (
	ReasonCDI  gpu.Reason = "CDIUnavailable"
	ReasonIMEX gpu.Reason = "IMEXChannelMissing" // of imex.required
	// ReasonMPS means that the MPS control daemon of a device is not ready: a program would run
	// without MPS and its limits, or not at all.
	ReasonMPS gpu.Reason = "MPSNotReady"
	// ReasonList means that nothing on the node serves the configured device list strategies.
	ReasonList gpu.Reason = "DeviceListUnserved"
)

// timedFault is the reason why a healthy device could not be given to a container, and
// when it began.
type timedFault struct {
	fault gpu.Fault
	since time.Time
}

// Unallocatable maps each device that could not be given to a container to its fault. A map is
// never changed after it was returned.
type Unallocatable map[gpu.UUID]timedFault

// Node describes the node as far as containers with devices depend on it.
type Node struct {
	Config            *config.Config // with the chosen device list strategies
	Unserved          string         // Choice.Problem
	DeviceNodes       DeviceNodes
	DriverRead        bool   // the driver was read, so DeviceNodes is known
	Names             Naming // zero if devices are handed out without CDI
	MPS               MPSState
	OtherPluginServes bool                   // shadow mode: another plugin serves the node and checks MPS
	Withheld          map[gpu.UUID]gpu.Fault // devices that claims of gpu-dra-driver may still hold
}

// RestoreUnallocatable restores the faults that an earlier process of this boot wrote to the
// state file. Faults keep their time across a restart. naming holds those of CDI names, which
// stay until the toolkit's state is known.
func RestoreUnallocatable(info *nodestate.DevicePluginInfo) (known Unallocatable, naming Naming) {
	known, naming.earlierFaults = Unallocatable{}, map[gpu.UUID]gpu.Fault{}
	if info == nil {
		return known, naming
	}
	for _, r := range info.Resources {
		for _, d := range r.Devices {
			fault := gpu.Fault{Reason: d.Reason, Message: d.Message}
			switch d.Reason {
			case ReasonCDI:
				naming.earlierFaults[d.GPU] = fault
			case ReasonIMEX, ReasonMPS, ReasonList:
			default:
				continue
			}
			known[d.GPU] = timedFault{fault, d.Since}
		}
	}
	return known, naming
}

// MarkDevices sets, in resources, the fault of each healthy device that could not be given to a
// container: a pod waits for an unhealthy device, but fails if its container gets no GPU. It
// returns all such devices; a fault that k has with the same reason keeps its time.
func (k Unallocatable) MarkDevices(resources []plan.Resource, n Node, at time.Time) Unallocatable {
	return k.mark(resources, at, func(resource string, d plan.Device) gpu.Fault {
		if fault := n.Withheld[d.UUID()]; fault.Reason != "" {
			return fault
		}
		if fault := n.cdiOrIMEXFault(d.UUID()); fault.Reason != "" {
			return fault
		}
		return n.mpsFault(resource, d)
	})
}

// MarkUnserved does the same for the devices that no MPS control daemon serves, though they are to be
// shared by MPS. Claims need no more of the plugin than that.
func (k Unallocatable) MarkUnserved(resources []plan.Resource, n Node, at time.Time) Unallocatable {
	return k.mark(resources, at, n.mpsFault)
}

// mark sets the faults that a function returns.
func (k Unallocatable) mark(resources []plan.Resource, at time.Time, find func(resource string, d plan.Device) gpu.Fault) Unallocatable {
	marked := Unallocatable{}
	for _, r := range resources {
		for i := range r.Devices {
			d := &r.Devices[i]
			fault := find(r.Name, *d)
			if fault.Reason == "" {
				continue
			}
			entry, found := marked[d.UUID()] // of another resource or replica
			if !found {
				entry = k[d.UUID()]
			}
			if entry.fault.Reason != fault.Reason {
				entry.since = at
			}
			entry.fault = fault
			marked[d.UUID()] = entry
			if d.Healthy() {
				d.Fault, d.Since = entry.fault, entry.since
			}
		}
	}
	return marked
}

// cdiOrIMEXFault returns a fault if the device has no usable CDI name or a required IMEX channel
// is missing, else zero.
func (n Node) cdiOrIMEXFault(id gpu.UUID) gpu.Fault {
	if imex := n.Config.Imex; imex.Required != nil && *imex.Required && n.DriverRead {
		for _, channel := range imex.ChannelIDs {
			if !slices.Contains(n.DeviceNodes.Imex, channel) {
				return gpu.Fault{Reason: ReasonIMEX, Message: fmt.Sprintf("imex.required is set and there is no %s below %s; "+
					"load the driver with NVreg_CreateImexChannel0=1, or write imex.required: false", ImexPath(channel), n.DeviceNodes.DevRoot)}
			}
		}
	}
	switch {
	case !n.Config.Flags.Plugin.CDI() && n.Unserved != "":
		return gpu.Fault{Reason: ReasonList, Message: n.Unserved}
	case !n.Config.Flags.Plugin.CDI():
	case n.Names.unavailable() != "":
		return gpu.Fault{Reason: ReasonCDI, Message: n.Names.unavailable()}
	case n.Names.names != nil && !n.Names.names[string(id)]:
		return gpu.Fault{Reason: ReasonCDI, Message: "the toolkit's CDI specification " + n.Names.path + " does not name it; see the log of gpu-toolkit"}
	default:
		return n.Names.earlierFaults[id]
	}
	return gpu.Fault{}
}
