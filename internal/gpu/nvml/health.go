package nvml

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readHealth reads what the GPU and its driver report about its health. Where a call fails that worked
// before, the last result stays: an error that cannot be read has not ended.
func (s *Source) readHealth(o *optionalReads, handle nvml.Device, r *reading) {
	s.mu.Lock()
	before := s.memory.devices[r.UUID]
	s.mu.Unlock()
	s.readRecovery(o, handle, r, before)
	r.Remap = s.readRemap(o, handle, r.MIGEnabled, before.Remap)
}

// recoveryLasts bounds how long the driver is believed to ask for nothing while it cannot be asked. A GPU that is busy, or whose
// neighbour is reset, may not answer for a moment.
const recoveryLasts = 30 * time.Second

// readRecovery reads what the driver asks for to recover the GPU; "" if it cannot be asked, as before R570.
func (s *Source) readRecovery(o *optionalReads, handle nvml.Device, r *reading, before reading) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ret := o.read("nvmlDeviceGetFieldValues", func() nvml.Return {
		if ret := handle.GetFieldValues(values); ret != nvml.SUCCESS {
			return ret
		}
		return nvml.Return(values[0].NvmlReturn)
	})
	switch {
	case ret == nvml.SUCCESS:
		// An unsigned int (nvml.h): the first four bytes of the union.
		r.Recovery = recoveryAction(nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])))
		r.recoveryRead = time.Now()
	case before.Recovery == gpu.RecoverNothing && (isAbsent(ret) || time.Since(before.recoveryRead) >= recoveryLasts):
		// Older drivers do not know the field.
	default:
		r.Recovery, r.recoveryRead = before.Recovery, before.recoveryRead
	}
}

// recoveryActions holds the recovery actions by their number in nvml.h.
var recoveryActions = []gpu.RecoveryAction{
	nvml.GPU_RECOVERY_ACTION_NONE: gpu.RecoverNothing, nvml.GPU_RECOVERY_ACTION_GPU_RESET: gpu.RecoverReset,
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT: gpu.RecoverReboot, nvml.GPU_RECOVERY_ACTION_DRAIN_P2P: gpu.RecoverDrainP2P,
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET: gpu.RecoverDrainAndReset, nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: gpu.RecoverIMEXDomain,
	nvml.GPU_RECOVERY_ACTION_BUS_RESET: gpu.RecoverBusReset, nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT: gpu.RecoverSystemReboot,
}

func recoveryAction(action nvml.DeviceGpuRecoveryAction) gpu.RecoveryAction {
	if action < 0 || int(action) >= len(recoveryActions) {
		return gpu.RecoveryAction(fmt.Sprintf("Action%d", action))
	}
	return recoveryActions[action]
}

// readRemap reads the state of rows of faulty memory, which are remapped when the GPU is reset (nvml.h). GPUs
// before Ampere have pages instead, which are retired when the driver next initialises the GPU (NVIDIA,
// "Dynamic Page Retirement").
//
// The driver does not report rows of a GPU that is divided (nvml.h at nvmlDeviceGetRemappedRows), and what has failed
// stays so.
func (s *Source) readRemap(o *optionalReads, handle nvml.Device, divided bool, before gpu.Remap) gpu.Remap {
	var waits, failed bool
	ret := o.read("nvmlDeviceGetRemappedRows", func() (ret nvml.Return) {
		_, _, waits, failed, ret = handle.GetRemappedRows()
		return ret
	})
	switch {
	case ret == nvml.SUCCESS && failed:
		return gpu.RemapFailed
	case ret == nvml.SUCCESS && waits:
		return gpu.RemapPending
	case ret == nvml.SUCCESS:
		return gpu.RemapNone
	case !isAbsent(ret), before != gpu.RemapNone && !isUnsupported(ret), before == gpu.RemapFailed && divided:
		return before
	}
	var pages nvml.EnableState
	ret = o.read("nvmlDeviceGetRetiredPagesPendingStatus", func() nvml.Return { return set(&pages)(handle.GetRetiredPagesPendingStatus()) })
	switch {
	case ret == nvml.SUCCESS && pages == nvml.FEATURE_ENABLED:
		return gpu.RemapPending
	case ret == nvml.SUCCESS, isAbsent(ret): // or ECC is off
		return gpu.RemapNone
	}
	return before
}

// judge sets the GPU's Fault and Notes from what was read of it.
func judge(d *gpu.Device, polled bool, mask uint32) {
	fault := func(reason gpu.Reason, message string) { d.Fault = gpu.Fault{Reason: reason, Message: message} }
	note := func(reason gpu.Reason, message string) {
		d.Notes = append(d.Notes, gpu.Note{Reason: reason, Message: message})
	}
	const ask = "the driver asks for recovery: "
	switch {
	case d.Remap == gpu.RemapFailed: // no reset fixes this, whatever else the driver asks for
		fault(gpu.ReasonRowRemap, "remapping a row of faulty memory failed: the GPU must be replaced")
	case d.Recovery == gpu.RecoverReset:
		fault(gpu.ReasonResetNeeded, ask+"reset the GPU (nvidia-smi --gpu-reset)")
	case d.Recovery == gpu.RecoverReboot, d.Recovery == gpu.RecoverSystemReboot:
		fault(gpu.ReasonResetNeeded, ask+"reboot the node")
	case d.Recovery == gpu.RecoverDrainAndReset:
		fault(gpu.ReasonResetNeeded, ask+"end the programs on the GPU, then reset it")
	case d.Recovery == gpu.RecoverBusReset:
		fault(gpu.ReasonResetNeeded, ask+"reset the PCI bus of the GPU")
	case d.Remap == gpu.RemapPending && !d.OfflinesPages():
		// Drivers from R570 on ask for a reset themselves, which says the same above.
		fault(gpu.ReasonResetNeeded, "rows or pages of faulty memory wait to be replaced: end the programs on the GPU, then reset it")
	}
	switch d.Recovery {
	case "", gpu.RecoverNothing, gpu.RecoverReset, gpu.RecoverReboot, gpu.RecoverSystemReboot, gpu.RecoverDrainAndReset, gpu.RecoverBusReset:
	case gpu.RecoverDrainP2P:
		note(gpu.NoteDrainP2P, "the driver asks to end the programs that use NVLink or UVM persistence between GPUs; it then says what else is needed")
	case gpu.RecoverIMEXDomain:
		note(gpu.NoteRecoverIMEX, "memory of other nodes cannot be used until nvidia-imex runs again on all nodes of the IMEX domain; work within the node goes on")
	default:
		note(gpu.NoteRecovery, "the driver asks for recovery in a way that this version does not know ("+string(d.Recovery)+"): see nvidia-smi -q")
	}
	if d.Remap == gpu.RemapPending && d.Fault == (gpu.Fault{}) {
		note(gpu.NoteRemapPending, "rows of faulty memory are replaced at the next reset, and not used until then: reset the GPU when it is idle")
	}
	if text := fabricProblems(mask); text != "" {
		note(gpu.NoteFabricDegraded, "the NVLink fabric of the GPU: "+text)
	}
	if polled {
		note(gpu.NoteNoXIDs, "the driver reports no XIDs of this GPU, as in vGPU guests and WSL: it is polled, and errors show late or only in programs")
	}
}
