package nvml

import (
	"slices"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/built"
)

// partitioned opens a Source on a simulated GPU in MIG mode, with an optional layout.
func partitioned(t *testing.T, profile, layout string) (*Source, string) {
	t.Helper()
	root := built.DriverRoot(t, profile, "--gpus", "2")
	if layout == "" {
		built.Gpusim(t, "mig", "--root", root, "--gpu", "0", "--on")
	} else {
		built.Gpusim(t, "mig", "--root", root, "--gpu", "0", "--layout", layout)
	}
	s, err := Open(Options{DriverRoot: root, Partitions: true, ProbeInterval: 50 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, root
}

func profileNamed(t *testing.T, d gpu.Device, name string) gpu.PartitionProfile {
	t.Helper()
	for _, p := range d.Profiles {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no profile %s in %+v", name, d.Profiles)
	return gpu.PartitionProfile{}
}

func TestSnapshotListsWhatAGPUCanBePartitionedInto(t *testing.T) {
	if !alone(t) {
		return
	}
	s, _ := partitioned(t, "h100-sxm", "3g.40gb@4")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	d := snap.Devices[0]
	require.Equal(t, gpu.PartitionProfile{ID: 19, Name: "1g.10gb", Slices: 1, Size: 1, Instances: 7, Starts: []int{0, 1, 2, 3, 4, 5, 6},
		MemoryBytes: profileNamed(t, d, "1g.10gb").MemoryBytes, Attributes: profileNamed(t, d, "1g.10gb").Attributes}, profileNamed(t, d, "1g.10gb"))
	require.Equal(t, []int{0, 4}, profileNamed(t, d, "3g.40gb").Starts)
	require.Equal(t, []gpu.Instance{{ID: 2, Profile: 9, Start: 4, Size: 4}}, d.Instances)
	require.Empty(t, snap.Devices[1].Profiles, "a GPU that is not in MIG mode has none")
}

func TestPartitionsAreCreatedAndDestroyedAtTheirPlacement(t *testing.T) {
	if !alone(t) {
		return
	}
	s, root := partitioned(t, "h100-sxm", "")
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	id := snap.Devices[0].UUID
	small, big := gpu.Placement{GPU: id, Profile: 19, Start: 3, Size: 1}, gpu.Placement{GPU: id, Profile: 9, Start: 4, Size: 4}
	made, err := s.CreatePartition(t.Context(), small)
	require.NoError(t, err)
	require.True(t, made.UUID.IsMIG())
	_, err = s.CreatePartition(t.Context(), big)
	require.NoError(t, err)
	snap, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, snap.Devices[0].MIG, 2)
	require.Len(t, snap.Devices[0].Instances, 2)

	_, err = s.CreatePartition(t.Context(), small)
	require.ErrorIs(t, err, gpu.ErrNoRoom, "it is there already")
	_, err = s.CreatePartition(t.Context(), gpu.Placement{GPU: id, Profile: 99, Start: 0, Size: 1})
	require.ErrorIs(t, err, gpu.ErrNoMIGMode)
	_, err = s.CreatePartition(t.Context(), gpu.Placement{GPU: snap.Devices[1].UUID, Profile: 19, Start: 0, Size: 1})
	require.ErrorIs(t, err, gpu.ErrNoMIGMode)

	require.NoError(t, s.DestroyPartition(t.Context(), small))
	require.NoError(t, s.DestroyPartition(t.Context(), small), "it is gone")
	require.NoError(t, s.DestroyPartition(t.Context(), gpu.Placement{GPU: id, Profile: 19, Start: 5, Size: 1}), "within another: that is not it")
	snap, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, []gpu.Instance{{ID: 2, Profile: 9, Start: 4, Size: 4}}, snap.Devices[0].Instances)

	built.Gpusim(t, "fail", "--root", root, "--mig", "unknown")
	_, err = s.CreatePartition(t.Context(), small)
	require.ErrorContains(t, err, "nvmlGpuInstanceCreateComputeInstance: unknown error of the driver")
	require.NotErrorIs(t, err, gpu.ErrLeftover)
	snap, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, snap.Devices[0].Instances, 1, "what was created before the failure is gone")
}

func (g *fakeGPU) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	if profile != nvml.GPU_INSTANCE_PROFILE_1_SLICE {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.GpuInstanceProfileInfo{Id: 19}, g.profile
}

func (g *fakeGPU) GetGpuInstances(*nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	return nil, g.instances
}

