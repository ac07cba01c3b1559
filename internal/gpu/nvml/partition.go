package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuready/gpuready/internal/gpu"
)

// readingPartitions lists the functions that reading the possible partitions needs, and
// makingPartitions those that creating and destroying needs besides. nvml.h says of most of them
// that they need a privileged user: a process with the capability mig/config, or root outside of
// containers.
var (
	readingPartitions = []string{
		"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo",
	}
	makingPartitions = []string{
		"nvmlDeviceGetHandleByUUID", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstances",
		"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceDestroy", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	}
)

// readPartitions reads the profiles of a GPU in MIG mode and the GPU instances that exist.
func (s *Source) readPartitions(handle nvml.Device, d *gpu.Device) error {
	if !s.partitions || !d.MIGEnabled || !s.hasAll(readingPartitions...) {
		return nil
	}
	for constant := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := handle.GetGpuInstanceProfileInfo(constant)
		if isNoProfile(ret) {
			continue
		}
		if err := check("nvmlDeviceGetGpuInstanceProfileInfo", ret); err != nil {
			return err
		}
		if slices.ContainsFunc(d.Profiles, func(p gpu.PartitionProfile) bool { return p.ID == int(info.Id) }) {
			continue
		}
		p, err := s.readProfile(handle, constant, info, d.MemoryBytes)
		if err != nil {
			return err
		}
		if p.Size > 0 {
			d.Profiles = append(d.Profiles, p)
		}
		instances, err := readInstances(handle, info)
		if err != nil {
			return err
		}
		d.Instances = append(d.Instances, instances...)
	}
	slices.SortFunc(d.Profiles, func(a, b gpu.PartitionProfile) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(d.Instances, func(a, b gpu.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

func (s *Source) readProfile(handle nvml.Device, constant int, info nvml.GpuInstanceProfileInfo, memory uint64) (gpu.PartitionProfile, error) {
	p := gpu.PartitionProfile{
		ID: int(info.Id), Name: s.profileName(handle, constant, info, memory), Slices: int(info.SliceCount), Instances: int(info.InstanceCount), MemoryBytes: info.MemorySizeMB << 20,
		Attributes: gpu.Attributes{
			Multiprocessors: int(info.MultiprocessorCount), CopyEngines: int(info.CopyEngineCount), Decoders: int(info.DecoderCount),
			Encoders: int(info.EncoderCount), JPEGEngines: int(info.JpegCount), OFAEngines: int(info.OfaCount),
		},
	}
	places, ret := handle.GetGpuInstancePossiblePlacements(&info)
	if err := check("nvmlDeviceGetGpuInstancePossiblePlacements", ret); err != nil {
		return p, err
	}
	for _, place := range places {
		p.Size = int(place.Size)
		p.Starts = append(p.Starts, int(place.Start))
	}
	slices.Sort(p.Starts)
	return p, nil
}

// profileName names a profile as the driver does, or where the library is too old for that, as
// go-nvlib composes it.
func (s *Source) profileName(handle nvml.Device, constant int, info nvml.GpuInstanceProfileInfo, memory uint64) string {
	if s.has["nvmlDeviceGetGpuInstanceProfileInfoV"] {
		if named, ret := handle.GetGpuInstanceProfileInfoV(constant).V2(); ret == nvml.SUCCESS {
			text := unsafe.Slice((*byte)(unsafe.Pointer(&named.Name[0])), len(named.Name)) // its type differs between versions of go-nvml
			name, _, _ := strings.Cut(string(text), "\x00")
			return strings.TrimPrefix(name, "MIG ")
		}
	}
	for ci := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		if p, err := device.New(s.lib, device.WithVerifySymbols(false)).NewMigProfile(constant, ci, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB, memory); err == nil && p.GetInfo().C == p.GetInfo().G {
			return p.String()
		}
	}
	return ""
}

func readInstances(handle nvml.Device, info nvml.GpuInstanceProfileInfo) (all []gpu.Instance, err error) {
	handles, ret := handle.GetGpuInstances(&info)
	if err := check("nvmlDeviceGetGpuInstances", ret); err != nil {
		return nil, err
	}
	for _, h := range handles {
		at, ret := h.GetInfo()
		if ret == nvml.ERROR_NOT_FOUND {
			continue // destroyed since
		}
		if err := check("nvmlGpuInstanceGetInfo", ret); err != nil {
			return nil, err
		}
		all = append(all, gpu.Instance{ID: int(at.Id), Profile: int(at.ProfileId), Start: int(at.Placement.Start), Size: int(at.Placement.Size)})
	}
	return all, nil
}

// Instances reads the GPU instances that exist on a GPU.
func (s *Source) Instances(ctx context.Context, id gpu.UUID) ([]gpu.Instance, error) {
	return onMIG(ctx, s, id, func(handle nvml.Device) (all []gpu.Instance, err error) {
		for constant := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			info, ret := handle.GetGpuInstanceProfileInfo(constant)
			if isNoProfile(ret) {
				continue
			}
			if err := check("nvmlDeviceGetGpuInstanceProfileInfo", ret); err != nil {
				return nil, err
			}
			some, err := readInstances(handle, info)
			if err != nil {
				return nil, partitionError(err)
			}
			all = append(all, some...)
		}
		return all, nil
	})
}

// CreatePartition creates a GPU instance at the placement, with one compute instance that takes it
// all. If that fails half-way, the GPU instance is destroyed again; gpu.ErrLeftover means that it may
// still be there. The error wraps gpu.ErrNoRoom if something else is there, gpu.ErrNoPermission
// without the capability mig/config, and gpu.ErrNoMIGMode.
func (s *Source) CreatePartition(ctx context.Context, at gpu.Placement) (gpu.Partition, error) {
	made, err := onPartitions(ctx, s, at, func(handle nvml.Device, info nvml.GpuInstanceProfileInfo) (gpu.Partition, error) {
		made := gpu.Partition{Placement: at}
		instance, ret := handle.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
		if err := check("nvmlDeviceCreateGpuInstanceWithPlacement", ret); err != nil {
			return made, partitionError(err)
		}
		err := fillInstance(handle, instance, info, &made)
		if err == nil {
			return made, nil
		}
		if undo := destroyInstance(instance); undo != nil {
			return made, fmt.Errorf("%w: %w; removing it failed: %w", gpu.ErrLeftover, partitionError(err), undo)
		}
		return made, partitionError(err)
	})
	if _, hung := errors.AsType[*hungError](err); hung || ctx.Err() != nil && err != nil {
		err = fmt.Errorf("%w: %w", gpu.ErrLeftover, err) // the driver may still create it
	}
	return made, err
}

// fillInstance creates the compute instance of a GPU instance, and finds its MIG device.
func fillInstance(handle nvml.Device, instance nvml.GpuInstance, profile nvml.GpuInstanceProfileInfo, made *gpu.Partition) error {
	at, ret := instance.GetInfo()
	if err := check("nvmlGpuInstanceGetInfo", ret); err != nil {
		return err
	}
	made.GPUInstance = int(at.Id)
	info, err := wholeCompute(instance, profile.SliceCount)
	if err != nil {
		return err
	}
	compute, ret := instance.CreateComputeInstance(&info)
	if err := check("nvmlGpuInstanceCreateComputeInstance", ret); err != nil {
		return err
	}
	in, ret := compute.GetInfo()
	if err := check("nvmlComputeInstanceGetInfo", ret); err != nil {
		return err
	}
	made.ComputeInstance = int(in.Id)
	made.UUID, err = findMIGDevice(handle, made.GPUInstance, made.ComputeInstance)
	return err
}

// wholeCompute returns the profile of a compute instance that takes all slices of its GPU instance.
func wholeCompute(instance nvml.GpuInstance, slices uint32) (nvml.ComputeInstanceProfileInfo, error) {
	for constant := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := instance.GetComputeInstanceProfileInfo(constant, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := check("nvmlGpuInstanceGetComputeInstanceProfileInfo", ret); err != nil {
			return info, err
		}
		if info.SliceCount == slices {
			return info, nil
		}
	}
	return nvml.ComputeInstanceProfileInfo{}, fmt.Errorf("the GPU instance has no compute instance profile of %d slices", slices)
}

func findMIGDevice(handle nvml.Device, gi, ci int) (gpu.UUID, error) {
	most, ret := handle.GetMaxMigDeviceCount()
	if err := check("nvmlDeviceGetMaxMigDeviceCount", ret); err != nil {
		return "", err
	}
	for i := range most {
		mig, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := check("nvmlDeviceGetMigDeviceHandleByIndex", ret); err != nil {
			return "", err
		}
		g, ret := mig.GetGpuInstanceId()
		c, ret2 := mig.GetComputeInstanceId()
		if ret != nvml.SUCCESS || ret2 != nvml.SUCCESS || g != gi || c != ci {
			continue
		}
		id, ret := mig.GetUUID()
		return gpu.UUID(id), check("nvmlDeviceGetUUID of a MIG device", ret)
	}
	return "", fmt.Errorf("NVML does not list the MIG device %d/%d that was created; next: let this process have the capability mig/monitor", gi, ci)
}

// DestroyPartition destroys the GPU instance of the profile at the placement, with its compute
// instances. That there is none is no error. The error wraps gpu.ErrInUse while a process uses it.
func (s *Source) DestroyPartition(ctx context.Context, at gpu.Placement) error {
	_, err := onPartitions(ctx, s, at, func(handle nvml.Device, info nvml.GpuInstanceProfileInfo) (struct{}, error) {
		handles, ret := handle.GetGpuInstances(&info)
		if err := check("nvmlDeviceGetGpuInstances", ret); err != nil {
			return struct{}{}, inUseError(err)
		}
		for _, h := range handles {
			is, ret := h.GetInfo()
			if ret == nvml.ERROR_NOT_FOUND {
				continue
			}
			if err := check("nvmlGpuInstanceGetInfo", ret); err != nil {
				return struct{}{}, inUseError(err)
			}
			if int(is.Placement.Start) == at.Start && int(is.Placement.Size) == at.Size {
				return struct{}{}, inUseError(destroyInstance(h))
			}
		}
		return struct{}{}, nil
	})
	if errors.Is(err, gpu.ErrNoMIGMode) {
		return nil // MIG mode is off, or the GPU has no such profile: so there is no partition
	}
	return err
}

// destroyInstance destroys a GPU instance and the compute instances in it.
func destroyInstance(instance nvml.GpuInstance) error {
	for constant := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := instance.GetComputeInstanceProfileInfo(constant, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if err := check("nvmlGpuInstanceGetComputeInstanceProfileInfo", ret); err != nil {
			return err
		}
		all, ret := instance.GetComputeInstances(&info)
		if err := check("nvmlGpuInstanceGetComputeInstances", ret); err != nil {
			return err
		}
		for _, compute := range all {
			if ret := compute.Destroy(); ret != nvml.ERROR_NOT_FOUND {
				if err := check("nvmlComputeInstanceDestroy", ret); err != nil {
					return err
				}
			}
		}
	}
	if ret := instance.Destroy(); ret != nvml.ERROR_NOT_FOUND {
		return check("nvmlGpuInstanceDestroy", ret)
	}
	return nil
}

// onPartitions calls fn, as a call of NVML, with the GPU and the profile of a placement.
func onPartitions[T any](ctx context.Context, s *Source, at gpu.Placement, fn func(nvml.Device, nvml.GpuInstanceProfileInfo) (T, error)) (T, error) {
	var zero T
	return onMIG(ctx, s, at.GPU, func(handle nvml.Device) (T, error) {
		for constant := range nvml.GPU_INSTANCE_PROFILE_COUNT {
			info, ret := handle.GetGpuInstanceProfileInfo(constant)
			if isNoProfile(ret) {
				continue
			}
			if err := check("nvmlDeviceGetGpuInstanceProfileInfo", ret); err != nil {
				return zero, err
			}
			if int(info.Id) == at.Profile {
				return fn(handle, info)
			}
		}
		return zero, fmt.Errorf("%w: no profile %d", gpu.ErrNoMIGMode, at.Profile)
	})
}

// onMIG calls fn, as a call of NVML, with a GPU in MIG mode.
func onMIG[T any](ctx context.Context, s *Source, id gpu.UUID, fn func(nvml.Device) (T, error)) (T, error) {
	var zero T
	if err := s.checkOpen(); err != nil {
		return zero, err
	}
	for _, symbol := range append(slices.Clone(readingPartitions), makingPartitions...) {
		if !s.has[symbol] {
			return zero, &callError{symbol, nvml.ERROR_FUNCTION_NOT_FOUND}
		}
	}
	return call(ctx, s.calls, "the partitions of "+string(id), func() (T, error) {
		handle, ret := s.lib.DeviceGetHandleByUUID(string(id))
		if err := check("nvmlDeviceGetHandleByUUID", ret); err != nil {
			return zero, err
		}
		mode, _, ret := handle.GetMigMode()
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && mode != nvml.DEVICE_MIG_ENABLE {
			return zero, fmt.Errorf("%w: MIG mode is off", gpu.ErrNoMIGMode)
		}
		if err := check("nvmlDeviceGetMigMode", ret); err != nil {
			return zero, err
		}
		return fn(handle)
	})
}

// isNoProfile reports whether a profile is not one of the GPU, or not one that its driver knows.
func isNoProfile(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT
}

// inUseError wraps gpu.ErrInUse where NVML refused for that. Whatever else it answers about a partition to
// be destroyed, the partition may be there.
func inUseError(err error) error {
	if returned(err) == nvml.ERROR_IN_USE {
		return fmt.Errorf("%w: %w", gpu.ErrInUse, err)
	}
	return err
}

// partitionError wraps the sentinel of package gpu that says why NVML refused.
func partitionError(err error) error {
	switch returned(err) {
	case nvml.ERROR_IN_USE:
		return fmt.Errorf("%w: %w", gpu.ErrInUse, err)
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return fmt.Errorf("%w: %w", gpu.ErrNoRoom, err)
	case nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("%w: %w", gpu.ErrNoMIGMode, err)
	}
	return err
}
