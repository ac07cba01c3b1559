package nvml

import (
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readMIG reads whether a GPU supports MIG, whether MIG is on, and its MIG devices.
func (s *Source) readMIG(handle nvml.Device, d *gpu.Device) error {
	if !s.hasAll("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2") {
		return nil
	}
	mode, _, ret := handle.GetMigMode()
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return nil
	}
	if err := check("nvmlDeviceGetMigMode", ret); err != nil {
		return err
	}
	d.MIGCapable, d.MIGEnabled = true, mode == nvml.DEVICE_MIG_ENABLE
	if !d.MIGEnabled {
		return nil
	}
	most, ret := handle.GetMaxMigDeviceCount()
	if err := check("nvmlDeviceGetMaxMigDeviceCount", ret); err != nil {
		return err
	}
	for i := range most {
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // indexes have gaps
		}
		if err := check("nvmlDeviceGetMigDeviceHandleByIndex", ret); err != nil {
			return err
		}
		m, err := s.readMIGDevice(i, mig)
		if returned(err) == nvml.ERROR_NOT_FOUND {
			continue // removed since
		}
		if err != nil {
			return err
		}
		d.MIG = append(d.MIG, m)
	}
	return nil
}

func (s *Source) readMIGDevice(index int, handle nvml.Device) (gpu.MIGDevice, error) {
	m := gpu.MIGDevice{Index: index}
	return m, firstError(
		func() error {
			id, ret := handle.GetUUID()
			m.UUID = gpu.UUID(id)
			return check("nvmlDeviceGetUUID of a MIG device", ret)
		},
		func() error {
			id, ret := handle.GetGpuInstanceId()
			m.GPUInstance = id
			return check("nvmlDeviceGetGpuInstanceId", ret)
		},
		func() error {
			id, ret := handle.GetComputeInstanceId()
			m.ComputeInstance = id
			return check("nvmlDeviceGetComputeInstanceId", ret)
		},
		func() error {
			attributes, ret := handle.GetAttributes()
			m.MemoryBytes = attributes.MemorySizeMB << 20
			m.Attributes = gpu.Attributes{
				Multiprocessors: int(attributes.MultiprocessorCount), CopyEngines: int(attributes.SharedCopyEngineCount),
				Decoders: int(attributes.SharedDecoderCount), Encoders: int(attributes.SharedEncoderCount),
				JPEGEngines: int(attributes.SharedJpegCount), OFAEngines: int(attributes.SharedOfaCount),
			}
			return check("nvmlDeviceGetAttributes", ret)
		},
		func() error {
			profile, err := s.migProfile(handle)
			m.Profile = profile
			return err
		},
	)
}

// migProfile names the profile of a MIG device, as go-nvlib composes it from
// the GPU instance's and the compute instance's, or, where the library lacks
// functions for that, as the device's own name ends: "… MIG 1g.10gb".
func (s *Source) migProfile(handle nvml.Device) (string, error) {
	if s.hasAll("nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetGpuInstanceById",
		"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceById",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlComputeInstanceGetInfo_v2") {
		if mig, err := device.New(s.lib, device.WithVerifySymbols(false)).NewMigDevice(handle); err == nil {
			// go-nvlib returns an error for profiles newer than itself: use the name then.
			if profile, err := mig.GetProfile(); err == nil {
				return profile.String(), nil
			}
		}
	}
	name, ret := handle.GetName()
	if err := check("nvmlDeviceGetName of a MIG device", ret); err != nil {
		return "", err
	}
	_, profile, _ := strings.Cut(name, " MIG ")
	return strings.TrimSpace(profile), nil
}

// hasAll reports whether the library has all of these optional functions.
func (s *Source) hasAll(symbols ...string) bool {
	for _, symbol := range symbols {
		if !s.has[symbol] {
			return false
		}
	}
	return true
}
