package main

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/test/lab/built"
)

func TestEightGPUsAreAdvertisedWithTheirNUMANodes(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	r := m.wait(8)
	require.Len(t, r.Devices, 8)
	require.Equal(t, []int64{0, 0, 0, 0, 1, 1, 1, 1}, nodes(r))
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.True(t, s.Driver.Simulated)
	require.Equal(t, "/driver", s.Driver.Root)
	require.Equal(t, "/dp/kubelet.sock", s.DevicePlugin.KubeletSocket)
}

// People try the simulator on laptops with WSL2, whose own GPU is not served.
func TestASimulatedDriverIsServedOnAnyPlatform(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, dir := range []string{"/sys/bus/pci/devices", "/sys/class/misc/dxg"} {
		require.NoError(t, os.MkdirAll(m.path(dir), 0o755))
	}
	m.up().withKubelet().start()
	require.Len(t, m.wait(8).Devices, 8)
}

// Every machine of the simulator is offered whole, by one list and without a change.
func TestEverySimulatedMachineIsOfferedWhole(t *testing.T) {
	for profile, want := range map[string]struct {
		gpus   int
		notes  string // as in the label
		clique string
	}{
		"a100-80gb": {gpus: 8}, "a10g": {gpus: 1}, "b200": {gpus: 8}, "b300": {gpus: 8}, "dgx-2": {gpus: 16}, "gb10": {gpus: 1},
		"gb200": {gpus: 4, clique: "00000001-0000-0000-0000-000000000001.2"}, "gh200": {gpus: 1}, "h20": {gpus: 8}, "h200-sxm": {gpus: 8},
		"l40s": {gpus: 4}, "mixed": {gpus: 4}, "rtx-pro-6000": {gpus: 4}, "t4": {gpus: 1}, "v100-sxm2": {gpus: 8},
		"vgpu": {gpus: 1, notes: "NoXIDEvents"},
	} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t).up("--profile", profile).withKubelet().start()
			require.Empty(t, unhealthy(m.wait(want.gpus)))
			s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
			require.Len(t, s.DevicePlugin.Inventory, want.gpus)
			require.Empty(t, s.DevicePlugin.Faults)
			for _, g := range s.DevicePlugin.Inventory {
				require.Equal(t, nodestate.Healthy, g.Health)
				require.Equal(t, want.clique, g.FabricClique)
			}
			require.Equal(t, want.notes, s.DevicePlugin.Labels["nvidia.com/gpu.notes"])
			require.Equal(t, want.clique, s.DevicePlugin.Labels["nvidia.com/gpu.clique"])
		})
	}
}

// In the cube mesh of a DGX-1 four GPUs of a socket are linked each with each, and of two pairs the one with two links
// is the better: NVIDIA's DGX-1 system architecture white paper.
func TestAPodGetsWellLinkedGPUsOfACubeMesh(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--profile", "v100-sxm2").withKubelet().start()
	m.wait(8)
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	indexes := func(name string, count int) (chosen []int) {
		a, err := m.kubelet.Admit(soon(t), pod(name, count))
		require.NoError(t, err)
		for _, g := range s.DevicePlugin.Inventory {
			if slices.ContainsFunc(a.CDIDevices, func(d string) bool { return strings.HasSuffix(d, string(g.UUID)) }) {
				chosen = append(chosen, g.Index)
			}
		}
		return chosen
	}
	require.Contains(t, [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}, indexes("a", 4))
	require.Contains(t, [][]int{{0, 3}, {1, 2}, {2, 3}, {4, 7}, {5, 6}, {6, 7}}, indexes("b", 2), "they have two links")
}

