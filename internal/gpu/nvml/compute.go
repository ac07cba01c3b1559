package nvml

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ComputeMode reads the compute mode of a GPU.
func (s *Source) ComputeMode(ctx context.Context, id gpu.UUID) (gpu.ComputeMode, error) {
	var mode gpu.ComputeMode
	err := s.callOn(ctx, id, "nvmlDeviceGetComputeMode", func(device nvml.Device) nvml.Return {
		now, ret := device.GetComputeMode()
		mode = gpu.ComputeMode(now)
		return ret
	})
	if err != nil {
		return 0, err
	}
	return mode, nil
}

// readComputeMode reads the compute mode for a snapshot. A GPU that does not report it has the default
// one, as those that cannot have another do.
func (s *Source) readComputeMode(o *optionalReads, handle nvml.Device, d *gpu.Device) {
	ret := o.read("nvmlDeviceGetComputeMode", func() nvml.Return {
		mode, ret := handle.GetComputeMode()
		if ret == nvml.SUCCESS {
			d.ComputeMode = gpu.ComputeMode(mode)
		}
		return ret
	})
	if ret != nvml.SUCCESS && !isAbsent(ret) { // it is as it was before
		s.mu.Lock()
		defer s.mu.Unlock()
		d.ComputeMode = s.memory.devices[d.UUID].ComputeMode
	}
}

// SetComputeMode sets the compute mode, until the GPU is reset or the driver reloaded.
// Only root may do so (nvml.h, nvmlDeviceSetComputeMode).
func (s *Source) SetComputeMode(ctx context.Context, id gpu.UUID, mode gpu.ComputeMode) error {
	return s.callOn(ctx, id, "nvmlDeviceSetComputeMode", func(device nvml.Device) nvml.Return {
		return device.SetComputeMode(nvml.ComputeMode(mode))
	})
}

// callOn makes one call on the GPU, which the library may lack.
func (s *Source) callOn(ctx context.Context, id gpu.UUID, name string, fn func(nvml.Device) nvml.Return) error {
	if err := s.checkOpen(); err != nil {
		return err
	}
	for _, symbol := range []string{"nvmlDeviceGetHandleByUUID", name} {
		if !s.has[symbol] {
			return fmt.Errorf("%s: %w", symbol, &callError{symbol, nvml.ERROR_FUNCTION_NOT_FOUND})
		}
	}
	_, err := call(ctx, s.calls, "the compute mode of "+string(id), func() (struct{}, error) {
		device, ret := s.lib.DeviceGetHandleByUUID(string(id))
		if err := check("nvmlDeviceGetHandleByUUID", ret); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, check(name, fn(device))
	})
	return err
}
