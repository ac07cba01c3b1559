package mps

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func specs(t require.TestingT, text string, snapshots ...gpu.Snapshot) []Spec {
	c, _, err := config.Parse([]byte(text), "config.yaml", config.Options{})
	require.NoError(t, err)
	h := health.New(gpu.Fault{})
	for _, s := range snapshots {
		h = h.ApplySnapshot(s, time.Unix(0, 0))
	}
	return Specs(c, plan.Compute(c, snapshots[len(snapshots)-1], h), h)
}

func TestReplicasShareMemoryAndThreadsEqually(t *testing.T) {
	node := gputest.Node("t4", 3)
	for i := range node.Devices {
		node.Devices[i].MemoryBytes = 16 << 30
	}
	got := specs(t, `
sharing:
  mps:
    resources:
    - {name: gpu, rename: gpu.small, replicas: 3, devices: [0, 1]}
    - {name: gpu, rename: gpu.large, replicas: 2, devices: [2]}
`, node)
	require.Equal(t, []Spec{
		{Resource: "nvidia.com/gpu.large", Percent: 50, GPUs: []GPU{{gputest.GPU(2), 2, 2, "8192M"}}},
		{Resource: "nvidia.com/gpu.small", Percent: 33, GPUs: []GPU{{gputest.GPU(0), 0, 3, "5461M"}, {gputest.GPU(1), 1, 3, "5461M"}}},
	}, got)
}

func TestGPUWithMostReplicasLimitsTheThreads(t *testing.T) {
	got := specs(t, `
sharing:
  mps:
    resources:
    - {name: gpu, rename: gpu.part, replicas: 2, devices: [0]}
    - {name: gpu, rename: gpu.part, replicas: 10, devices: [1]}
`, gputest.Node("t4", 2))
	require.Len(t, got, 1)
	require.Equal(t, 10, got[0].Percent, "ten clients of one GPU have no more than 100 %%")
	require.Equal(t, []int{2, 10}, []int{got[0].GPUs[0].Replicas, got[0].GPUs[1].Replicas})
}

func TestUnsharedDevicesHaveNoDaemon(t *testing.T) {
	node := gputest.Node("t4", 2)
	require.Empty(t, specs(t, "version: v1", node))
	require.Empty(t, specs(t, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", node))
	got := specs(t, "sharing: {mps: {resources: [{name: gpu, replicas: 4, devices: [1]}]}}", node)
	require.Len(t, got, 1)
	require.Len(t, got[0].GPUs, 1, "the other is whole, in the same resource")
	require.Equal(t, gputest.GPU(1), got[0].GPUs[0].UUID)
	divided := gputest.Node("a100-80gb", 1)
	divided.Devices[0] = gputest.WithMIG(divided.Devices[0], "3g.40gb")
	require.Empty(t, specs(t, "flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", divided))
}

func TestLostGPUDoesNotRestartItsDaemon(t *testing.T) {
	const text = "sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}"
	before := gputest.Node("t4", 3)
	after := before.Clone()
	after.Devices = after.Devices[1:]
	for i := range after.Devices {
		after.Devices[i].Index = i
	}
	was, now := specs(t, text, before), specs(t, text, before, after)
	require.True(t, was[0].compatible(now[0]), "%+v\n%+v", was, now)
	other := specs(t, "sharing: {mps: {resources: [{name: gpu, replicas: 5}]}}", before)
	require.False(t, was[0].compatible(other[0]))

	// If the driver does not report the memory, only the number of clients counts, which may
	// have the same part of the threads.
	mute := before.Clone()
	for i := range mute.Devices {
		mute.Devices[i].MemoryBytes = 0
	}
	few := specs(t, "sharing: {mps: {resources: [{name: gpu, replicas: 34}]}}", mute)
	many := specs(t, "sharing: {mps: {resources: [{name: gpu, replicas: 48}]}}", mute)
	require.Equal(t, few[0].Percent, many[0].Percent)
	require.False(t, few[0].compatible(many[0]), "the state would tell of 34 for ever")
}

func TestLimitsNeverExceedTheGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 48).Draw(t, "replicas")
		node := gputest.Node("h100-sxm", rapid.IntRange(1, 8).Draw(t, "gpus"))
		c := &config.Config{Sharing: config.Sharing{MPS: &config.Replicated{Resources: []config.ReplicatedResource{
			{Name: config.GPU, Replicas: n, Devices: config.Replicable{All: true}},
		}}}}
		h := health.New(gpu.Fault{}).ApplySnapshot(node, time.Unix(0, 0))
		for _, s := range Specs(c, plan.Compute(c, node, h), h) {
			require.LessOrEqual(t, s.Percent*n, 100)
			require.Positive(t, s.Percent)
			require.Len(t, s.GPUs, len(node.Devices))
		}
	})
}

// Claims have the same pipes and shared memory as the device plugin gives.
func TestClientsOfAClaimFindTheirControlDaemon(t *testing.T) {
	data, err := buildInjection("/run/nvidia/mps", []Spec{{Resource: "nvidia.com/gpu.shared", GPUs: []GPU{{UUID: "GPU-b"}, {UUID: "GPU-a"}}}})
	require.NoError(t, err)
	golden.Require(t, "testdata/injection.yaml", data)
}
