package health

import (
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// ReasonForgotten is held against every GPU when the state file of this boot
// exists and cannot be read: what it said against them is not known.
const ReasonForgotten gpu.Reason = "StateUnreadable"

// Faults is what has to be remembered. A GPU that was seen out of service since
// its fault was noted has a second entry, which says as what.
func (s State) Faults() []nodestate.Fault {
	var faults []nodestate.Fault
	for _, g := range s.GPUs() {
		if g.fault.Reason == "" {
			continue
		}
		f := nodestate.Fault{
			GPU: g.Device.UUID, Reason: g.fault.Reason, Message: g.fault.Message, XID: g.fault.XID, Since: g.since,
		}
		faults = append(faults, f)
		if g.out {
			f.Reason, f.Message, f.XID = gpu.ReasonMissing, "seen out of service since", 0
			faults = append(faults, f)
		}
	}
	return faults
}

// Recall is the State that a state file of this boot stands for: its devices
// are known, nothing of them is seen yet, and what was held against them still
// is. Whether a GPU could be watched is not remembered; that is found out anew.
func Recall(file nodestate.State) State {
	s := State{gpus: map[gpu.UUID]GPU{}}
	if file.Driver != nil {
		s.driver = file.Driver.Version
	}
	if file.DevicePlugin == nil {
		return s
	}
	index := 0
	for _, r := range file.DevicePlugin.Resources {
		for _, d := range r.Devices {
			g := GPU{Device: gpu.Device{UUID: d.GPU, Index: index, NUMANode: -1}}
			if d.NUMANode != nil {
				g.Device.NUMANode = *d.NUMANode
			}
			if _, known := s.gpus[d.GPU]; !known {
				s.gpus[d.GPU] = g
				index++
			}
		}
	}
	for _, f := range file.DevicePlugin.Faults {
		g, known := s.gpus[f.GPU]
		switch {
		case !known:
			g.Device = gpu.Device{UUID: f.GPU, Index: index, NUMANode: -1}
			index++
			fallthrough
		case g.fault.Reason == "":
			g.fault = gpu.Fault{Reason: f.Reason, Message: f.Message, XID: f.XID}
			g.since = f.Since
		default:
			g.out = true
		}
		s.gpus[f.GPU] = g
	}
	return s
}
