package record

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// links reads the NVLinks of GPU i.
func (r *recorder) links(i int) ([]profile.Link, error) {
	var links []profile.Link
	for l := range state.MaxLinks {
		active, ret := r.devices[i].GetNvLinkState(l)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			break // no such link
		}
		if err := asError(fmt.Sprintf("NVLink %d", l), ret); err != nil {
			return nil, err
		}
		link, err := r.link(i, l)
		if err != nil {
			return nil, fmt.Errorf("NVLink %d: %w", l, err)
		}
		link.Active = active == nvml.FEATURE_ENABLED
		links = append(links, link)
	}
	return links, nil
}

func (r *recorder) link(i, l int) (profile.Link, error) {
	var link profile.Link
	device := r.devices[i]
	version, ret := device.GetNvLinkVersion(l)
	if err := optional("version", ret); err != nil {
		return link, err
	}
	link.Version = version
	if known := r.embeddedModel(i); known != nil && version == 0 {
		link.Version = known.NVLink.Version
		r.note("the version of NVLinks that are not active is not reported: taken from this program's own model")
	}
	// 0 if the driver does not report it.
	link.Speed = field(device, nvml.FI_DEV_NVLINK_GET_SPEED, l)
	kind, ret := device.GetNvLinkRemoteDeviceType(l)
	if err := optional("kind of its far end", ret); err != nil || ret != nvml.SUCCESS {
		return link, err
	}
	info, ret := device.GetNvLinkRemotePciInfo(l)
	if err := optional("its far end", ret); err != nil || ret != nvml.SUCCESS {
		return link, err
	}
	far := location(info)
	switch kind {
	case nvml.NVLINK_DEVICE_TYPE_SWITCH:
		link.Switch, link.SwitchID = far.Address(), profile.ID(far.DeviceId)
	case nvml.NVLINK_DEVICE_TYPE_GPU:
		peer := slices.IndexFunc(r.places, func(p state.PCI) bool { return p.Address() == far.Address() })
		if peer >= 0 {
			link.GPU = &peer
			link.RemoteLink = int(field(device, nvml.FI_DEV_NVLINK_REMOTE_NVLINK_ID, l))
		}
	}
	return link, nil
}

// cluster records the fabric of several machines that GPU i belongs to.
func (r *recorder) cluster(i int) {
	info, ret := r.devices[i].GetGpuFabricInfo()
	if id := info.ClusterUuid; ret == nvml.SUCCESS && id != [16]uint8{} && r.profile.NVLink == nil {
		r.profile.NVLink = []profile.Fabric{{GPUs: len(r.devices), Kind: "none", Clique: info.CliqueId,
			Cluster: fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])}}
	}
}

// field reads one number that NVML has only as a field; 0 if it is not supported.
func field(device nvml.Device, id uint32, scope int) uint32 {
	values := []nvml.FieldValue{{FieldId: id, ScopeId: uint32(scope)}}
	if device.GetFieldValues(values) != nvml.SUCCESS || nvml.Return(values[0].NvmlReturn) != nvml.SUCCESS {
		return 0
	}
	return binary.NativeEndian.Uint32(values[0].Value[:4])
}