// A partition counts as destroyed only if it is known that it is not there.
func TestAPartitionIsNotGoneBecauseTheDriverRefuses(t *testing.T) {
	node := gputest.Node("a100-mig", 1)
	f, s := newFake(t, node, Options{Partitions: true})
	for _, symbol := range append(slices.Clone(readingPartitions), makingPartitions...) {
		s.has[symbol] = true
	}
	at := gpu.Placement{GPU: node.Devices[0].UUID, Profile: 19, Start: 0, Size: 1}
	require.NoError(t, s.DestroyPartition(t.Context(), at))
	require.NoError(t, s.DestroyPartition(t.Context(), gpu.Placement{GPU: at.GPU, Profile: 9, Start: 0, Size: 4}), "no such profile")
	for _, ret := range []nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_UNKNOWN} {
		f.gpus[0].instances = ret
		require.Error(t, s.DestroyPartition(t.Context(), at), "%v", ret)
	}
	f.gpus[0].instances, f.gpus[0].profile = nvml.SUCCESS, nvml.ERROR_UNKNOWN
	require.Error(t, s.DestroyPartition(t.Context(), at))
	_, err := s.Instances(t.Context(), at.GPU)
	require.Error(t, err, "what is there is not known")
}

func newPartitionFake(t *testing.T) (*fake, *Source, gpu.Placement) {
	node := gputest.Node("a100-mig", 3)
	f, s := newFake(t, node, Options{Partitions: true})
	for _, symbol := range append(slices.Clone(readingPartitions), makingPartitions...) {
		s.has[symbol] = true
	}
	s.has["nvmlDeviceGetGpuInstanceProfileInfoV"] = false // the fake lacks its structures
	_, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	return f, s, gpu.Placement{GPU: node.Devices[1].UUID, Profile: 19, Start: 0, Size: 1}
}

func (g *fakeGPU) GetGpuInstancePossiblePlacements(*nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return []nvml.GpuInstancePlacement{{Start: 0, Size: 1}}, nvml.SUCCESS
}

// A search by UUID may open every GPU, one that hangs or waits for a reset among them.
func TestPartitionsOpenTheirGPUOnly(t *testing.T) {
	f, s, at := newPartitionFake(t)
	f.locked(func() { f.searched = nil })
	var opened []int
	f.opened = func(i int) { opened = append(opened, i) }
	require.NoError(t, s.DestroyPartition(t.Context(), at))
	_, err := s.Instances(t.Context(), at.GPU)
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, opened)
	require.Empty(t, f.searched, "by UUID")

	f.lose(f.gpus[0].device.UUID, "gone") // the indexes shift before the GPUs are read again
	require.NoError(t, s.DestroyPartition(t.Context(), at))
	require.Contains(t, opened, 0)
	f.lose(f.gpus[2].device.UUID, "handle") // and has the index now that this one had
	require.NoError(t, s.DestroyPartition(t.Context(), at))
}

func TestAPartitionOnAGPUThatCannotBeReached(t *testing.T) {
	for name, lose := range map[string]func(*fake, *Source, gpu.UUID){
		"it is lost":         func(f *fake, _ *Source, id gpu.UUID) { f.lose(id, "handle") },
		"its calls fail":     func(f *fake, _ *Source, id gpu.UUID) { f.lose(id, "calls") },
		"it is a riddle":     func(f *fake, _ *Source, id gpu.UUID) { f.lose(id, "unknown") },
		"it has left":        func(f *fake, _ *Source, id gpu.UUID) { f.lose(id, "gone") },
		"it needs a reset":   func(f *fake, _ *Source, id gpu.UUID) { f.find(id).profile = nvml.ERROR_RESET_REQUIRED },
		"it is released":     func(_ *fake, s *Source, id gpu.UUID) { s.memory.out[id] = gpu.Fault{Reason: gpu.ReasonXID} },
		"it was never there": func(_ *fake, s *Source, _ gpu.UUID) { s.memory.order = []gpu.UUID{"GPU-other"} },
	} {
		t.Run(name, func(t *testing.T) {
			f, s, at := newPartitionFake(t)
			lose(f, s, at.GPU)
			opened := false
			f.opened = func(int) { opened = true }
			require.ErrorIs(t, s.DestroyPartition(t.Context(), at), gpu.ErrUnreachable)
			_, err := s.CreatePartition(t.Context(), at)
			require.ErrorIs(t, err, gpu.ErrUnreachable)
			require.Equal(t, name != "it is released" && name != "it was never there", opened)
			neighbour := gpu.Placement{GPU: f.gpus[0].device.UUID, Profile: 19, Size: 1}
			if name != "it was never there" {
				require.NoError(t, s.DestroyPartition(t.Context(), neighbour))
			}
		})
	}
}

// fakeInstance is a GPU instance in which no compute instance can be created.
type fakeInstance struct {
	nvml.GpuInstance
	gpu *fakeGPU
	ret nvml.Return
}

func (g *fakeGPU) CreateGpuInstanceWithPlacement(*nvml.GpuInstanceProfileInfo, *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	return fakeInstance{gpu: g, ret: g.compute}, nvml.SUCCESS
}

func (i fakeInstance) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	return nvml.GpuInstanceInfo{Id: 7}, nvml.SUCCESS
}

func (i fakeInstance) GetComputeInstanceProfileInfo(int, int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return nvml.ComputeInstanceProfileInfo{}, nvml.SUCCESS
}

func (i fakeInstance) CreateComputeInstance(*nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	return nil, i.ret
}

func (i fakeInstance) GetComputeInstances(*nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	return nil, nvml.SUCCESS
}

