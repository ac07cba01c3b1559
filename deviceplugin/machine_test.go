package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

const (
	resource = "nvidia.com/gpu"
	profile  = "h100-sxm" // eight GPUs on two NUMA nodes
)

// machine is a host in a folder: a simulated driver in /driver, a kubelet in
// /dp, states in /state. The built plugin runs on it.
type machine struct {
	testing.TB
	host    string
	kubelet *kubelettest.Kubelet
	process *built.Process
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	host, err := os.MkdirTemp("", "m") // t.TempDir() is too long for a unix socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(host)) })
	return &machine{TB: t, host: host}
}

func (m *machine) path(host string) string { return filepath.Join(m.host, host) }

// up makes the driver appear, or changes it.
func (m *machine) up(args ...string) *machine {
	m.Helper()
	fresh := true
	if _, err := os.Stat(m.path("/driver")); err == nil {
		fresh = false
	}
	built.Gpusim(m, append([]string{"up", "--root", m.path("/driver"), "--profile", profile}, args...)...)
	if fresh {
		m.Cleanup(func() { built.Gpusim(m, "down", "--root", m.path("/driver")) })
	}
	return m
}

// sim breaks or repairs something.
func (m *machine) sim(command string, args ...string) {
	m.Helper()
	built.Gpusim(m, append([]string{command, "--root", m.path("/driver")}, args...)...)
}

// withKubelet starts the strictest kind of kubelet.
func (m *machine) withKubelet() *machine {
	m.Helper()
	k, err := kubelettest.Start(kubelettest.Config{Dir: m.path("/dp"), PodResourcesDir: m.path("/pr"), KeepReplaced: true})
	require.NoError(m, err)
	m.kubelet = k
	m.Cleanup(k.Stop)
	return m
}

func (m *machine) args(more ...string) []string {
	return append([]string{
		"--host-root", m.host, "--driver-root", "/driver", "--kubelet-socket", "/dp/kubelet.sock", "--pod-resources-socket", "/pr/kubelet.sock", "--state-dir", "/state", "--listen=",
	}, more...)
}

func (m *machine) start(args ...string) *machine {
	m.Helper()
	m.process = built.Start(m, "gpu-device-plugin", m.args(args...))
	return m
}

// stop ends the plugin as a node agent is ended.
func (m *machine) stop() {
	m.Helper()
	require.NoError(m, m.process.Signal(os.Interrupt))
	require.Zero(m, m.exit())
	_, err := m.kubelet.Wait(soon(m), resource, func(r kubelettest.Resource) bool { return r.Gone })
	require.NoError(m, err)
}

func (m *machine) exit() int {
	m.Helper()
	code, err := m.process.Wait(soon(m))
	require.NoError(m, err)
	return code
}

// waitForOutput waits until the plugin has printed text.
func (m *machine) waitForOutput(text string) {
	m.Helper()
	require.NoError(m, m.process.WaitOutput(soon(m), text))
}

// wait waits until that many devices are allocatable.
func (m *machine) wait(allocatable int) kubelettest.Resource {
	m.Helper()
	r, err := m.kubelet.Wait(soon(m), resource, func(r kubelettest.Resource) bool {
		return r.Allocatable == allocatable && !r.Gone && r.Lists > 0
	})
	require.NoError(m, err)
	return r
}

// state waits until the plugin's state satisfies cond.
func (m *machine) state(cond func(nodestate.State) bool) nodestate.State {
	m.Helper()
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(m, err)
	ctx, cancel := context.WithCancel(soon(m))
	defer cancel()
	var last nodestate.State
	found := false
	_ = nodestate.WatchBoot(ctx, m.path("/state/deviceplugin"), boot, func(s nodestate.State, err error) {
		if err == nil && !found {
			last, found = s, cond(s)
			if found {
				cancel()
			}
		}
	})
	require.True(m, found, "the state came to be %+v", last)
	return last
}

// fault waits until the state has the fault of the GPU with that index, confirmed by a
// snapshot if requested.
func (m *machine) fault(index int, confirmed bool) nodestate.Device {
	m.Helper()
	var d nodestate.Device
	m.state(func(s nodestate.State) bool {
		if p := s.DevicePlugin; p == nil || len(p.Resources) == 0 || len(p.Resources[0].Devices) <= index {
			return false
		}
		d = s.DevicePlugin.Resources[0].Devices[index]
		seen := len(s.DevicePlugin.Faults) == 1 && (s.DevicePlugin.Faults[0].Needs == "snapshot" || s.DevicePlugin.Faults[0].Evidence == "reset")
		return d.Health == nodestate.Unhealthy && (!confirmed || seen)
	})
	return d
}

// boot gives the machine a boot ID of its own.
func (m *machine) boot(n int) {
	m.Helper()
	dir := m.path("/proc/sys/kernel/random")
	require.NoError(m, os.MkdirAll(dir, 0o755))
	require.NoError(m, os.WriteFile(filepath.Join(dir, "boot_id"), fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000\n", n), 0o644))
}

// unhealthy returns the indexes of unhealthy devices.
func unhealthy(r kubelettest.Resource) []int {
	var indexes []int
	for i, d := range r.Devices {
		if d.GetHealth() != v1beta1.Healthy {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

func ids(r kubelettest.Resource) []gpu.UUID {
	var ids []gpu.UUID
	for _, d := range r.Devices {
		ids = append(ids, gpu.UUID(d.GetID()))
	}
	return ids
}

func nodes(r kubelettest.Resource) []int64 {
	var nodes []int64
	for _, d := range r.Devices {
		for _, n := range d.GetTopology().GetNodes() {
			nodes = append(nodes, n.GetID())
		}
	}
	return nodes
}

func pod(name string, gpus int) kubelettest.Pod {
	return kubelettest.Pod{Namespace: "default", Name: name, Container: "main", Requests: map[string]int{resource: gpus}}
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func distinct(names []string) int { return len(slices.Compact(slices.Sorted(slices.Values(names)))) }
