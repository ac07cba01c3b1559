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

// A healthy device may be impossible to give to a container: it has no CDI name that the
// container runtime resolves (naming.go), its MPS control daemon does not serve it
// (served.go), or a required IMEX channel is missing. The caller passes in the state of the
// other components.

// Reasons why a device could not be given to a container.
const (
	ReasonCDI  gpu.Reason = "CDIUnavailable"
	ReasonIMEX gpu.Reason = "IMEXChannelMissing" // of imex.required
	// ReasonMPS applies to devices whose MPS control daemon does not serve them: a program
	// would run beside MPS, without limits, or not at all.
	ReasonMPS gpu.Reason = "MPSNotReady"
)

// timedFault is the reason why a healthy device could not be given to a container, and
// when it began.
type timedFault struct {
	fault gpu.Fault
	since time.Time
}

// Known maps each device that could not be given to a container to its fault. It is
// never changed.
type Known map[gpu.UUID]timedFault

// Node describes what the node offers to containers.
type Node struct {
	Config *config.Config
	Host   Host
	Read   bool   // the driver was read, so Host is known
	Names  Naming // zero if devices are handed out without CDI
	MPS    Served
	Beside bool // another plugin serves, and MPS with it
}

// RestoreKnown restores what an earlier process of this boot knew. Faults keep their time
// across a restart, and stay while the toolkit's state is missing.
func RestoreKnown(info *nodestate.DevicePluginInfo) (known Known, last Naming) {
	known, last.earlier = Known{}, map[gpu.UUID]gpu.Fault{}
	if info == nil {
		return known, last
	}
	for _, r := range info.Resources {
		for _, d := range r.Devices {
			fault := gpu.Fault{Reason: d.Reason, Message: d.Message}
			switch d.Reason {
			case ReasonCDI:
				last.earlier[d.GPU] = fault
			case ReasonIMEX, ReasonMPS:
			default:
				continue
			}
			known[d.GPU] = timedFault{fault, d.Since}
		}
	}
	return known, last
}

// MarkDevices marks the devices that could not be given to a container, since a waiting pod is
// better than a failed one. It returns the updated Known.
func (k Known) MarkDevices(resources []plan.Resource, n Node, at time.Time) Known {
	now := Known{}
	for _, r := range resources {
		for i := range r.Devices {
			d := &r.Devices[i]
			fault := n.fault(d.UUID())
			if fault.Reason == "" {
				fault = n.mpsFault(r.Name, *d)
			}
			if fault.Reason == "" {
				continue
			}
			h, replica := now[d.UUID()]
			if !replica {
				h = k[d.UUID()]
			}
			if h.fault.Reason != fault.Reason {
				h.since = at
			}
			h.fault = fault
			now[d.UUID()] = h
			if d.Healthy() {
				d.Fault, d.Since = h.fault, h.since
			}
		}
	}
	return now
}

// fault returns why the device could not be given to a container, or zero if it could.
func (n Node) fault(id gpu.UUID) gpu.Fault {
	if imex := n.Config.Imex; imex.Required != nil && *imex.Required && n.Read {
		for _, channel := range imex.ChannelIDs {
			if !slices.Contains(n.Host.Imex, channel) {
				return gpu.Fault{Reason: ReasonIMEX, Message: fmt.Sprintf("imex.required is set and there is no %s below %s; "+
					"load the driver with NVreg_CreateImexChannel0=1, or write imex.required: false", ImexPath(channel), n.Host.DevRoot)}
			}
		}
	}
	switch {
	case !n.Config.Flags.Plugin.CDI():
	case n.Names.unavailable() != "":
		return gpu.Fault{Reason: ReasonCDI, Message: n.Names.unavailable()}
	case n.Names.names != nil && !n.Names.names[string(id)]:
		return gpu.Fault{Reason: ReasonCDI, Message: "the toolkit's CDI specification " + n.Names.path + " does not name it; see the log of gpu-toolkit"}
	default:
		return n.Names.earlier[id]
	}
	return gpu.Fault{}
}
