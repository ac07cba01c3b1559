package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Evictions chooses the faults for which the pods that hold a device are evicted: its taint has the
// effect NoExecute. The zero value evicts nothing.
type Evictions struct {
	xids    map[uint64]bool
	reasons map[gpu.Reason]bool
}

// evictable lists the reasons that can be chosen: faults of a GPU. A device plugin that is away is no
// fault of a GPU.
var evictable = map[gpu.Reason]bool{
	gpu.ReasonXID: true, gpu.ReasonECC: true, gpu.ReasonRowRemap: true, gpu.ReasonResetNeeded: true, gpu.ReasonLost: true, gpu.ReasonMissing: true,
}

// ParseEvictions reads a list of XIDs and reasons, such as "79", "GPULost".
func ParseEvictions(list []string) (Evictions, error) {
	e := Evictions{xids: map[uint64]bool{}, reasons: map[gpu.Reason]bool{}}
	for _, word := range list {
		if xid, err := strconv.ParseUint(word, 10, 32); err == nil {
			e.xids[xid] = true
			continue
		}
		if !evictable[gpu.Reason(word)] {
			return Evictions{}, fmt.Errorf("%.40q is neither the number of an XID nor one of %s", word, strings.Join(reasonNames(), ", "))
		}
		e.reasons[gpu.Reason(word)] = true
	}
	return e, nil
}

func reasonNames() (all []string) {
	for _, r := range slices.Sorted(maps.Keys(evictable)) {
		all = append(all, string(r))
	}
	return all
}

// WithEvictions returns the inventory with the effect NoExecute on the devices whose fault is chosen.
// The device plugin's recorded faults have the numbers of the XIDs.
func (i Inventory) WithEvictions(e Evictions, faults []nodestate.Fault) Inventory {
	if len(e.xids)+len(e.reasons) == 0 {
		return i
	}
	i.Devices = slices.Clone(i.Devices)
	for n, d := range i.Devices {
		if d.Fault.Health != nodestate.Unhealthy || !e.reasons[d.Fault.Reason] && !i.hasXID(e, d, faults) {
			continue
		}
		i.Devices[n].API.Taints = slices.Clone(d.API.Taints)
		for t := range i.Devices[n].API.Taints {
			i.Devices[n].API.Taints[t].Effect = resourceapi.DeviceTaintEffectNoExecute
		}
	}
	return i
}

// hasXID reports whether a device is unhealthy for one of the XIDs.
func (i Inventory) hasXID(e Evictions, d Device, faults []nodestate.Fault) bool {
	return d.Fault.Reason == gpu.ReasonXID && slices.ContainsFunc(faults, func(f nodestate.Fault) bool {
		return f.Reason == gpu.ReasonXID && e.xids[f.XID] && i.concerns(f, d)
	})
}

// concerns reports whether a fault concerns a device. That of a GPU instance concerns what is at its place. If
// the instance is gone, one that needs more than quiet may be anywhere on the GPU.
func (i Inventory) concerns(f nodestate.Fault, d Device) bool {
	switch {
	case f.GPU == d.UUID:
		return true
	case f.GPU != d.Parent:
		return false
	}
	if f.GPUInstance == nil || d.instance != nil && *f.GPUInstance == *d.instance {
		return true
	}
	return !i.instances[f.GPU][*f.GPUInstance] && f.Needs != nodestate.EvidenceQuiet
}
