package nvml

import (
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readMIG reads whether a GPU supports MIG, whether MIG is on, and its MIG devices. Without them nobody
// knows what may be given to a container, so an error means that the GPU cannot be used.
func (s *Source) readMIG(o *optionalReads, handle nvml.Device, d *gpu.Device) error {
	if !s.hasAll("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId") || o.err != nil {
		return o.err
	}
	var mode int
	ret := o.try("nvmlDeviceGetMigMode", func() nvml.Return {
		now, _, ret := handle.GetMigMode()
		mode = now
		return ret
	})
	s.mu.Lock()
	wasCapable := s.memory.devices[d.UUID].MIGCapable
	s.mu.Unlock()
	if isUnsupported(ret) && !wasCapable {
		return o.err
	}
	if err := check("nvmlDeviceGetMigMode", ret); err != nil {
		return err
	}
	d.MIGCapable, d.MIGEnabled = true, mode == nvml.DEVICE_MIG_ENABLE
	if !d.MIGEnabled {
		return nil
	}
	if o.facts.maxMIG == 0 {
		most, ret := handle.GetMaxMigDeviceCount()
		if err := check("nvmlDeviceGetMaxMigDeviceCount", ret); err != nil {
			return err
		}
		o.facts.maxMIG = most
		s.keepMaxMIG(d.UUID, most)
	}
	for i := range o.facts.maxMIG {
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue // indexes have gaps
		}
		if err := check("nvmlDeviceGetMigDeviceHandleByIndex", ret); err != nil {
			return err
		}
		m, err := s.readMIGDevice(o, i, mig)
		if returned(err) == nvml.ERROR_NOT_FOUND {
			continue // removed since
		}
		if err != nil {
			return err
		}
		d.MIG = append(d.MIG, m)
	}
	return o.err
}

func (s *Source) keepMaxMIG(id gpu.UUID, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, known := s.memory.facts[id]; known {
		f.maxMIG = most
		s.memory.facts[id] = f
	}
}

// readMIGDevice reads a MIG device. Its attributes may be unknown.
func (s *Source) readMIGDevice(o *optionalReads, index int, handle nvml.Device) (gpu.MIGDevice, error) {
	id, ret := handle.GetUUID()
	if err := check("nvmlDeviceGetUUID of a MIG device", ret); err != nil {
		return gpu.MIGDevice{}, err
	}
	if !isName(id) {
		id = "" // nobody gets it
	}
	var attributes nvml.DeviceAttributes
	ret = o.read("nvmlDeviceGetAttributes_v2", func() nvml.Return { return set(&attributes)(handle.GetAttributes()) })
	if ret != nvml.SUCCESS && !isUnsupported(ret) { // they are as they were before
		s.mu.Lock()
		attributes = o.facts.mig[gpu.UUID(id)].attributes
		s.mu.Unlock()
	}
	instance, ret := handle.GetGpuInstanceId()
	if err := check("nvmlDeviceGetGpuInstanceId", ret); err != nil {
		return gpu.MIGDevice{}, err
	}
	f, err := s.migFactsOf(o, gpu.UUID(id), handle, migFacts{attributes: attributes, gpuInstance: instance})
	return gpu.MIGDevice{
		Index: index, UUID: gpu.UUID(id), GPUInstance: instance, ComputeInstance: f.computeInstance, Profile: f.profile,
		MemoryBytes: attributes.MemorySizeMB << 20,
		Attributes: gpu.Attributes{
			Multiprocessors: int(attributes.MultiprocessorCount), CopyEngines: int(attributes.SharedCopyEngineCount),
			Decoders: int(attributes.SharedDecoderCount), Encoders: int(attributes.SharedEncoderCount),
			JPEGEngines: int(attributes.SharedJpegCount), OFAEngines: int(attributes.SharedOfaCount),
		},
	}, err
}

// migFactsOf returns the facts of a MIG device. seen is what was just read of it.
func (s *Source) migFactsOf(o *optionalReads, id gpu.UUID, handle nvml.Device, seen migFacts) (migFacts, error) {
	s.mu.Lock()
	f, known := o.facts.mig[id]
	s.mu.Unlock()
	if known && f.attributes == seen.attributes && f.gpuInstance == seen.gpuInstance {
		return f, nil
	}
	f = seen
	var ret nvml.Return
	if f.computeInstance, ret = handle.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return f, check("nvmlDeviceGetComputeInstanceId", ret)
	}
	var err error
	if f.profile, err = s.migProfile(handle); err != nil {
		return f, err // without it nobody knows what is offered
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o.facts.mig[id] = f
	return f, nil
}

// migProfile names the profile of a MIG device, as go-nvlib composes it from
// the GPU instance's and the compute instance's, or, where the library lacks
// functions for that, as the device's own name ends: "… MIG 1g.10gb".
func (s *Source) migProfile(handle nvml.Device) (string, error) {
	if s.hasAll("nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetGpuInstanceById",
		"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceById",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlComputeInstanceGetInfo_v2", "nvmlDeviceGetAttributes_v2") {
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
