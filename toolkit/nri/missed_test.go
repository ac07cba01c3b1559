package nri

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// reports are the reports of a plugin besides its status.
type reports struct {
	reported chan Status
	resolved chan Resolved
	missed   chan []Missed
}

// runPlugin runs a plugin that allows workloads of the namespace team.
func runPlugin(t *testing.T, root *host.Root, offer *atomic.Pointer[Offer], table *Table) reports {
	t.Helper()
	n := reports{make(chan Status, 100), make(chan Resolved, 100), make(chan []Missed, 100)}
	p := &Plugin{
		Root: root, Socket: DefaultSocket, Namespace: "gpuready", Offer: offer.Load,
		Workloads: Workloads{Namespaces: []string{"team"}},
		Table:     func() *Table { return table },
		Report:    func(s Status) { n.reported <- s },
		Injected:  func(Injected) {},
		Resolved:  func(r Resolved) { n.resolved <- r },
		Missed:    func(all []Missed) { n.missed <- all },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
	return n
}

// names returns the names in the next report.
func (n reports) names() []string {
	list := []string{}
	for _, m := range <-n.missed {
		list = append(list, m.String())
	}
	return list
}

// existing returns an agent and workloads that were created without a plugin: with a
// request, with GPUs, without a request, ended, and in another namespace.
func existing() *api.SynchronizeRequest {
	pod, container := agent()
	container.PodSandboxId, container.State = pod.GetId(), api.ContainerState_CONTAINER_RUNNING
	team, job := workload("NVIDIA_VISIBLE_DEVICES=1")
	with := func(id string, change func(*api.Container)) *api.Container {
		_, c := workload("NVIDIA_VISIBLE_DEVICES=1")
		c.Id, c.Name = id, id
		change(c)
		return c
	}
	return &api.SynchronizeRequest{
		Pods: []*api.PodSandbox{pod, team, {Id: "e", Name: "job", Namespace: "elsewhere"}},
		Containers: []*api.Container{
			container, job,
			with("broken", func(c *api.Container) { c.Env = append(c.Env, "NVIDIA_DRIVER_CAPABILITIES=gfx") }),
			with("equipped", func(c *api.Container) { addNodes(c, 1) }),
			with("named", func(c *api.Container) { c.CDIDevices = []*api.CDIDevice{{Name: "nvidia.com/gpu=1"}} }),
			with("modest", func(c *api.Container) { c.Env = nil }),
			with("image", func(c *api.Container) { c.Env[0] = "NVIDIA_VISIBLE_DEVICES=all" }),
			with("other", func(c *api.Container) { c.Env[0] = "NVIDIA_VISIBLE_DEVICES=x.y/z=1" }),
			with("ended", func(c *api.Container) { c.State = api.ContainerState_CONTAINER_STOPPED }),
			with("far", func(c *api.Container) { c.PodSandboxId = "e" }),
			with("lost", func(c *api.Container) { c.PodSandboxId = "nowhere" }),
		},
	}
}

func TestMissedContainersAreReportedUntilTheyEnd(t *testing.T) {
	root := newHost(t)
	offer := &atomic.Pointer[Offer]{}
	n := runPlugin(t, root, offer, newTable(t, root))
	runtime, err := runtimetest.StartNRI("containerd", "v2.2.1", root.Path("/run/nri/nri.sock"), existing())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, runtime.Kill()) })
	require.Equal(t, []string{"gpuready/plugin-x/plugin", "team/job/broken", "team/job/main"}, n.names())
	until(n.reported, connected)

	pod, job := workload()
	require.NoError(t, runtime.Stop(pod, job))
	require.Equal(t, []string{"gpuready/plugin-x/plugin", "team/job/broken"}, n.names())
	job.Id = "broken"
	require.NoError(t, runtime.Remove(pod, job))
	require.Equal(t, []string{"gpuready/plugin-x/plugin"}, n.names())
	require.NoError(t, runtime.Remove(pod, job), "again")

	agentPod, container := agent()
	container.Id = "second"
	_, err = runtime.Create(agentPod, container)
	require.NoError(t, err)
	require.Equal(t, []string{"gpuready/plugin-x/plugin"}, n.names(), "in the place of the first: there is nothing to give yet")
	parsed := &Offer{Generation: "g"}
	offer.Store(parsed)
	container.Id = "third"
	_, err = runtime.Create(agentPod, container)
	require.NoError(t, err)
	require.Empty(t, n.names())

	require.NoError(t, runtime.Kill())
	until(n.reported, func(s Status) bool { return !s.Connected })
	runtime, err = runtimetest.StartNRI("containerd", "v2.2.1", root.Path("/run/nri/nri.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, runtime.Kill()) })
	require.Empty(t, n.names(), "reported anew after each connection")
}

func TestWorkloadsReceiveGPUsThroughTheRuntime(t *testing.T) {
	root := newHost(t)
	table := newTable(t, root)
	runtime := start(t, root, "v2.2.1")
	n := runPlugin(t, root, &atomic.Pointer[Offer]{}, table)
	until(n.reported, connected)
	second := runPlugin(t, root, &atomic.Pointer[Offer]{}, table) // while one toolkit replaces another
	until(second.reported, connected)

	adjust, err := runtime.Create(workload("NVIDIA_VISIBLE_DEVICES=1"))
	require.NoError(t, err)
	require.Equal(t, "ctl 1", devices(adjust))
	require.Len(t, adjust.GetMounts(), 1)
	require.Len(t, adjust.GetHooks().GetCreateContainer(), 1)
	require.Empty(t, adjust.GetCDIDevices())
	// The runtime chooses which of the two it calls first.
	one, other := <-n.resolved, <-second.resolved
	require.NotEqual(t, one.Given, other.Given)
	one.Given = true
	require.Equal(t, Resolved{Namespace: "team", Pod: "job", Container: "main", Devices: []string{"1"}, Given: true}, one)

	_, err = runtime.Create(workload("NVIDIA_VISIBLE_DEVICES=9"))
	require.ErrorContains(t, err, `there is no GPU "9" on this node; there are 0, 1, 2, all`)
	adjust, err = runtime.Create(workload("NVIDIA_VISIBLE_DEVICES=0"))
	require.NoError(t, err, "an error of one container's ends nothing else")
	require.Equal(t, "ctl 0", devices(adjust))
	pod, container := workload("NVIDIA_VISIBLE_DEVICES=9")
	pod.Namespace = "default"
	adjust, err = runtime.Create(pod, container)
	require.NoError(t, err)
	require.Empty(t, devices(adjust))
}

func TestContainerListInPartsIsOneList(t *testing.T) {
	p := &Plugin{Namespace: "gpuready", Workloads: Workloads{Namespaces: []string{"team"}}}
	s := missedSet{changed: make(chan struct{}, 1)}
	all := existing()
	s.synchronize(&api.SynchronizeRequest{Containers: all.GetContainers(), More: true}, p.lacks)
	require.Empty(t, s.changed)
	s.synchronize(&api.SynchronizeRequest{Pods: all.GetPods()}, p.lacks)
	require.Len(t, s.list(), 3)
	require.Len(t, s.changed, 1)
	require.True(t, s.list()[0].Agent)
}