func TestPodGetsAsManyCDIDevicesAsRequested(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	seen := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		a, err := m.kubelet.Admit(soon(t), pod(name, 2))
		require.NoError(t, err)
		require.Equal(t, 2, distinct(a.CDIDevices))
		for _, device := range a.CDIDevices {
			require.True(t, strings.HasPrefix(device, "k8s.gpuready.io/gpu=GPU-"), device)
			require.False(t, seen[device], "%s was given twice", device)
			seen[device] = true
		}
	}
	_, err := m.kubelet.Admit(soon(t), pod("e", 1))
	require.ErrorContains(t, err, "Requested: 1, Available: 0")
	a, err := m.kubelet.Admit(soon(t), pod("none", 0))
	require.NoError(t, err)
	require.Empty(t, a.CDIDevices)
}

// The lists of published policies for NVIDIA's operator, on a node without a toolkit's state:
// all of them are used, as by NVIDIA's device plugin.
func TestEveryListOfStrategiesIsAccepted(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"cdi-cri,cdi-annotations,volume-mounts", "envvar,cdi-annotations", "envvar,cdi-cri", "volume-mounts,cdi-cri", "envvar,volume-mounts", "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"} {
		t.Run(list, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t).up().withKubelet().start("--device-list-strategy=" + list)
			m.wait(8)
			a, err := m.kubelet.Admit(soon(t), pod("a", 1))
			require.NoError(t, err)
			require.Equal(t, strings.Contains(list, "cdi-cri"), len(a.CDIDevices) == 1)
			require.Equal(t, strings.Contains(list, "cdi-annotations"), len(a.Annotations) == 1)
			require.Equal(t, strings.Contains(list, "volume-mounts"), len(a.Mounts) == 1)
			require.Equal(t, strings.Contains(list, "envvar") || strings.Contains(list, "volume-mounts"), a.Envs["NVIDIA_VISIBLE_DEVICES"] != "")
		})
	}
}

// With the toolkit's state the best way is used, and the state names the others.
func TestDeviceGetsToAContainerOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(t, err)
	on := true
	require.NoError(t, nodestate.Write(m.path("/state/toolkit"), nodestate.State{
		Component: nodestate.Toolkit, BootID: boot, Phase: nodestate.Ready,
		Toolkit: &nodestate.ToolkitInfo{
			Specs:   []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/cdi.yaml"}},
			Runtime: &nodestate.Runtime{Socket: "/s", Name: "containerd", Version: "v2.2.1", CDI: &on, Handlers: []string{"runc"}, GPUHandlers: []string{}, DefaultHandler: "runc"},
		},
	}))
	m.start("--device-list-strategy=volume-mounts,cdi-cri,envvar")
	m.wait(8)
	a, err := m.kubelet.Admit(soon(t), pod("a", 1))
	require.NoError(t, err)
	require.Len(t, a.CDIDevices, 1)
	require.Empty(t, a.Mounts)
	require.Empty(t, a.Envs)
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Len(t, s.Unserved, 2)
	m.waitForOutput("deviceListStrategy=volume-mounts")
}

func TestXIDMarksOneGPUOnly(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	// An application's own error. (After 109 the simulated driver also asks for a
	// reset, as some real ones do, which is a different case.)
	for _, xid := range []string{"13", "31", "43", "45", "68"} {
		m.sim("xid", "--gpu", "2", "--xid", xid)
	}
	m.sim("xid", "--gpu", "3", "--xid", "48")
	r := m.wait(7)
	require.Equal(t, []int{3}, unhealthy(r))
	m.state(func(s nodestate.State) bool { // the driver's wish for a reset may be seen before the event
		p := s.DevicePlugin
		return p != nil && len(p.Resources) == 1 && p.Resources[0].Devices[3].Reason == gpu.ReasonXID
	})
	a, err := m.kubelet.Admit(soon(t), pod("seven", 7))
	require.NoError(t, err)
	require.Equal(t, 7, distinct(a.CDIDevices))
	require.NotContains(t, a.DeviceIDs[resource], r.Devices[3].GetID())
}

func TestUncorrectableECCErrorMarksOneGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	m.sim("ecc", "--gpu", "6", "--corrected", "40")
	m.sim("ecc", "--gpu", "5", "--uncorrected", "1")
	require.Equal(t, []int{5}, unhealthy(m.wait(7)))
}

func TestLostGPUIsMarkedAndRecovers(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"calls", "handle", "gone", "unknown", "events"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t).up().withKubelet().start()
			before := m.wait(8)
			m.sim("lose", "--gpu", "4", "--how", how)
			r := m.wait(7)
			require.Equal(t, ids(before), ids(r), "it stays listed")
			require.Equal(t, []int{4}, unhealthy(r))
			d := m.fault(4, true)
			require.NotEmpty(t, d.Message)
			if how == "gone" {
				require.Equal(t, gpu.ReasonMissing, d.Reason)
			}
			a, err := m.kubelet.Admit(soon(t), pod("seven", 7))
			require.NoError(t, err)
			require.Equal(t, 7, distinct(a.CDIDevices))
			m.sim("restore", "--gpu", "4")
			m.wait(8)
		})
	}
}

func TestGPULostBeforeTheStartAffectsNoOther(t *testing.T) {
	t.Parallel()
	for how, listed := range map[string]int{"calls": 8, "gone": 7} {
		t.Run(how, func(t *testing.T) {
			m := newMachine(t).up()
			m.sim("lose", "--gpu", "0", "--how", how)
			m.withKubelet().start()
			require.LessOrEqual(t, len(m.wait(7).Devices), listed)
		})
	}
}

func TestRestartedKubeletIsServedByTheSameProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	before := m.wait(8)
	job, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, m.kubelet.Restart())
		r := m.wait(8)
		require.Equal(t, ids(before), ids(r))
		require.Equal(t, 1, r.Registered, "one registration for one kubelet")
	}
	again, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.Equal(t, job.CDIDevices, again.CDIDevices)
	require.NotContains(t, m.process.Output(), "another program")
}

func TestLateDriverIsPickedUp(t *testing.T) {
	t.Parallel()
	built.SkipWithDriver(t)
	m := newMachine(t).withKubelet().start()
	m.waitForOutput("is not there yet")
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Waiting && s.Reason != "Starting" })
	require.Contains(t, s.Message, "/driver")
	m.up()
	m.wait(8)
	require.Equal(t, 1, strings.Count(m.process.Output(), "is not there yet"), "it says once what it waits for")
}

func TestPluginWaitsForTheLibraryInTheDriverRoot(t *testing.T) {
	t.Parallel()
	built.SkipWithDriver(t)
	m := newMachine(t).withKubelet()
	require.NoError(t, os.MkdirAll(m.path("/driver/usr/lib/x86_64-linux-gnu"), 0o755))
	m.start()
	m.waitForOutput("no libnvidia-ml.so.1 below " + m.path("/driver"))
	require.NoError(t, os.RemoveAll(m.path("/driver")))
	m.up()
	m.wait(8)
}

func TestUpgradedDriverIsServedByTheSameProcess(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	before := m.wait(8)
	job, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	pid := m.process.PID()
	for i, version := range []string{"590.10.01", "590.20.02"} {
		m.up("--driver-version", version)
		m.state(func(s nodestate.State) bool {
			return s.Driver != nil && s.Driver.Version == version && s.DevicePlugin.Registered
		})
		r := m.wait(8)
		require.Equal(t, ids(before), ids(r))
		require.GreaterOrEqual(t, r.Registered, i+2)
		exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		require.NoError(t, err)
		require.Equal(t, "gpu-device-plugin", filepath.Base(exe), "it is still process %d", pid)
	}
	again, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
	require.Equal(t, job.CDIDevices, again.CDIDevices)
	m.sim("xid", "--gpu", "1", "--xid", "79") // the new driver is watched
	require.Equal(t, []int{1}, unhealthy(m.wait(7)))
	m.stop()
}

