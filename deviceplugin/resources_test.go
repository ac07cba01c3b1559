package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

// configured starts the plugin with a configuration file.
func (m *machine) configured(text string, args ...string) *machine {
	m.Helper()
	path := m.path("/config.yaml")
	require.NoError(m, os.WriteFile(path, []byte("version: v1\n"+text), 0o644))
	return m.start(append([]string{"--config-file", path}, args...)...)
}

// mig creates MIG devices on a GPU.
func (m *machine) mig(gpu, layout string) *machine {
	m.Helper()
	m.sim("mig", "--gpu", gpu, "--layout", layout)
	return m
}

// waitForDevices waits until that many devices of a resource are allocatable.
func (m *machine) waitForDevices(name string, allocatable int) kubelettest.Resource {
	m.Helper()
	r, err := m.kubelet.Wait(soon(m), name, func(r kubelettest.Resource) bool {
		return r.Allocatable == allocatable && !r.Gone && r.Lists > 0
	})
	require.NoError(m, err)
	return r
}

// none requires that a resource was never registered with the kubelet.
func (m *machine) none(name string) {
	m.Helper()
	_, there := m.kubelet.Resource(name)
	require.False(m, there, name)
}

func (m *machine) admit(name, of string, n int) (kubelettest.Admission, error) {
	return m.kubelet.Admit(soon(m), kubelettest.Pod{Namespace: "default", Name: name, Container: "main", Requests: map[string]int{of: n}})
}

const (
	small = "nvidia.com/mig-1g.10gb"
	large = "nvidia.com/mig-3g.40gb"
)

func TestMIGDevicesAreResourcesOfTheirOwn(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().mig("0", "1g.10gb,1g.10gb,3g.40gb").withKubelet().start("--mig-strategy", "mixed")
	m.wait(7)
	m.waitForDevices(small, 2)
	r := m.waitForDevices(large, 1)
	require.Equal(t, "nvidia-mig-3g.40gb.sock", r.Endpoint)
	require.Equal(t, []int64{0}, nodes(r), "it is where its GPU is")
	require.True(t, ids(r)[0].IsMIG())
	a, err := m.admit("one", large, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"k8s.gpuready.io/gpu=" + string(ids(r)[0])}, a.CDIDevices)
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Len(t, s.DevicePlugin.Resources, 3)

	m.sim("lose", "--gpu", "0", "--how", "calls") // its MIG devices are unhealthy, too
	m.waitForDevices(small, 0)
	m.waitForDevices(large, 0)
	m.wait(7)
}

func TestStrategySingleAdvertisesMIGDevicesAsGPUs(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").mig("all", "1g.10gb,1g.10gb,1g.10gb").withKubelet().start("--mig-strategy", "single")
	r := m.wait(6)
	for _, id := range ids(r) {
		require.True(t, id.IsMIG(), id)
	}
	m.none(small)
	m.mig("1", "3g.40gb") // they could not be told apart
	s := m.state(func(s nodestate.State) bool { return s.Reason == "MIGProfilesDiffer" })
	require.Contains(t, s.Message, "migStrategy: mixed")
	require.Len(t, s.DevicePlugin.LeftOut, 4)
	m.wait(0)
	m.mig("1", "1g.10gb")
	m.wait(4)
}

func TestChangedMIGLayoutChangesResources(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().start("--mig-strategy", "mixed")
	before := m.wait(2)
	m.mig("0", "3g.40gb,3g.40gb")
	m.waitForDevices(large, 2)
	r := m.wait(1)
	require.Equal(t, ids(before)[1:], ids(r))
	require.Equal(t, 1, r.Registered, "the others are not disturbed")
	require.FileExists(t, m.path("/dp/nvidia-mig-3g.40gb.sock"))

	m.mig("0", "1g.10gb")
	m.waitForDevices(small, 1)
	gone := m.waitForDevices(large, 0)
	require.Empty(t, gone.Devices, "an empty list, not a silence")
	m.mig("0", "3g.40gb")
	require.Equal(t, 1, m.waitForDevices(large, 1).Registered, "the kubelet knew of it all the time")
	m.sim("mig", "--gpu", "0", "--off")
	m.wait(2)
	m.waitForDevices(large, 0)

	// A new kubelet does not get the removed resource, whose socket is then removed.
	require.NoError(t, m.kubelet.Restart())
	m.wait(2)
	m.waitForOutput("resource is gone, and the kubelet has forgotten it")
	require.NoFileExists(t, m.path("/dp/nvidia-mig-3g.40gb.sock"))
	require.FileExists(t, m.path("/dp/nvidia-gpu.sock"))
	m.mig("1", "3g.40gb")
	m.waitForDevices(large, 1)
	m.wait(1)
	require.NotContains(t, m.process.Output(), "another plugin")
}

