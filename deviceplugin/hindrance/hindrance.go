// Package hindrance says why a device that has nothing wrong with it could not be
// given to a container: it has no CDI name that the container runtime resolves
// (naming.go), its MPS control daemon does not serve it (served.go), or an IMEX
// channel that is required is not there. It is pure: what others say is told to it.
package hindrance

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// The reasons.
const (
	ReasonCDI  gpu.Reason = "CDIUnavailable"
	ReasonIMEX gpu.Reason = "IMEXChannelMissing" // of imex.required
	// ReasonMPS is of devices whose MPS control daemon does not serve them: a program
	// would run beside MPS, without limits, or not at all.
	ReasonMPS gpu.Reason = "MPSNotReady"
)

// hindrance is why a device that has nothing wrong with it could not be given to
// a container, and since when.
type hindrance struct {
	fault gpu.Fault
	since time.Time
}

// Known is what hinders which devices, and since when. It is never changed.
type Known map[gpu.UUID]hindrance

// Node is what there is for containers.
type Node struct {
	Config *config.Config
	Host   allocate.Host
	Read   bool   // the driver has been: Host is known
	Names  Naming // the zero Naming where devices are handed out without CDI
	MPS    Served
	Beside bool // another plugin serves: MPS is its matter, too
}

// Recall takes up what an earlier process of this boot knew: nothing is
// newer than it was because a process is, and while the toolkit says nothing it
// stays.
func Recall(info *nodestate.DevicePluginInfo) (known Known, last Naming) {
	known, last.held = Known{}, map[gpu.UUID]gpu.Fault{}
	if info == nil {
		return known, last
	}
	for _, r := range info.Resources {
		for _, d := range r.Devices {
			fault := gpu.Fault{Reason: d.Reason, Message: d.Message}
			switch d.Reason {
			case ReasonCDI:
				last.held[d.GPU] = fault
			case ReasonIMEX, ReasonMPS:
			default:
				continue
			}
			known[d.GPU] = hindrance{fault, d.Since}
		}
	}
	return known, last
}

// Mark marks the devices that could not be given to a container: a pod that waits is
// better off than one that fails. It returns what is known then.
func (k Known) Mark(resources []plan.Resource, n Node, at time.Time) Known {
	now := Known{}
	for _, r := range resources {
		for i := range r.Devices {
			d := &r.Devices[i]
			fault := n.fault(d.UUID())
			if fault.Reason == "" {
				fault = n.unshared(r.Name, *d)
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

// fault is why the device could not be given to a container; zero: it could.
func (n Node) fault(id gpu.UUID) gpu.Fault {
	if imex := n.Config.Imex; imex.Required != nil && *imex.Required && n.Read {
		for _, channel := range imex.ChannelIDs {
			if !slices.Contains(n.Host.Imex, channel) {
				return gpu.Fault{Reason: ReasonIMEX, Message: fmt.Sprintf("imex.required is set and there is no %s below %s; "+
					"load the driver with NVreg_CreateImexChannel0=1, or write imex.required: false", allocate.ImexPath(channel), n.Host.DevRoot)}
			}
		}
	}
	switch {
	case !n.Config.Flags.Plugin.CDI():
	case n.Names.none() != "":
		return gpu.Fault{Reason: ReasonCDI, Message: n.Names.none()}
	case n.Names.names != nil && !n.Names.names[string(id)]:
		return gpu.Fault{Reason: ReasonCDI, Message: "the toolkit's CDI specification " + n.Names.path + " does not name it; see the log of gpu-toolkit"}
	default:
		return n.Names.held[id]
	}
	return gpu.Fault{}
}
