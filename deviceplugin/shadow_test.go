package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/compare"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/test/lab/built"
)

// withPods is withKubelet with the PodResources API in /pods.
func (m *machine) withPods() *machine {
	m.Helper()
	k, err := kubelettest.Start(kubelettest.Config{Dir: m.path("/dp"), PodResourcesDir: m.path("/pods"), KeepReplaced: true})
	require.NoError(m, err)
	m.kubelet = k
	m.Cleanup(k.Stop)
	return m
}

// gpus returns the GPUs as another plugin would list them.
func (m *machine) gpus() []*v1beta1.Device {
	m.Helper()
	out, err := exec.CommandContext(soon(m), built.Path(m, "gpu-device-plugin"), append([]string{"devices"}, m.args("-o", "json")...)...).Output()
	require.NoError(m, err)
	var all deviceList
	require.NoError(m, json.Unmarshal(out, &all))
	var devices []*v1beta1.Device
	for _, d := range all.Devices {
		devices = append(devices, &v1beta1.Device{ID: d.ID, Health: v1beta1.Healthy, Topology: &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(d.NUMANode)}}}})
	}
	return devices
}

func (m *machine) shadowArgs(more ...string) []string {
	return append([]string{"shadow"}, m.args(append([]string{"--pod-resources-socket", "/pods/kubelet.sock"}, more...)...)...)
}

// compared returns the report and exit code of shadow --once.
func (m *machine) compared(args ...string) (report compare.Report, code int) {
	m.Helper()
	cmd := exec.CommandContext(soon(m), built.Path(m, "gpu-device-plugin"), m.shadowArgs(append(args, "--once", "-o", "json")...)...)
	cmd.Env = built.Environ()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // only the exit code matters
	code = cmd.ProcessState.ExitCode()
	if code != program.Failed {
		require.NoError(m, json.Unmarshal(stdout.Bytes(), &report), stderr.String())
	}
	return report, code
}

// withRival starts another plugin on the machine.
func (m *machine) withRival() (*rival, kubelettest.Resource) {
	m.Helper()
	r := newRival(m, m.gpus())
	return r, m.wait(8)
}

func TestShadowOnceReportsDifferences(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withPods()
	_, before := m.withRival()
	report, code := m.compared()
	require.Zero(t, code, "%+v", report.Differences)
	require.Equal(t, []compare.Resource{{Name: resource, Ours: 8, Healthy: 8, Theirs: 8}}, report.Resources)

	_, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	m.sim("lose", "--gpu", "5", "--how", "calls")
	report, code = m.compared("--mig-strategy", "mixed")
	require.Equal(t, 3, code)
	require.Len(t, report.Differences, 1, "%+v", report.Differences)
	require.Equal(t, compare.KindHealth, report.Differences[0].Kind)
	require.EqualValues(t, before.Devices[5].GetID(), report.Differences[0].Device)
	require.Equal(t, 2, report.Resources[0].Given)

	m.kubelet.Stop()
	_, code = m.compared()
	require.Equal(t, program.Failed, code)
	require.NoDirExists(t, m.path("/state"))
}

func TestShadowHasNoSideEffects(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withPods()
	r, before := m.withRival()
	m.process = built.Start(t, "gpu-device-plugin", m.shadowArgs("--shadow-interval", "50ms"))
	m.waitForOutput("differences=0 summary=none")

	m.sim("xid", "--gpu", "3", "--xid", "79")
	m.waitForOutput("msg=differs component=deviceplugin") // the order of slog's attributes
	m.waitForOutput("kind=health resource=nvidia.com/gpu gpu=" + before.Devices[3].GetID() + " ours=Unhealthy theirs=Healthy reason=XID")
	r.markUnhealthy(before.Devices[3].GetID())
	m.waitForOutput(`msg="no longer differs"`)
	r.markUnhealthy(before.Devices[6].GetID())
	m.waitForOutput("gpu=" + before.Devices[6].GetID() + " ours=Healthy theirs=Unhealthy")

	after := m.wait(6)
	require.Equal(t, 1, after.Registered, "nobody else has registered")
	r.mu.Lock()
	require.Equal(t, 1, r.streams, "nobody but the kubelet is told of a device's health")
	r.mu.Unlock()
	require.NoError(t, m.process.Signal(syscall.SIGTERM))
	require.Zero(t, m.exit())
	require.NoDirExists(t, m.path("/state"))
	require.Equal(t, 1, strings.Count(m.process.Output(), "msg=differs component=deviceplugin kind=health resource=nvidia.com/gpu gpu="+before.Devices[3].GetID()))
}

