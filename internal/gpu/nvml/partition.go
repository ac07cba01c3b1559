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
		"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy",
		"nvmlGpuInstanceGetComputeInstanceProfileInfo", "nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstances",
		"nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceDestroy", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	}
)

// readPartitions reads the profiles of a GPU in MIG mode and the GPU instances that exist. If only that
// fails, they are those of the last reading: the GPU itself may be well, and others use it. If nothing was
// read before, that is an error: a MIG device whose GPU instance is not known may be a claim's.
func (s *Source) readPartitions(handle nvml.Device, d *gpu.Device) error {
	if !s.partitions || !d.MIGEnabled || !s.hasAll(readingPartitions...) {
		return nil
	}
	profiles, instances, err := s.listPartitions(handle, d.MemoryBytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.memory.devices[d.UUID]
	switch {
	case err == nil:
		d.Profiles, d.Instances = profiles, instances
		delete(s.memory.unlisted, d.UUID)
		return nil
	case wholeDriver(err), faultOf(err).Reason != gpu.ReasonUnreadable, len(before.Profiles) == 0:
		return err
	}
	d.Profiles, d.Instances = before.Profiles, before.Instances
	if s.memory.unlisted[d.UUID] != err.Error() {
		s.memory.unlisted[d.UUID] = err.Error()
		s.log.Warn("the partitions of a GPU cannot be read", "gpu", string(d.UUID), "message", err.Error())
	}
	return nil
}

func (s *Source) listPartitions(handle nvml.Device, memory uint64) (profiles []gpu.PartitionProfile, instances []gpu.Instance, err error) {
	for constant := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := handle.GetGpuInstanceProfileInfo(constant)
		if isNoProfile(ret) {
			continue
		}
		if err := check("nvmlDeviceGetGpuInstanceProfileInfo", ret); err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(profiles, func(p gpu.PartitionProfile) bool { return p.ID == int(info.Id) }) {
			continue
		}
		p, err := s.readProfile(handle, constant, info, memory)
		if err != nil {
			return nil, nil, err
		}
		if p.Size > 0 {
			profiles = append(profiles, p)
		}
		some, err := readInstances(handle, info)
		if err != nil {
			return nil, nil, err
		}
		instances = append(instances, some...)
	}
	slices.SortFunc(profiles, func(a, b gpu.PartitionProfile) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(instances, func(a, b gpu.Instance) int { return cmp.Compare(a.ID, b.ID) })
	return profiles, instances, nil
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
// go-nvlib composes it. One that go-nvlib does not know has its number.
func (s *Source) profileName(handle nvml.Device, constant int, info nvml.GpuInstanceProfileInfo, memory uint64) string {
	if s.has["nvmlDeviceGetGpuInstanceProfileInfoV"] {
		if named, ret := handle.GetGpuInstanceProfileInfoV(constant).V2(); ret == nvml.SUCCESS {
			text := unsafe.Slice((*byte)(unsafe.Pointer(&named.Name[0])), len(named.Name)) // its type differs between versions of go-nvml
			name, _, _ := strings.Cut(string(text), "\x00")
			if name = strings.TrimPrefix(name, "MIG "); name != "" {
				return name
			}
		}
	}
	for ci := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		if p, err := device.New(s.lib, device.WithVerifySymbols(false)).NewMigProfile(constant, ci, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, info.MemorySizeMB, memory); err == nil && p.GetInfo().C == p.GetInfo().G {
			return p.String()
		}
	}
	return fmt.Sprintf("profile-%d", info.Id)
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
		err := check("nvmlDeviceCreateGpuInstanceWithPlacement", ret)
		switch {
		case isUnreachable(err):
			return made, fmt.Errorf("%w: %w", gpu.ErrLeftover, err)
		case err != nil:
			return made, partitionError(err)
		}
		err = fillInstance(handle, instance, info, &made)
		if err == nil {
			return made, nil
		}
		if undo := destroyInstance(instance); undo != nil {
			return made, fmt.Errorf("%w: %w; removing it failed: %w", gpu.ErrLeftover, err, undo)
		}
		return made, err // the place was free, whatever the driver calls it: the GPU instance was there for a moment
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
// instances. That there is none is no error. The error wraps gpu.ErrInUse while a process uses it, and
// gpu.ErrUnreachable if the GPU is lost or missing, waits for a reset, or hangs.
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
	if _, hung := errors.AsType[*hungError](err); hung {
		return fmt.Errorf("%w: %w", gpu.ErrUnreachable, err)
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
		value, err := onHandle(s, id, fn)
		if isUnreachable(err) && !errors.Is(err, gpu.ErrUnreachable) {
			err = fmt.Errorf("%w: %w", gpu.ErrUnreachable, err)
		}
		return value, err
	})
}