func TestDriverUpgradeHandsOverEverySocket(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().mig("0", "1g.10gb").withKubelet().configured(`
flags: {migStrategy: mixed}
sharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.dev, replicas: 2, devices: [6, 7]}]}}
`)
	const dev = "nvidia.com/gpu.dev"
	m.wait(5)
	m.waitForDevices(dev, 4)
	m.waitForDevices(small, 1)
	pid := m.process.PID()
	m.up("--driver-version", "590.10.01") // which turns MIG off
	m.state(func(s nodestate.State) bool {
		return s.Driver != nil && s.Driver.Version == "590.10.01" && s.DevicePlugin.Registered
	})
	m.wait(6)
	m.waitForDevices(dev, 4)
	require.Equal(t, pid, m.process.PID())
	require.NotContains(t, m.process.Output(), "another")
	require.NotContains(t, m.process.Output(), "own socket was removed")
	m.waitForOutput("resource is gone, and the kubelet has forgotten it") // it had no device when it was taken over
	require.NoFileExists(t, m.path("/dp/nvidia-mig-1g.10gb.sock"))
	m.mig("1", "1g.10gb")
	m.waitForDevices(small, 1)
}

func TestTimeSlicingAdvertisesEachGPUSeveralTimes(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "4").withKubelet().configured("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}")
	r := m.wait(16)
	require.Equal(t, []int64{0, 0, 0, 0}, nodes(r)[:4], "a part is where its GPU is")
	a, err := m.admit("four", resource, 4)
	require.NoError(t, err)
	require.Equal(t, 4, distinct(a.CDIDevices), "distributed over the GPUs")
	require.True(t, strings.HasSuffix(a.DeviceIDs[resource][0], "::0"), a.DeviceIDs)
	m.sim("xid", "--gpu", "2", "--xid", "48")
	r = m.wait(12)
	require.Equal(t, []int{8, 9, 10, 11}, unhealthy(r), "all parts of a broken GPU are broken")
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Degraded })
	require.Len(t, s.DevicePlugin.Resources[0].Devices, 4)
	require.Equal(t, 4, s.DevicePlugin.Resources[0].Devices[0].Replicas)
	require.Contains(t, s.Message, "4 of 16 devices")
	m.stop()
	m.kubelet.Remove("default", "four")

	m.configured("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}", "--shared-devices-allocation-policy", "packed")
	r = m.wait(6)
	require.Equal(t, []int{4, 5}, unhealthy(r), "it is remembered")
	a, err = m.admit("packed", resource, 2)
	require.NoError(t, err)
	require.Len(t, a.CDIDevices, 1)
}

func TestSharedGPUsCanBeRenamed(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "4").withKubelet().configured(`
sharing:
  timeSlicing:
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.dev, replicas: 3, devices: [2, 3]}
`)
	m.wait(2)
	m.waitForDevices("nvidia.com/gpu.dev", 6)
	_, err := m.admit("greedy", "nvidia.com/gpu.dev", 2)
	require.ErrorContains(t, err, "a container may have one nvidia.com/gpu.dev and requested 2")
	for range 20 { // like a ReplicaSet, which creates another pod for each refused one
		_, err = m.admit("greedy", "nvidia.com/gpu.dev", 2)
		require.ErrorContains(t, err, "a container may have one nvidia.com/gpu.dev and requested 2")
	}
	m.waitForOutput("allocation refused")
	require.Equal(t, 1, strings.Count(m.process.Output(), "allocation refused"))
	a, err := m.admit("modest", "nvidia.com/gpu.dev", 1)
	require.NoError(t, err)
	require.Len(t, a.CDIDevices, 1)
	_, err = m.admit("whole", resource, 2)
	require.NoError(t, err, "whole GPUs are not meant by it")
}