func TestShadowWaitsForDriverAndKubelet(t *testing.T) {
	t.Parallel()
	built.SkipWithDriver(t)
	m := newMachine(t)
	m.process = built.Start(t, "gpu-device-plugin", m.shadowArgs("--shadow-interval", "50ms"))
	m.waitForOutput("reason=NoGPU")
	m.up()
	m.waitForOutput("the kubelet cannot be queried")
	m.withPods()
	m.waitForOutput("the kubelet responds again")
	m.waitForOutput(`ours="8 devices" theirs=none`) // nobody serves the node
	newRival(m, m.gpus())
	m.waitForOutput(`msg="no longer differs"`)
}

func TestShadowReportsDistantGPUs(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withPods()
	r, before := m.withRival()
	m.process = built.Start(t, "gpu-device-plugin", m.shadowArgs("--shadow-interval", "50ms"))
	m.waitForOutput("summary=none")
	r.mu.Lock()
	r.chooses = []string{before.Devices[0].GetID(), before.Devices[7].GetID()} // of two NUMA nodes
	r.mu.Unlock()
	_, err := m.kubelet.Admit(soon(t), pod("far", 2))
	require.NoError(t, err)
	m.waitForOutput("kind=placement resource=nvidia.com/gpu pod=default/far/main")
	require.Contains(t, m.process.Output(), `GPUs 0, 7"`)
	require.Contains(t, m.process.Output(), `GPUs 0, 1"`)
	m.kubelet.Remove("default", "far")
	m.waitForOutput(`msg="no longer differs" component=deviceplugin kind=placement`)
}

// The migration and the way back keep the names of the resource and the devices, so the
// kubelet keeps its allocations without another request.
func TestPodsKeepTheirGPUsOverTheSwitchAndBack(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withPods()
	r, before := m.withRival()
	devices := slices.Clone(r.devices)
	first, err := m.kubelet.Admit(soon(t), pod("first", 3))
	require.NoError(t, err)
	keeps := func(name string, a kubelettest.Admission) {
		t.Helper()
		again, err := m.kubelet.Admit(soon(t), pod(name, len(a.DeviceIDs[resource])))
		require.NoError(t, err)
		require.Equal(t, a, again)
	}
	gone := func() {
		t.Helper()
		_, err := m.kubelet.Wait(soon(t), resource, func(r kubelettest.Resource) bool { return r.Gone && r.Capacity == 8 })
		require.NoError(t, err)
	}

	r.stop()
	gone()
	m.start()
	after := m.wait(8)
	require.Equal(t, ids(before), ids(after))
	require.Equal(t, before.Endpoint, after.Endpoint)
	keeps("first", first)
	second, err := m.kubelet.Admit(soon(t), pod("second", 2))
	require.NoError(t, err)
	require.NotEmpty(t, second.CDIDevices)
	for _, id := range second.DeviceIDs[resource] {
		require.NotContains(t, first.DeviceIDs[resource], id)
	}
	require.NoError(t, m.kubelet.Restart(), "and over a kubelet that restarts meanwhile")
	m.wait(8)
	keeps("first", first)

	m.stop()
	gone()
	newRival(m, devices)
	require.Equal(t, ids(before), ids(m.wait(8)))
	keeps("first", first)
	keeps("second", second)
	_, err = m.kubelet.Admit(soon(t), pod("third", 4))
	require.ErrorContains(t, err, "Requested: 4, Available: 3")
}
