package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// follow has the bench follow a change of who offers the GPUs.
func (b *bench) follow(t *testing.T, serve, switchID string) {
	t.Helper()
	b.serve, b.switchID = serve, switchID
	require.NoError(t, b.Follow(t.Context(), b.Inventory(), func() bool { return true }))
}

func (b *bench) release(t *testing.T) (kept []gpu.UUID, again bool) {
	t.Helper()
	again, err := b.Release(t.Context())
	require.NoError(t, err)
	for _, k := range b.record(t).Kept {
		kept = append(kept, k.UUID)
	}
	return kept, again
}

// A partition that could not be removed would be offered to the kubelet as a MIG device, and be destroyed
// later under the pod that got it.
func TestAGPUWithWhatIsLeftOfAPartitionIsKept(t *testing.T) {
	b, l := newMIGBench(t)
	b.follow(t, nodestate.ServeDRA, "1")
	l.create, l.destroy = gpu.ErrLeftover, errors.New("NVML hangs")
	_, err := b.prepare(allocated("c", fmt.Sprintf(smallName, 0)))
	require.ErrorIs(t, err, gpu.ErrLeftover)
	b.follow(t, nodestate.ServePlugin, "2")
	kept, again := b.release(t)
	require.Equal(t, []gpu.UUID{"GPU-0"}, kept)
	require.True(t, again, "no event will say when it can be removed")
	require.NoError(t, b.View(t.Context(), func(_ *Checkpoint, holder func(KeptDevice) string) error {
		require.Contains(t, holder(KeptDevice{UUID: "GPU-0"}), "what is left of a partition for claim uid-c")
		return nil
	}))
	l.destroy = nil
	kept, again = b.release(t)
	require.Empty(t, kept)
	require.False(t, again)
	require.Empty(t, l.there)
}

// A claim with a partition is held as its GPU, and its end releases it.
func TestAPartitionKeepsItsGPUUntilItsClaimEnds(t *testing.T) {
	b, l := newMIGBench(t)
	b.follow(t, nodestate.ServeDRA, "1")
	c := allocated("c", fmt.Sprintf(smallName, 0))
	b.requirePrepared(t, c, "MIG-19-0")
	b.follow(t, nodestate.ServePlugin, "2")
	kept, _ := b.release(t)
	require.Equal(t, []gpu.UUID{"GPU-0"}, kept)
	b.requirePrepared(t, c, "MIG-19-0")
	require.NoError(t, b.unprepare(c))
	require.Empty(t, l.there)
	kept, _ = b.release(t)
	require.Empty(t, kept)
	b.requireRefused(t, allocated("late", fmt.Sprintf(smallName, 0)), "is not offered now")
}

// The record was removed while the kubelet does not say who holds what.
func TestWithoutRecordAndKubeletEverythingIsKept(t *testing.T) {
	b := newBench(t)
	b.follow(t, nodestate.ServeDRA, "1")
	b.requirePrepared(t, allocated("c", "gpu-0"), "GPU-0")
	require.NoError(t, os.Remove(b.Store.Path))
	b.kubelet = errors.New("the kubelet is being restarted")
	b.follow(t, nodestate.ServePlugin, "2")
	require.Len(t, b.record(t).Kept, 4)
	b.kubelet, b.allocations = nil, []Allocation{{Pod: "team/a", Claim: types.NamespacedName{Namespace: "team", Name: "c"}, Pool: "node-1", Device: "gpu-0"}}
	kept, again := b.release(t)
	require.Equal(t, []gpu.UUID{"GPU-0"}, kept)
	require.True(t, again)
}

// Without a change in this boot the device plugin waits for nobody, so no claim may be prepared anew.
func TestWhatTheDevicePluginOffersFromTheStartIsNotPrepared(t *testing.T) {
	b := newBench(t)
	b.kubelet = errors.New("the kubelet starts")
	b.follow(t, nodestate.ServePlugin, "")
	b.kubelet = nil
	b.requireRefused(t, allocated("c", "gpu-0"), "is not offered now")
}

