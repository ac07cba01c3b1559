package nvml

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readHealth gives the GPU a Fault for what it says is wrong with itself.
func (s *Source) readHealth(device nvml.Device, d *gpu.Device) error {
	if s.has["nvmlDeviceGetRemappedRows"] {
		_, _, pending, failed, ret := device.GetRemappedRows()
		if ret != nvml.ERROR_NOT_SUPPORTED {
			if err := check("nvmlDeviceGetRemappedRows", ret); err != nil {
				return err
			}
		}
		switch {
		case ret != nvml.SUCCESS:
		case failed:
			d.Fault = gpu.Fault{Reason: gpu.ReasonRowRemap, Message: "remapping a row of faulty memory failed: the GPU must be replaced"}
		case pending:
			// "After resetting the GPU these rows will be actually remapped" (nvml.h).
			// Drivers from R570 on ask for that themselves, which says the same below.
			d.Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "rows of faulty memory wait to be remapped: end the programs on the GPU, then reset it"}
		}
	}
	action, err := s.recoveryAction(device)
	if err != nil {
		return err
	}
	if action != nvml.GPU_RECOVERY_ACTION_NONE {
		d.Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "the driver asks for recovery: " + recovery(action)}
	}
	return nil
}

// recoveryAction is what the driver asks to be done to the GPU; drivers before
// R570 do not tell.
func (s *Source) recoveryAction(device nvml.Device) (nvml.DeviceGpuRecoveryAction, error) {
	if !s.has["nvmlDeviceGetFieldValues"] {
		return nvml.GPU_RECOVERY_ACTION_NONE, nil
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := device.GetFieldValues(values)
	if ret == nvml.SUCCESS {
		ret = nvml.Return(values[0].NvmlReturn)
	}
	switch ret {
	case nvml.SUCCESS:
		// An unsigned int, says nvml.h: the first four bytes of the union.
		return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])), nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_UNKNOWN, nvml.ERROR_NO_PERMISSION:
		// How older drivers answer for a field that they do not know. A GPU
		// that fails in general has failed in the calls before.
		return nvml.GPU_RECOVERY_ACTION_NONE, nil
	default:
		return nvml.GPU_RECOVERY_ACTION_NONE, check("nvmlDeviceGetFieldValues", ret)
	}
}

// recovery says in words what the driver asks for.
func recovery(action nvml.DeviceGpuRecoveryAction) string {
	switch action {
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET:
		return "reset the GPU (nvidia-smi --gpu-reset)"
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT, nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:
		return "reboot the node"
	case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
		return "end the programs that use NVLink, then reset the GPU"
	case nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return "end the programs on the GPU, then reset it"
	case nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return "recover the IMEX domain"
	case nvml.GPU_RECOVERY_ACTION_BUS_RESET:
		return "reset the PCI bus of the GPU"
	default:
		return "an action that this version does not know; see nvidia-smi -q"
	}
}
