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