func TestGPUsAreNamedAndLeftOutAsConfigured(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "4").withKubelet().configured(`
resources: {gpus: [{pattern: "*H100*", name: h100}]}
devices: {exclude: ["1"]}
`)
	r := m.waitForDevices("nvidia.com/h100", 3)
	require.Equal(t, "nvidia-h100.sock", r.Endpoint)
	m.none(resource)
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Len(t, s.DevicePlugin.LeftOut, 1)
	require.EqualValues(t, "Excluded", s.DevicePlugin.LeftOut[0].Reason)
	require.NotContains(t, ids(r), s.DevicePlugin.LeftOut[0].GPU)
	require.Equal(t, 1, strings.Count(m.process.Output(), "device is left out"))
}

func TestNodeWithAllGPUsExcludedIsReady(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(`devices: {exclude: ["*"]}`)
	m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready && s.Reason == "NothingAdvertised" })
	m.none(resource)
	require.NoFileExists(t, m.path("/dp/nvidia-gpu.sock"))
}

func TestEnvvarStrategySetsTheVariable(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "4").withKubelet().start("--device-list-strategy", "envvar", "--device-id-strategy", "index", "--pass-device-specs")
	r := m.wait(4)
	require.False(t, strings.Contains(r.Devices[0].GetID(), ":"), "the kubelet's IDs are UUIDs all the same")
	require.Contains(t, string(ids(r)[0]), "GPU-")
	a, err := m.admit("all", resource, 4)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": "0,1,2,3"}, a.Envs)
	require.Empty(t, a.CDIDevices)
	var there []string
	for _, d := range a.Devices {
		require.Equal(t, filepath.Join("/driver", d.GetContainerPath()), d.GetHostPath())
		require.FileExists(t, m.path(d.GetHostPath()))
		there = append(there, d.GetContainerPath())
	}
	require.Contains(t, there, "/dev/nvidiactl")
	require.Contains(t, there, "/dev/nvidia3")
}

func TestMIGDeviceHasItsCapabilities(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").mig("1", "1g.10gb,3g.40gb").withKubelet().
		start("--device-list-strategy", "volume-mounts", "--pass-device-specs", "--mig-strategy", "mixed")
	r := m.waitForDevices(large, 1)
	a, err := m.admit("one", large, 1)
	require.NoError(t, err)
	require.Equal(t, "/var/run/nvidia-container-devices/"+r.Devices[0].GetID(), a.Mounts[0].GetContainerPath())
	caps := 0
	for _, d := range a.Devices {
		require.NotEqual(t, "/dev/nvidia0", d.GetContainerPath(), "that is another GPU")
		if strings.HasPrefix(d.GetContainerPath(), "/dev/nvidia-caps/") {
			caps++
			require.FileExists(t, m.path(d.GetHostPath()))
		}
	}
	require.Equal(t, 2, caps, "its GPU instance's and its compute instance's")
}