// A second pod of a claim gets what the first has, whatever the device plugin's configuration says by now.
func TestAPreparedClaimKeepsItsControlDaemon(t *testing.T) {
	b := newBench(t)
	shared := &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu"}
	b.gpus[0].Sharing = shared
	const parameters = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"%s"}}`
	served, sliced := withConfig(asShare(allocated("served", "gpu-0"), 1), fmt.Sprintf(parameters, "MPS")), withConfig(asShare(allocated("sliced", "gpu-1"), 1), fmt.Sprintf(parameters, "TimeSlicing"))
	b.gpus[1].Sharing = &nodestate.Sharing{Shares: 2}
	prepare := func() (all [][]string) {
		for _, c := range []*resourceapi.ResourceClaim{served, sliced} {
			devices, err := b.prepare(c)
			require.NoError(t, err)
			all = append(all, devices[0].CDIDeviceIDs)
		}
		return all
	}
	before := prepare()
	require.Equal(t, [][]string{{"k8s.gpuready.io/gpu=GPU-0", "k8s.gpuready.io/mps=GPU-0"}, {"k8s.gpuready.io/gpu=GPU-1"}}, before)
	b.gpus[0].Sharing, b.gpus[1].Sharing = nil, shared
	require.Equal(t, before, prepare())
}

// Whoever finds a damaged record first sets it aside; what it had is unknown until that is followed.
func TestADamagedRecordKeepsEverythingWhoeverFindsIt(t *testing.T) {
	b := newBench(t)
	b.follow(t, nodestate.ServeDRA, "1")
	b.requirePrepared(t, allocated("c", "gpu-0"), "GPU-0")
	require.NoError(t, os.WriteFile(b.Store.Path, []byte("{"), 0o600))
	require.NoError(t, b.View(t.Context(), func(*Checkpoint, func(KeptDevice) string) error { return nil }))
	b.follow(t, nodestate.ServePlugin, "2") // the kubelet was restarted and lists no pod yet
	require.Len(t, b.record(t).Kept, 4)
	kept, _ := b.release(t)
	require.Empty(t, kept)
}

// Without a record nothing would be kept. On a full disk the damaged one stays until there is another.
func TestADamagedRecordIsNotRemovedBeforeThereIsAnother(t *testing.T) {
	for name, leave := range map[string]func(path string) error{
		"a file":   func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"a folder": func(path string) error { return os.Mkdir(path, 0o700) },
		"a link":   func(path string) error { return os.Symlink("elsewhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			const room = 255 - len(".bad-20060102T150405.000000000Z") // a name for the new file would be too long
			long := filepath.Join(t.TempDir(), strings.Repeat("x", room))
			require.NoError(t, leave(long))
			b.Store.Path = long
			require.ErrorContains(t, b.View(t.Context(), nil), "file name too long")
			left, err := os.ReadDir(filepath.Dir(long))
			require.NoError(t, err)
			require.Len(t, left, 2, "it, and the lock")

			short := filepath.Join(t.TempDir(), "checkpoint.json") // there is room again
			require.NoError(t, os.Rename(long, short))
			b.Store.Path = short
			b.follow(t, nodestate.ServePlugin, "2")
			require.Len(t, b.record(t).Kept, 4)
			bad, err := filepath.Glob(short + ".bad-*")
			require.NoError(t, err)
			require.Len(t, bad, 1)
		})
	}
}

// Read would take it for no record, and set it aside with all that it has.
func TestARecordThatCouldNotBeReadIsNotWritten(t *testing.T) {
	b := newBench(t)
	b.requirePrepared(t, allocated("c", "gpu-0"), "GPU-0")
	full := b.record(t)
	full.Claims = append(full.Claims, Prepared{UID: "large", Name: strings.Repeat("x", maxCheckpoint)})
	require.ErrorContains(t, b.Store.Save(full), "no more than")
	require.NotNil(t, b.record(t).Find("uid-c"))
	require.False(t, b.record(t).Lost)
}
