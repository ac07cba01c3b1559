package nvml

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readFabric reads the NVLink partition that a GPU has joined. A registration that
// ended with an error does not count (github.com/NVIDIA/go-nvlib, pkg/nvlib/device,
// IsFabricAttached).
func (s *Source) readFabric(o *optionalReads, handle nvml.Device, r *reading) {
	var info nvml.GpuFabricInfo_v3
	ret := o.read("nvmlDeviceGetGpuFabricInfoV", func() nvml.Return { return set(&info)(s.fabricInfo(handle)) })
	unread := !isAbsent(ret) && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	if ret != nvml.SUCCESS { // a driver before R550, or one without the later structures
		ret = o.read("nvmlDeviceGetGpuFabricInfo", func() nvml.Return {
			old, ret := handle.GetGpuFabricInfo()
			info = nvml.GpuFabricInfo_v3{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State}
			return ret
		})
	}
	if ret != nvml.SUCCESS {
		if unread || !isAbsent(ret) { // it is as it was before
			s.mu.Lock()
			defer s.mu.Unlock()
			before := s.memory.devices[r.UUID]
			r.FabricState, r.Fabric, r.fabricMask = before.FabricState, before.Fabric, before.fabricMask
		}
		return
	}
	switch {
	case info.State == nvml.GPU_FABRIC_STATE_NOT_STARTED:
		r.FabricState = gpu.JoiningWaiting
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		r.FabricState = gpu.JoiningBegun
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(info.Status) != nvml.SUCCESS:
		r.FabricState = gpu.JoiningFailed
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED:
		r.FabricState, r.Fabric = gpu.JoiningDone, gpu.Fabric{Cluster: info.ClusterUuid, Clique: info.CliqueId}
		r.fabricMask = info.HealthMask
	}
}

// readFabricInfo calls nvmlDeviceGetGpuFabricInfoV with the latest structure that the driver knows.
func readFabricInfo(handle nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) {
	info, ret := handle.GetGpuFabricInfoV().V3()
	if ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH && ret != nvml.ERROR_INVALID_ARGUMENT {
		return info, ret
	}
	old, ret := handle.GetGpuFabricInfoV().V2()
	return nvml.GpuFabricInfo_v3{ClusterUuid: old.ClusterUuid, Status: old.Status, CliqueId: old.CliqueId, State: old.State, HealthMask: old.HealthMask}, ret
}

// fabricHealth lists the parts of the health mask whose value 1 is bad (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_…).
var fabricHealth = []struct {
	shift, width uint32
	text         string
}{
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW, "less bandwidth than it should have"},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY, "its routes are being recovered"},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY, "a route is unhealthy"},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY, "it recovers from accesses that timed out"},
}

// fabricProblems describes the bad parts of a health mask; "" if there are none.
func fabricProblems(mask uint32) string {
	var texts []string
	for _, part := range fabricHealth {
		if mask>>part.shift&part.width == 1 {
			texts = append(texts, part.text)
		}
	}
	configuration := mask >> nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION & nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION
	if configuration > nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE {
		texts = append(texts, fmt.Sprintf("its configuration is wrong (%d in nvml.h)", configuration))
	}
	return strings.Join(texts, ", ")
}

// judgeFabric sets the fault of each GPU that cannot be used because it is not in the NVLink fabric: CUDA does not
// initialise on it. Where no GPU has joined yet, the fabric manager has not come up, which is no fault of a GPU.
// A GPU in MIG mode does not use the fabric.
func judgeFabric(all []reading) {
	joined := 0
	for _, r := range all {
		if r.FabricState == gpu.JoiningDone { // whatever has become of it since
			joined++
		}
	}
	for i := range all {
		r := &all[i]
		if r.Fault.Reason != "" || r.MIGEnabled {
			continue
		}
		switch {
		case r.FabricState == gpu.JoiningFailed:
			r.Fault = gpu.Fault{Reason: gpu.ReasonFabric, Message: "it failed to join its NVLink fabric"}
		case joined > 0 && (r.FabricState == gpu.JoiningWaiting || r.FabricState == gpu.JoiningBegun):
			r.Fault = gpu.Fault{Reason: gpu.ReasonFabric, Message: fmt.Sprintf("it has not joined its NVLink fabric, and %d GPUs of this node have", joined)}
		}
	}
}