// Only devices that the toolkit's specification names are healthy.
func TestDeviceWithoutACDINameIsUnhealthy(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().start()
	r := m.wait(2)
	says := func(devices ...string) {
		s := nodestate.State{Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{
			Specs: []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.yaml", Devices: devices}},
		}}
		require.NoError(t, nodestate.Write(m.path("/state/toolkit"), s))
	}
	says(r.Devices[0].GetID())
	require.Equal(t, []int{1}, unhealthy(m.wait(1)))
	s := m.state(func(s nodestate.State) bool { return s.Reason == "CDIUnavailable" })
	require.Equal(t, nodestate.Degraded, s.Phase)
	require.Contains(t, s.DevicePlugin.Resources[0].Devices[1].Message, "/var/run/cdi/gpu.yaml does not name it")
	says(r.Devices[0].GetID(), r.Devices[1].GetID())
	m.wait(2)
	off := false
	require.NoError(t, nodestate.Write(m.path("/state/toolkit"), nodestate.State{
		Component: nodestate.Toolkit, Phase: nodestate.Degraded, Toolkit: &nodestate.ToolkitInfo{
			Specs:   []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.yaml", Devices: []string{r.Devices[0].GetID()}}},
			Runtime: &nodestate.Runtime{Socket: "/run/x.sock", Name: "containerd", CDI: &off, Message: "containerd 1.7 has enable_cdi = false"},
		},
	}))
	m.wait(0)
	s = m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.Equal(t, "containerd 1.7 has enable_cdi = false", s.Message)
	m.stop()

	m.start("--device-list-strategy", "envvar") // to which CDI does not apply
	m.wait(2)
}

func TestMissingRequiredIMEXChannelIsReported(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().start("--imex-channel-ids", "0", "--imex-required")
	m.wait(0)
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "IMEXChannelMissing", s.DevicePlugin.Resources[0].Devices[0].Reason)
	require.Contains(t, s.DevicePlugin.Resources[0].Devices[0].Message, "/dev/nvidia-caps-imex-channels/channel0 below /driver")
	m.stop()
	m.start("--imex-channel-ids", "0")
	m.wait(2)
	require.Contains(t, m.process.Output(), "containers do not get all that is configured")
}

func TestDevicesPrintsAdvertisedAndLeftOut(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "3").mig("0", "1g.10gb,3g.40gb")
	path := m.path("/config.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
flags: {migStrategy: mixed}
devices: {exclude: ["1"]}
sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 5}]}}
`), 0o644))
	run := func(args ...string) string {
		out, err := exec.CommandContext(soon(t), built.Path(t, "gpu-device-plugin"), append([]string{"devices"}, m.args(append(args, "--config-file", path)...)...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	table := run()
	require.Regexp(t, `(?m)^nvidia\.com/gpu\.shared +GPU-\S+ +5 +2 +SIMULATED NVIDIA H100.* Healthy$`, table)
	require.Regexp(t, `(?m)^nvidia\.com/mig-3g\.40gb +MIG-\S+ +1 +0:\d +SIMULATED NVIDIA H100.* 3g\.40gb .* Healthy$`, table)
	require.Regexp(t, `(?m)^GPU-\S+ +1 +SIMULATED NVIDIA H100.* Excluded: devices\.exclude has "1"$`, table)
	var all deviceList
	require.NoError(t, json.Unmarshal([]byte(run("-o", "json")), &all))
	require.Len(t, all.Devices, 3)
	require.Len(t, all.Left, 1)
	require.Equal(t, "Excluded", all.Left[0].Reason)
	require.NoDirExists(t, m.path("/state"))
	require.Equal(t, gpu.UUID(all.Devices[0].ID), gpu.UUID(strings.TrimPrefix(all.Devices[0].CDI[0], "k8s.gpuready.io/gpu=")))
}

// It must not vanish silently for the kubelet or a pod's owner.
func TestMissingMIGGPUIsListedByTheNextProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet()
	m.mig("0", "3g.40gb,3g.40gb")
	m.configured("flags: {migStrategy: mixed}\n")
	before := m.waitForDevices(large, 2)
	m.wait(1)
	m.stop()
	m.sim("lose", "--gpu", "0", "--how", "gone", "--xid=false")

	m.start("--mig-strategy", "mixed")
	m.wait(1)
	after := m.waitForDevices(large, 0)
	require.Equal(t, ids(before), ids(after))
	s := m.state(func(s nodestate.State) bool {
		return s.DevicePlugin != nil && s.DevicePlugin.Registered && s.Phase == nodestate.Degraded
	})
	for _, r := range s.DevicePlugin.Resources {
		if r.Name == after.Name {
			require.Equal(t, gpu.ReasonMissing, r.Devices[0].Reason)
		}
	}
	m.sim("restore", "--gpu", "0")
	m.waitForDevices(large, 2)
}
