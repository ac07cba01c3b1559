package nvml

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readHealth sets the GPU's Fault from the errors that it reports about itself.
func (s *Source) readHealth(device nvml.Device, d *gpu.Device) error {
	pending, failed, err := s.faultyRows(device)
	if err != nil {
		return err
	}
	pages, err := s.faultyPages(device)
	if err != nil {
		return err
	}
	action, err := s.recoveryAction(device)
	if err != nil {
		return err
	}
	switch {
	case failed: // no reset fixes this, whatever else the driver asks for
		d.Fault = gpu.Fault{Reason: gpu.ReasonRowRemap, Message: "remapping a row of faulty memory failed: the GPU must be replaced"}
	case action != nvml.GPU_RECOVERY_ACTION_NONE:
		d.Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "the driver asks for recovery: " + recovery(action)}
	case pending:
		// Drivers from R570 on ask for a reset themselves, which says the same above.
		d.Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "rows of faulty memory wait to be remapped: end the programs on the GPU, then reset it"}
	case pages:
		d.Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "pages of faulty memory wait to be retired: end the programs on the GPU, then reset it"}
	}
	return nil
}

// faultyRows reports whether rows of faulty memory wait to be remapped, which happens
// when the GPU is reset (nvml.h), and whether remapping a row failed. GPUs from Ampere
// on remap rows.
func (s *Source) faultyRows(device nvml.Device) (pending, failed bool, err error) {
	if !s.has["nvmlDeviceGetRemappedRows"] {
		return false, false, nil
	}
	_, _, pending, failed, ret := device.GetRemappedRows()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return false, false, nil
	}
	return pending, failed, check("nvmlDeviceGetRemappedRows", ret)
}

// faultyPages reports whether pages of faulty memory wait to be retired. That happens
// when the driver next initialises the GPU, also after a reset (NVIDIA, "Dynamic Page
// Retirement"). GPUs before Ampere retire pages.
func (s *Source) faultyPages(device nvml.Device) (bool, error) {
	if !s.has["nvmlDeviceGetRetiredPagesPendingStatus"] {
		return false, nil
	}
	pending, ret := device.GetRetiredPagesPendingStatus()
	if ret == nvml.ERROR_NOT_SUPPORTED { // or ECC is off
		return false, nil
	}
	return pending == nvml.FEATURE_ENABLED, check("nvmlDeviceGetRetiredPagesPendingStatus", ret)
}

// recoveryAction returns the recovery action that the driver asks for; drivers before
// R570 do not report one.
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
		// An unsigned int (nvml.h): the first four bytes of the union.
		return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])), nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_UNKNOWN, nvml.ERROR_NO_PERMISSION:
		// Older drivers return these for an unknown field. A GPU that fails in
		// general has failed in the calls before.
		return nvml.GPU_RECOVERY_ACTION_NONE, nil
	default:
		return nvml.GPU_RECOVERY_ACTION_NONE, check("nvmlDeviceGetFieldValues", ret)
	}
}

// recovery describes a recovery action in words.
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
