package daemon

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/nri"
	"github.com/gpuready/gpuready/toolkit/runtime/runtimetest"
)

// requesting returns a container of an allowed namespace that requests GPUs.
func requesting(number int, visible string) (*api.PodSandbox, *api.Container) {
	name := fmt.Sprintf("job%02d", number)
	return &api.PodSandbox{Id: "p" + name, Name: name, Namespace: "team"},
		&api.Container{Id: "c" + name, PodSandboxId: "p" + name, Name: "main", State: api.ContainerState_CONTAINER_RUNNING, Env: []string{"NVIDIA_VISIBLE_DEVICES=" + visible}}
}

func TestWorkloadsReceiveSpecifiedDevices(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 2))
	m.conf.WorkloadNamespaces = []string{"team"}
	m.cri(containerd2)
	runtime := m.nri()
	_, log := m.run()
	m.await("working without a driver", func(s nodestate.State) bool { return working(s) && hasRuntime(s) })
	_, err := runtime.Create(requesting(0, "1"))
	require.ErrorContains(t, err, "NoDriver")

	m.install("", 2)
	m.await("GPUs", phase(nodestate.Ready))
	adjust, err := runtime.Create(requesting(0, "1"))
	require.NoError(t, err)
	var nodes []string
	for _, d := range adjust.GetLinux().GetDevices() {
		nodes = append(nodes, d.GetPath())
	}
	require.Contains(t, nodes, "/dev/nvidia1")
	require.NotContains(t, nodes, "/dev/nvidia0")
	require.NotEmpty(t, adjust.GetMounts())
	require.Empty(t, adjust.GetCDIDevices())
	_, err = runtime.Create(requesting(0, "2"))
	require.ErrorContains(t, err, `there is no GPU "2" on this node; there are 0, 1,`)

	m.source.Update(func(s *gpu.Snapshot) { s.Devices = s.Devices[:1] })
	m.await("one GPU is lost", func(s nodestate.State) bool { return len(devices(s, "k8s.gpuready.io/gpu")) == 1 })
	_, err = runtime.Create(requesting(0, "1"))
	require.ErrorContains(t, err, `there is no GPU "1" on this node`)
	require.Contains(t, log.String(), "workloads that request GPUs are given the GPUs")
}

func TestMissedContainersAreInTheState(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	m.conf.WorkloadNamespaces = []string{"team"}
	m.cri(containerd2)
	m.install("", 1)
	there := &api.SynchronizeRequest{}
	for i := range nodestate.MaxMissed + 2 {
		pod, container := requesting(i, "0")
		there.Pods, there.Containers = append(there.Pods, pod), append(there.Containers, container)
	}
	runtime, err := runtimetest.StartNRI("containerd", "v2.2.1", m.dir+"/run/nri/nri.sock", there)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, runtime.Kill()) })
	_, log := m.run()
	s := m.await("they are reported", func(s nodestate.State) bool { return injected(s).MissedCount > 0 && hasRuntime(s) })
	require.Equal(t, nodestate.MaxMissed+2, injected(s).MissedCount)
	require.Len(t, injected(s).Missed, nodestate.MaxMissed)
	require.Equal(t, "team/job00/main", injected(s).Missed[0])
	for i := range nodestate.MaxMissed + 1 {
		require.NoError(t, runtime.Stop(requesting(i, "0")))
	}
	s = m.await("one is left", func(s nodestate.State) bool { return injected(s).MissedCount == 1 })
	require.Equal(t, []string{"team/job17/main"}, injected(s).Missed)
	require.NoError(t, runtime.Remove(requesting(17, "0")))
	s = m.await("none is left", func(s nodestate.State) bool { return injected(s).MissedCount == 0 })
	require.Empty(t, injected(s).Missed)
	require.Equal(t, 1, strings.Count(log.String(), "container=team/job00/main"), "one line each")
	require.Contains(t, log.String(), "delete its pod")
}

func TestAgentsAreNotMissedWithoutAnOffer(t *testing.T) {
	all := []nri.Missed{{Namespace: "a", Pod: "b", Container: "c", Agent: true}, {Namespace: "d", Pod: "e", Container: "f"}}
	names, count := missed(all, false)
	require.Equal(t, []string{"d/e/f"}, names)
	require.Equal(t, 1, count)
	names, count = missed(all, true)
	require.Equal(t, []string{"a/b/c", "d/e/f"}, names)
	require.Equal(t, 2, count)
}

func TestWorkloadsInTheMetrics(t *testing.T) {
	m := newMachine(t, gputest.Node("t4", 1))
	registry := prometheus.NewRegistry()
	log := &syncWriter{}
	d := New(m.toolkit(), slog.New(slog.NewTextHandler(log, nil)), NewMetrics(registry))
	d.logResolved(nri.Resolved{Pod: "a", Given: true})
	d.logResolved(nri.Resolved{Pod: "b", Err: fmt.Errorf("why not")})
	d.logResolved(nri.Resolved{Pod: "c", Warnings: []string{"not all"}})
	d.logMissed(&nodestate.Injection{Missed: []string{"x"}, MissedCount: 3})
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	for _, line := range []string{
		`gpuready_toolkit_workload_injections_total{outcome="given"} 1`,
		`gpuready_toolkit_workload_injections_total{outcome="refused"} 1`,
		`gpuready_toolkit_workload_injections_total{outcome="unchanged"} 1`,
		"gpuready_toolkit_injections_missed 3",
	} {
		require.Contains(t, answer.Body.String(), line)
	}
	require.Contains(t, log.String(), "why not")
	require.Contains(t, log.String(), "not all")
}