func TestHealthOutlivesThePluginButNotTheBoot(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	m.boot(1)
	m.start()
	m.wait(8)
	m.sim("xid", "--gpu", "3", "--xid", "61") // only the event reports it
	m.wait(7)
	since := m.fault(3, false).Since
	m.stop()

	m.start()
	require.Equal(t, []int{3}, unhealthy(m.wait(7)))
	m.state(func(s nodestate.State) bool {
		return s.DevicePlugin.Registered && s.DevicePlugin.Resources[0].Devices[3].Since.Equal(since)
	})
	m.stop()

	m.boot(2)
	m.start()
	m.wait(8)
}

func TestTruncatedStateMakesAllGPUsUnhealthy(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	m.stop()
	path := m.path("/state/deviceplugin/state.json")
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, whole[:len(whole)/2], 0o644))

	m.start()
	r := m.wait(0)
	require.Equal(t, 8, r.Capacity)
	require.Equal(t, 1, strings.Count(m.process.Output(), "the state of this boot cannot be read"))
	require.Contains(t, m.fault(0, false).Message, "remove /state/deviceplugin/state.json")
	m.stop()

	require.NoError(t, os.Remove(path))
	m.start()
	m.wait(8)
}

func TestKubeletTimeoutEndsThePlugin(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().start("--kubelet-timeout", "200ms")
	require.Equal(t, program.Failed, m.exit())
	require.Contains(t, m.process.Output(), "waiting for the kubelet's folder "+m.path("/dp"))
	require.Contains(t, lastLine(m.process), "gpu-device-plugin: no kubelet registered us within 200ms")
	require.Contains(t, lastLine(m.process), "--kubelet-socket")
}

func TestReplacedKubeletFolderEndsThePlugin(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	m.kubelet.Stop()
	require.NoError(t, os.Rename(m.path("/dp"), m.path("/old")))
	require.Equal(t, program.Failed, m.exit())
	require.Contains(t, lastLine(m.process), "plugin folder was replaced: "+m.path("/dp"))
}

func TestBadUsageExitsWithTwo(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for name, c := range map[string]struct {
		file string
		args []string
		want string
	}{
		"cut short":     {file: "version: v1\nflags:\n  migStrategy: [", want: "/config.yaml: "},
		"empty":         {file: "", want: "/config.yaml: empty"},
		"misspelt":      {file: "version: v1\nflags: {migStategy: none}", want: "flags.migStategy: unknown key"},
		"not served":    {file: "version: v1\nflags: {deviceDiscoveryStrategy: tegra}", want: `flags.deviceDiscoveryStrategy: "tegra" is not supported`},
		"no such file":  {args: []string{"--config-file", m.path("/nowhere.yaml")}, want: "/nowhere.yaml"},
		"unknown flag":  {args: []string{"--frobnicate"}, want: "--frobnicate"},
		"long path":     {args: []string{"--kubelet-socket", "/" + strings.Repeat("x", 100) + "/kubelet.sock"}, want: "a unix socket can have 107"},
		"relative path": {args: []string{"--kubelet-socket", "kubelet.sock"}, want: "must be absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			args := c.args
			if args == nil {
				path := filepath.Join(t.TempDir(), "config.yaml")
				require.NoError(t, os.WriteFile(path, []byte(c.file), 0o644))
				args = []string{"--config-file", path}
			}
			m := &machine{TB: t, host: m.host}
			m.start(args...)
			require.Equal(t, program.Usage, m.exit())
			require.Contains(t, lastLine(m.process), c.want)
			require.NoDirExists(t, m.path("/state"))
		})
	}
}