// isUnreachable reports whether NVML answered that it does not reach a GPU.
func isUnreachable(err error) bool {
	ret := returned(err)
	return ret == nvml.ERROR_GPU_IS_LOST || ret == nvml.ERROR_RESET_REQUIRED
}

// onHandle is onMIG within a call of NVML.
func onHandle[T any](s *Source, id gpu.UUID, fn func(nvml.Device) (T, error)) (T, error) {
	var zero T
	handle, err := s.findHandle(id)
	if err == nil {
		mode, _, ret := handle.GetMigMode()
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && mode != nvml.DEVICE_MIG_ENABLE {
			return zero, fmt.Errorf("%w: MIG mode is off", gpu.ErrNoMIGMode)
		}
		err = check("nvmlDeviceGetMigMode", ret)
	}
	// A GPU that does not even answer this is lost, whatever the driver calls it.
	switch {
	case err == nil:
		return fn(handle)
	case wholeDriver(err), errors.Is(err, gpu.ErrNoPermission), errors.Is(err, gpu.ErrUnreachable):
		return zero, err
	}
	return zero, fmt.Errorf("%w: %w", gpu.ErrUnreachable, err)
}

// findHandle returns the handle of a GPU, by the index that it had when the GPUs were read last. A search by
// UUID may open other GPUs (nvml.h at nvmlDeviceGetHandleByUUID), among them one that hangs or is released.
// If a GPU has left the bus or returned since, the indexes have shifted, and those of the GPUs that are not
// released are tried.
func (s *Source) findHandle(id gpu.UUID) (nvml.Device, error) {
	if s.isReleased(id) {
		return nil, fmt.Errorf("%w: it is released for a reset", gpu.ErrUnreachable)
	}
	s.mu.Lock()
	order := slices.Clone(s.memory.order)
	s.mu.Unlock()
	known := slices.Index(order, id)
	var failed error // of the GPU that has its index now, which may be another
	if known >= 0 {
		handle, ret := s.lib.DeviceGetHandleByIndex(known)
		is, found, err := isDevice(handle, ret, id)
		if found {
			return is, nil
		}
		failed = err
	} else if len(order) > 0 {
		return nil, fmt.Errorf("%w: the driver does not list it", gpu.ErrUnreachable)
	}
	count, ret := s.lib.DeviceGetCount()
	if failed != nil && (ret != nvml.SUCCESS || count == len(order)) {
		return nil, failed
	}
	if err := check("nvmlDeviceGetCount", ret); err != nil {
		return nil, err
	}
	for i := range count {
		if i == known || count == len(order) && s.isReleased(order[i]) {
			continue
		}
		handle, ret := s.lib.DeviceGetHandleByIndex(i)
		if is, found, _ := isDevice(handle, ret, id); found {
			return is, nil
		}
	}
	return nil, fmt.Errorf("%w: the driver does not list it", gpu.ErrUnreachable)
}

// isDevice returns the result of DeviceGetHandleByIndex if it is the GPU of a UUID.
func isDevice(handle nvml.Device, ret nvml.Return, id gpu.UUID) (nvml.Device, bool, error) {
	if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_NOT_FOUND {
		return nil, false, nil // there is no GPU of that index any more
	}
	if err := check("nvmlDeviceGetHandleByIndex", ret); err != nil {
		return nil, false, err
	}
	is, ret := handle.GetUUID()
	if err := check("nvmlDeviceGetUUID", ret); err != nil {
		return nil, false, err
	}
	return handle, gpu.UUID(is) == id, nil
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
