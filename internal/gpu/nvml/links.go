package nvml

import (
	"context"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// lanes lists the NVLinks of one GPU that are up.
type lanes struct {
	remote   []gpu.PCIAddress // of the GPUs at the other ends, one for each lane
	toSwitch int              // lanes that end in an NVSwitch
}

// readLanes reads the remote ends of a GPU's NVLinks. go-gpuallocator does so too,
// but it finds no GPU behind NVSwitch, where the other end is the switch, and
// panics when two GPUs do not agree on their links.
func (s *Source) readLanes(o *optionalReads, handle nvml.Device) {
	const state, remote, kind = "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType"
	if !s.hasAll(state, remote) {
		return
	}
	var l lanes
	before := o.failed
	for i := range nvml.NVLINK_MAX_LINKS {
		var up nvml.EnableState
		ret := o.try(state, func() nvml.Return { return set(&up)(handle.GetNvLinkState(i)) })
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break // no more links
		}
		if ret != nvml.SUCCESS || up != nvml.FEATURE_ENABLED {
			continue // down, or not one of this GPU's: others may be
		}
		end := nvml.NVLINK_DEVICE_TYPE_UNKNOWN
		_ = o.try(kind, func() nvml.Return { return set(&end)(handle.GetNvLinkRemoteDeviceType(i)) })
		switch end {
		case nvml.NVLINK_DEVICE_TYPE_SWITCH:
			l.toSwitch++
			continue
		case nvml.NVLINK_DEVICE_TYPE_IBMNPU: // leads to the CPU
			continue
		}
		var info nvml.PciInfo
		if o.try(remote, func() nvml.Return { return set(&info)(handle.GetNvLinkRemotePciInfo(i)) }) != nvml.SUCCESS {
			continue // up, but the remote end is unknown
		}
		address, err := pciOf(info, nvml.SUCCESS)
		if err != nil { // an NVSwitch that a virtual machine does not see: "FFFFFFF:FFFF:FF.F" (NCCL, graph/xml.cc)
			l.toSwitch++
			continue
		}
		l.remote = append(l.remote, address)
	}
	if o.failed == before {
		o.facts.lanes = l
	}
}

// links returns the link between each two GPUs. The GPUs are in the order of their
// indexes.
func (s *Source) links(ctx context.Context, all []reading) []gpu.Link {
	var links []gpu.Link
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.UUID == "" || b.UUID == "" {
				continue // a link names its ends
			}
			l := gpu.Link{A: a.UUID, B: b.UUID}
			if l.Lanes = lanesBetween(a, b); l.Lanes > 0 {
				l.Kind = gpu.LinkNVLink
			} else {
				l.Kind = s.ancestor(ctx, a.Device, b.Device)
			}
			links = append(links, l)
		}
	}
	return links
}

// lanesBetween counts the NVLink lanes from a to b. If the two do not agree, the
// smaller number works both ways.
func lanesBetween(a, b reading) int {
	direct := min(count(a.lanes.remote, b.PCI), count(b.lanes.remote, a.PCI))
	if direct > 0 {
		return direct
	}
	if a.Fabric != b.Fabric { // two that have joined none reach each other behind the switches
		return 0
	}
	return min(a.lanes.toSwitch, b.lanes.toSwitch)
}

func count(list []gpu.PCIAddress, address gpu.PCIAddress) (n int) {
	for _, other := range list {
		if other == address {
			n++
		}
	}
	return n
}

// ancestor returns the kind of PCIe link between two GPUs. It cannot change while they
// stay in their slots, so each pair is looked up once.
func (s *Source) ancestor(ctx context.Context, a, b gpu.Device) gpu.LinkKind {
	pair := [2]gpu.PCIAddress{a.PCI, b.PCI}
	s.mu.Lock()
	kind, known := s.memory.ancestors[pair]
	s.mu.Unlock()
	broken := func(d gpu.Device) bool {
		return d.Fault.Reason == gpu.ReasonLost || d.Fault.Reason == gpu.ReasonUnreadable
	}
	if known || s.isCycling() || broken(a) || broken(b) || s.isReleased(a.UUID) || s.isReleased(b.UUID) || !s.has["nvmlDeviceGetTopologyCommonAncestor"] {
		return kind
	}
	level, err := call(ctx, s.calls, "the links between GPUs", func() (nvml.GpuTopologyLevel, error) {
		one, ret := s.lib.DeviceGetHandleByIndex(a.Index)
		if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
			return 0, err
		}
		other, ret := s.lib.DeviceGetHandleByIndex(b.Index)
		if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
			return 0, err
		}
		level, ret := one.GetTopologyCommonAncestor(other)
		if isUnsupported(ret) {
			return noLevel, nil
		}
		return level, check("nvmlDeviceGetTopologyCommonAncestor", ret)
	})
	if err != nil {
		return gpu.LinkUnknown // looked up again next time
	}
	kind = kindOf(level)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.ancestors[pair] = kind
	return kind
}

// noLevel stands for the level of two GPUs whose driver does not tell it.
const noLevel nvml.GpuTopologyLevel = -1

// kindOf translates nvmlGpuTopologyLevel_t.
func kindOf(level nvml.GpuTopologyLevel) gpu.LinkKind {
	switch level {
	case nvml.TOPOLOGY_INTERNAL:
		return gpu.LinkBoard
	case nvml.TOPOLOGY_SINGLE:
		return gpu.LinkSingle
	case nvml.TOPOLOGY_MULTIPLE:
		return gpu.LinkMultiple
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return gpu.LinkHost
	case nvml.TOPOLOGY_NODE:
		return gpu.LinkNode
	case nvml.TOPOLOGY_SYSTEM:
		return gpu.LinkSystem
	default:
		return gpu.LinkUnknown
	}
}