func TestInvalidLibraryEndsThePlugin(t *testing.T) {
	t.Parallel()
	m := newMachine(t).withKubelet()
	lib := m.path("/driver/usr/lib/x86_64-linux-gnu")
	require.NoError(t, os.MkdirAll(lib, 0o755))
	data, err := os.ReadFile(built.Path(t, "lib/libcuda.so"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(lib, "libnvidia-ml.so.1"), data, 0o755))
	m.start()
	require.Equal(t, program.Failed, m.exit())
	require.Contains(t, lastLine(m.process), "gpu-device-plugin: use the driver: ")
	require.Contains(t, lastLine(m.process), "libnvidia-ml.so.1 is too old or is no NVML")
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "DriverFailed", s.Reason)
}

func TestPluginWaitsForADriverUpgrade(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--module-version", "570.1.1").withKubelet().start()
	m.waitForOutput("finish the driver upgrade")
	s := m.state(func(s nodestate.State) bool { return s.Reason == "DriverVersionMismatch" })
	require.Equal(t, nodestate.Waiting, s.Phase)
	m.up("--driver-version", "570.1.1")
	m.wait(8)
}

func TestPermissionErrorNamesTheDeviceNodes(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	m := newMachine(t).up().withKubelet()
	require.NoError(t, os.Mkdir(m.path("/state"), 0o755))
	for _, dir := range []string{"", "/dp", "/state"} {
		require.NoError(t, os.Chmod(m.path(dir), 0o777))
	}
	control, err := filepath.Glob(m.path("/driver/dev/nvidia*"))
	require.NoError(t, err)
	require.NotEmpty(t, control)
	for _, node := range control {
		if info, err := os.Stat(node); err == nil && !info.IsDir() {
			require.NoError(t, os.Chmod(node, 0o600))
		}
	}
	bin := filepath.Join(m.host, "gpu-device-plugin") // where the other user can read it
	built.Copy(t, bin, "gpu-device-plugin")
	cmd := exec.CommandContext(soon(t), bin, m.args()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	var exit *exec.ExitError
	require.True(t, errors.As(cmd.Run(), &exit), output.String())
	require.Equal(t, program.Failed, exit.ExitCode(), output.String())
	lines := strings.Split(strings.TrimSpace(output.String()), "\n")
	require.Contains(t, lines[len(lines)-1], "no permission to use the NVIDIA device nodes")
	require.Contains(t, lines[len(lines)-1], "/dev/nvidiactl")
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "NoPermission", s.Reason)
}