func (i fakeInstance) Destroy() nvml.Return {
	i.gpu.destroyed++
	return nvml.SUCCESS
}

// The place was free, and the GPU instance was there for a moment: its creator has to know that.
func TestAComputeInstanceWithoutRoomDoesNotMeanThatThePlaceIsTaken(t *testing.T) {
	f, s, at := newPartitionFake(t)
	for _, ret := range []nvml.Return{nvml.ERROR_INSUFFICIENT_RESOURCES, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED} {
		f.find(at.GPU).compute = ret
		_, err := s.CreatePartition(t.Context(), at)
		require.ErrorContains(t, err, "nvmlGpuInstanceCreateComputeInstance: ")
		for _, other := range []error{gpu.ErrNoRoom, gpu.ErrNoMIGMode, gpu.ErrLeftover} {
			require.NotErrorIs(t, err, other)
		}
	}
	require.Equal(t, 3, f.find(at.GPU).destroyed)
}

func TestAPartitionOnAGPUThatHangsCanEnd(t *testing.T) {
	f, s, at := newPartitionFake(t)
	s.limit = 20 * time.Millisecond
	hang := make(chan struct{})
	defer close(hang)
	f.locked(func() { f.find(at.GPU).hang = hang })
	for range 2 {
		require.ErrorIs(t, s.DestroyPartition(t.Context(), at), gpu.ErrUnreachable)
	}
	s.limit = time.Minute
	require.NoError(t, s.DestroyPartition(t.Context(), gpu.Placement{GPU: f.gpus[0].device.UUID, Profile: 19, Size: 1}))
}

// The GPU and the partitions of others on it are well.
func TestPartitionsThatCannotBeReadAreThoseOfBefore(t *testing.T) {
	f, s, at := newPartitionFake(t)
	before, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, before.Devices[1].Profiles, 1)
	for _, ret := range []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_IN_USE, nvml.ERROR_NO_PERMISSION, nvml.ERROR_TIMEOUT, nvml.ERROR_FUNCTION_NOT_FOUND} {
		f.locked(func() { f.find(at.GPU).instances = ret })
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, before.Devices[1], snap.Devices[1], ret)
	}
	f.locked(func() { f.find(at.GPU).instances = nvml.ERROR_GPU_IS_LOST })
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, gpu.ReasonLost, snap.Devices[1].Fault.Reason)
}

// A new process, or one that has seen the GPU without MIG mode only, cannot tell whose the MIG devices are.
func TestPartitionsThatWereNeverReadMakeTheGPUUnreadable(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_IN_USE, nvml.ERROR_NO_PERMISSION, nvml.ERROR_TIMEOUT} {
		for name, before := range map[string]func(*fake, *Source, gpu.UUID){
			"not read": func(_ *fake, s *Source, _ gpu.UUID) { clear(s.memory.devices) },
			"MIG mode was off": func(f *fake, s *Source, id gpu.UUID) {
				f.locked(func() { f.find(id).device.MIGEnabled = false })
				_, err := s.Snapshot(t.Context())
				require.NoError(t, err)
				f.locked(func() { f.find(id).device.MIGEnabled = true })
			},
		} {
			f, s, at := newPartitionFake(t)
			before(f, s, at.GPU)
			f.locked(func() { f.find(at.GPU).instances = ret })
			snap, err := s.Snapshot(t.Context())
			require.NoError(t, err)
			require.Equal(t, gpu.ReasonUnreadable, snap.Devices[1].Fault.Reason, "%s: %v", name, ret)
			require.Empty(t, snap.Devices[0].Fault)

			f.locked(func() { f.find(at.GPU).instances = nvml.SUCCESS })
			snap, err = s.Snapshot(t.Context())
			require.NoError(t, err)
			require.Empty(t, snap.Devices[1].Fault)
			require.NotEmpty(t, snap.Devices[1].Profiles)
		}
	}
}

func TestAProfileWithoutANameHasItsNumber(t *testing.T) {
	_, s, _ := newPartitionFake(t)
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, snap.Devices[0].Profiles)
	require.Equal(t, "profile-47", s.profileName(&fakeGPU{lib: &fake{}}, nvml.GPU_INSTANCE_PROFILE_COUNT+40, nvml.GpuInstanceProfileInfo{Id: 47, MemorySizeMB: 10240}, 80<<30))
}

func TestTheAddressingModeIsNVMLs(t *testing.T) {
	node := gputest.Node("h100-sxm", 4)
	for i, mode := range []string{"HMM", "ATS", "None", ""} {
		node.Devices[i].AddressingMode = mode
	}
	_, s := newFake(t, node, Options{})
	snap, err := s.Snapshot(t.Context())
	require.NoError(t, err)
	for i, d := range snap.Devices {
		require.Equal(t, node.Devices[i].AddressingMode, d.AddressingMode)
	}
	_, s = newFake(t, node, Options{})
	s.has["nvmlDeviceGetAddressingMode"] = false
	snap, err = s.Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, snap.Devices[0].AddressingMode, "an old library")
}
