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
func (s *Source) readLanes(device nvml.Device, l *lanes) error {
	if !s.hasAll("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return nil
	}
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := device.GetNvLinkState(i)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break // no more links
		}
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && state != nvml.FEATURE_ENABLED {
			continue
		}
		if err := check("nvmlDeviceGetNvLinkState", ret); err != nil {
			return err
		}
		if err := s.readLane(device, i, l); err != nil {
			return err
		}
	}
	return nil
}

// readFabric reads the NVLink partition that a GPU has joined. A registration that
// ended with an error does not count (github.com/NVIDIA/go-nvlib, pkg/nvlib/device,
// IsFabricAttached).
func (s *Source) readFabric(device nvml.Device, d *gpu.Device) {
	if !s.has["nvmlDeviceGetGpuFabricInfo"] {
		return
	}
	info, ret := device.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		return
	}
	switch {
	case info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED:
		d.FabricState = gpu.JoiningWaiting
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		d.FabricState = gpu.JoiningBegun
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) != nvml.SUCCESS:
		d.FabricState = gpu.JoiningFailed
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED:
		d.FabricState, d.Fabric = gpu.JoiningDone, gpu.Fabric{Cluster: info.ClusterUuid, Clique: info.CliqueId}
	}
}

func (s *Source) readLane(device nvml.Device, link int, l *lanes) error {
	kind := nvml.NVLINK_DEVICE_TYPE_UNKNOWN
	if s.has["nvmlDeviceGetNvLinkRemoteDeviceType"] {
		var ret nvml.Return
		if kind, ret = device.GetNvLinkRemoteDeviceType(link); ret != nvml.SUCCESS {
			kind = nvml.NVLINK_DEVICE_TYPE_UNKNOWN
		}
	}
	switch kind {
	case nvml.NVLINK_DEVICE_TYPE_SWITCH:
		l.toSwitch++
		return nil
	case nvml.NVLINK_DEVICE_TYPE_IBMNPU: // leads to the CPU
		return nil
	}
	address, err := pciOf(device.GetNvLinkRemotePciInfo(link))
	if ret := returned(err); ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
		return nil // up, but the remote end is unknown
	}
	if err != nil {
		return err
	}
	l.remote = append(l.remote, address)
	return nil
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
	if known || broken(a) || broken(b) || s.isReleased(a.UUID) || s.isReleased(b.UUID) || !s.has["nvmlDeviceGetTopologyCommonAncestor"] {
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