func TestDryRunPrintsWhatWouldBeAdvertised(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up()
	m.sim("lose", "--gpu", "1", "--how", "calls")
	run := func(args ...string) string {
		out, err := exec.CommandContext(soon(t), built.Path(t, "gpu-device-plugin"), m.args(append(args, "--dry-run")...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	table := run()
	require.Contains(t, table, "RESOURCE")
	require.Contains(t, table, "SIMULATED NVIDIA H100")
	require.Contains(t, run("-o", "json"), `"resource": "nvidia.com/gpu"`)
	require.NoDirExists(t, m.path("/state"))
	require.NoDirExists(t, m.path("/dp"))
}

func TestDeviceListOutlivesAStoppedKubelet(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	m.kubelet.Stop()
	m.waitForOutput("the kubelet hung up")
	m.sim("xid", "--gpu", "7", "--xid", "79") // happens while nothing watches
	m.fault(7, false)
	require.NoError(t, m.kubelet.Restart())
	r, err := m.kubelet.Wait(soon(t), resource, func(r kubelettest.Resource) bool { return r.Lists > 0 })
	require.NoError(t, err)
	require.Equal(t, []int{7}, unhealthy(r))
}

func lastLine(p *built.Process) string {
	lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return lines[len(lines)-1]
}

func TestReadinessAndMetricsAreServed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := ln.Addr().String()
	require.NoError(t, ln.Close())
	m := newMachine(t).up().start("--listen", address)
	get := func(path string) (int, string) { return built.Get(t, "http://"+address+path) }
	m.waitForOutput("waiting for the kubelet")
	code, body := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "waiting for the kubelet's folder "+m.path("/dp"))
	m.withKubelet()
	r := m.wait(8)
	m.sim("xid", "--gpu", "0", "--xid", "79")
	m.wait(7)
	_, err = m.kubelet.Admit(soon(t), pod("two", 2))
	require.NoError(t, err)
	m.state(func(s nodestate.State) bool { return s.DevicePlugin.Registered })
	code, _ = get("/readyz")
	require.Equal(t, http.StatusOK, code)
	code, _ = get("/healthz")
	require.Equal(t, http.StatusOK, code)
	_, body = get("/metrics")
	for _, want := range []string{
		`gpuready_deviceplugin_device_healthy{device="` + r.Devices[0].GetID() + `",reason="XID",resource="nvidia.com/gpu"} 0`,
		`gpuready_deviceplugin_device_healthy{device="` + r.Devices[1].GetID() + `",reason="",resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_allocations_total{code="OK",resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_registrations_total{code="OK",resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_events_total{kind="XID"} 1`,
		`gpuready_deviceplugin_first_list_seconds 0`,
		`gpuready_deviceplugin_devices{reason="",resource="nvidia.com/gpu",state="Healthy"} 7`,
		`gpuready_deviceplugin_devices{reason="XID",resource="nvidia.com/gpu",state="Unhealthy"} 1`,
		`gpuready_deviceplugin_phase{phase="Degraded",reason="UnhealthyDevices"} 1`,
		`gpuready_deviceplugin_registered{resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_watching 1`,
		`gpuready_deviceplugin_xids_total{gpu="` + r.Devices[0].GetID() + `",xid="79"} 1`,
		`gpuready_deviceplugin_allocation_duration_seconds_count{resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_preferred_allocation_duration_seconds_count{resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_preferred_allocation_score_ratio_count{resource="nvidia.com/gpu"} 1`,
		`gpuready_deviceplugin_preferred_allocation_score_ratio_sum{resource="nvidia.com/gpu"} 1`,
		`gpuready_build_info{version=`,
		`go_goroutines `,
	} {
		require.Contains(t, body, want)
	}
}

func TestWhatGPUsMeasureIsServedWithThePodsThatHoldThem(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := ln.Addr().String()
	require.NoError(t, ln.Close())
	m := newMachine(t).up().withPods()
	m.sim("load", "--gpu", "all", "--percent", "90", "--memory-used", "40960")
	m.start("--listen", address, "--pod-resources-socket", "/pods/kubelet.sock", "--dcgm-metrics")
	m.wait(8)
	a, err := m.kubelet.Admit(soon(t), pod("train", 1))
	require.NoError(t, err)
	m.sim("xid", "--gpu", "7", "--xid", "13")
	m.sim("lose", "--gpu", "6")
	m.wait(7)
	code, body := built.Get(t, "http://"+address+"/metrics")
	require.Equal(t, http.StatusOK, code, body)
	model := `model="SIMULATED NVIDIA H100 80GB HBM3"`
	for _, want := range []string{
		`gpuready_gpu_utilization_ratio{gpu="0",` + model,
		`gpuready_gpu_memory_used_bytes{gpu="7",` + model,
		`gpuready_gpu_xids_total{gpu="7",` + model,
		`pod_name="train",pod_namespace="default",uuid="` + a.DeviceIDs[resource][0] + `"} 1`,
		"gpuready_gpu_pods_known 1\n",
		`DCGM_FI_DEV_GPU_UTIL{GPU_I_ID="",GPU_I_PROFILE=""`,
		`DCGM_FI_DEV_XID_ERRORS{`,
	} {
		require.Contains(t, body, want)
	}
	require.Regexp(t, `gpuready_gpu_last_xid\{gpu="7",[^}]*\} 13\n`, body)
	require.NotContains(t, body, `gpuready_gpu_utilization_ratio{gpu="6"`, "it is lost")
}
