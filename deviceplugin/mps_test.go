package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/deviceplugin/mps"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

const mpsShared = "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"

// mpsDaemon starts the MPS control daemons with the configuration, or with the plugin's
// if it is empty.
func (m *machine) mpsDaemon(text string) *built.Process {
	m.Helper()
	if os.Geteuid() != 0 {
		m.Skip("only root has a mount namespace of its own, and another root")
	}
	m.shareMPS()
	path := m.path("/mps.yaml")
	require.NoError(m, os.WriteFile(path, []byte("version: v1\n"+text), 0o644))
	return built.Start(m, "gpu-device-plugin", []string{
		"mps-daemon", "--host-root", m.host, "--driver-root", "/driver", "--state-dir", "/state", "--listen=", "--config-file", path, "--mps-root", "/mps",
	})
}

// shareMPS makes the daemons' folder a shared mount, as Bidirectional does.
func (m *machine) shareMPS() {
	m.Helper()
	root := m.path("/mps")
	if _, err := os.Stat(root); err == nil {
		return // it is
	}
	require.NoError(m, os.Mkdir(root, 0o755))
	require.NoError(m, unix.Mount(root, root, "", unix.MS_BIND, ""))
	m.Cleanup(func() {
		_, err := mps.Unmount(m.host, "/mps")
		require.NoError(m, err)
		require.NoError(m, unix.Unmount(root, unix.MNT_DETACH))
	})
	require.NoError(m, unix.Mount("", root, "", unix.MS_SHARED, ""))
}

// mps waits until the state of the MPS control daemons satisfies cond.
func (m *machine) mps(cond func(nodestate.State) bool) nodestate.State {
	m.Helper()
	boot, err := nodestate.BootIDAt(m.host)
	require.NoError(m, err)
	ctx, cancel := context.WithCancel(soon(m))
	defer cancel()
	var last nodestate.State
	found := false
	_ = nodestate.WatchBoot(ctx, m.path("/state/mps"), boot, func(s nodestate.State, err error) {
		if err == nil && !found {
			if last, found = s, s.MPS != nil && cond(s); found {
				cancel()
			}
		}
	})
	require.True(m, found, "the state came to be %+v", last)
	return last
}

// serving reports whether that many resources are served, on that many GPUs in total.
func serving(resources, gpus int) func(nodestate.State) bool {
	return func(s nodestate.State) bool {
		ready, on := 0, 0
		for _, r := range s.MPS.Resources {
			if r.Ready {
				ready++
				on += len(r.GPUs)
			}
		}
		return ready == resources && on == gpus
	}
}

// control sends a command to the control daemon of a resource, as a user on the host would.
func (m *machine) control(of, command string) string {
	m.Helper()
	// The daemon, whose root is the driver's, has its socket in the same folder.
	return m.controlAt(m.path(mps.PipeDir("/mps", of)), command)
}

// controlAt sends a command to the control daemon whose pipes are in a folder.
func (m *machine) controlAt(pipe, command string) string {
	m.Helper()
	cmd := exec.CommandContext(soon(m), built.Path(m, "lib/nvidia-cuda-mps-control"))
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipe)
	cmd.Stdin = strings.NewReader(command + "\n")
	out, err := cmd.CombinedOutput()
	require.NoError(m, err, string(out))
	return strings.TrimSpace(string(out))
}

// modes are the compute modes of all GPUs.
func (m *machine) modes() []string {
	m.Helper()
	return m.smi("--query-gpu=compute_mode", "--format=csv,noheader")
}

// smi runs nvidia-smi and returns its output lines.
func (m *machine) smi(args ...string) []string {
	m.Helper()
	out, err := exec.CommandContext(soon(m), m.path("/driver/usr/bin/nvidia-smi"), args...).CombinedOutput()
	require.NoError(m, err, string(out))
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// child is the process that runs as a daemon's child.
func child(t *testing.T, p *built.Process) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(p.PID()) + "/task/*/children")
	require.NoError(t, err)
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		require.NoError(t, err)
		for pid := range strings.FieldsSeq(string(data)) {
			line, err := os.ReadFile("/proc/" + pid + "/cmdline")
			if err == nil && strings.Contains(string(line), "nvidia-cuda-mps-control\x00-f") {
				n, err := strconv.Atoi(pid)
				require.NoError(t, err)
				return n
			}
		}
	}
	t.Fatal("no control daemon runs")
	return 0
}

func TestGPUsSharedByMPSNeedTheirDaemon(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	m.wait(0)
	s := m.state(func(s nodestate.State) bool { return s.Reason == "MPSNotReady" })
	require.Contains(t, s.Message, "mps-daemon has reported nothing")
	require.Equal(t, nodestate.Waiting, s.Phase)

	daemon := m.mpsDaemon(mpsShared)
	r := m.wait(8)
	require.Equal(t, "25.0", m.control(resource, "get_default_active_thread_percentage"))
	require.Equal(t, "20389M", m.control(resource, "get_default_device_pinned_mem_limit 1"), "a quarter")
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process"}, m.modes())
	m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })

	a, err := m.admit("one", resource, 1)
	require.NoError(t, err)
	require.Equal(t, "/mps/nvidia.com/gpu/pipe", a.Envs["CUDA_MPS_PIPE_DIRECTORY"])
	_, err = m.admit("two", resource, 2)
	require.ErrorContains(t, err, "a container may have one nvidia.com/gpu and requested 2")

	// After a kill the devices are unhealthy until the daemon serves again.
	lists := r.Lists
	first := child(t, daemon)
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	require.NoError(t, daemon.WaitOutput(soon(t), "signal: killed"))
	r, err = m.kubelet.Wait(soon(t), resource, func(r kubelettest.Resource) bool { return r.Lists >= lists+2 && r.Allocatable == 8 })
	require.NoError(t, err)
	m.waitForOutput("reason=MPSNotReady")
	require.NotEqual(t, first, child(t, daemon))
	require.Equal(t, "25.0", m.control(resource, "get_default_active_thread_percentage"))
	require.Equal(t, 1, r.Registered)

	// After a stop the devices are unhealthy, and the GPUs have their former mode.
	require.NoError(t, daemon.Signal(syscall.SIGTERM))
	code, err := daemon.Wait(soon(t))
	require.NoError(t, err)
	require.Zero(t, code, daemon.Output())
	m.wait(0)
	require.Equal(t, []string{"Default", "Default"}, m.modes())
	s = m.state(func(s nodestate.State) bool { return s.Reason == "MPSNotReady" })
	require.Contains(t, s.Message, "mps-daemon has ended")
}

func TestEachResourceHasItsOwnControlDaemon(t *testing.T) {
	t.Parallel()
	const text = `
sharing:
  mps:
    resources:
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.small, replicas: 10, devices: [0, 1]}
    - {name: nvidia.com/gpu, rename: nvidia.com/gpu.large, replicas: 2, devices: [2]}
`
	m := newMachine(t).up("--gpus", "4").withKubelet().configured(text, "--mps-root", "/mps")
	m.mpsDaemon(text)
	m.waitForDevices("nvidia.com/gpu.small", 20)
	m.waitForDevices("nvidia.com/gpu.large", 2)
	m.wait(1)
	require.Equal(t, "10.0", m.control("nvidia.com/gpu.small", "get_default_active_thread_percentage"))
	require.Equal(t, "50.0", m.control("nvidia.com/gpu.large", "get_default_active_thread_percentage"))
	require.Equal(t, "N/A", m.control("nvidia.com/gpu.large", "get_default_device_pinned_mem_limit 0"))
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process", "Exclusive_Process", "Default"}, m.modes())

	m.sim("lose", "--gpu", "1", "--how", "calls") // which must not restart anything
	m.waitForDevices("nvidia.com/gpu.small", 10)
	require.Equal(t, "10.0", m.control("nvidia.com/gpu.small", "get_default_active_thread_percentage"))
}

func TestGPUUnusableForMPSDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "3").mig("2", "1g.10gb")
	m.smi("-i", "0", "-c", "PROHIBITED")
	m.withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(4)
	s := m.mps(serving(1, 1))
	require.Equal(t, nodestate.Degraded, s.Phase)
	require.EqualValues(t, "ComputeModeConflict", s.MPS.Resources[0].Reason)
	require.Contains(t, s.MPS.Resources[0].Message, "GPU 0 (GPU-")
	require.Contains(t, s.MPS.Resources[0].Message, "run nvidia-smi -i 0 -c DEFAULT")
	m.state(func(s nodestate.State) bool {
		d := s.DevicePlugin.Resources[0].Devices[0]
		return d.Reason == "MPSNotReady" && strings.Contains(d.Message, "PROHIBITED")
	})
	require.Contains(t, s.MPS.Resources[0].Message, "GPU 2 (GPU-")
	require.Contains(t, s.MPS.Resources[0].Message, "MIG mode, which MPS cannot share")
	require.NoError(t, daemon.WaitOutput(soon(t), "ComputeModeConflict"))

	m.smi("-i", "0", "-c", "DEFAULT")
	m.wait(8) // it is checked again
	require.Equal(t, "20389M", m.control(resource, "get_default_device_pinned_mem_limit 0"))
	require.NotContains(t, m.mps(serving(1, 2)).Message, "GPU 0")
}

func TestMIGDevicesAreNotSharedByMPS(t *testing.T) {
	t.Parallel()
	const text = "flags: {migStrategy: single}\n" + mpsShared
	m := newMachine(t).up("--gpus", "1").mig("0", "1g.10gb,1g.10gb").withKubelet().configured(text, "--mps-root", "/mps")
	m.mpsDaemon(text)
	s := m.mps(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "MPSNotPossible", s.Reason)
	require.Contains(t, s.Message, "MPS cannot share MIG devices; use timeSlicing")
	s = m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "MPSNotPossible", s.Reason)
}

func TestMPSDaemonWithoutWorkIsReady(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "1")
	m.mpsDaemon("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}")
	s := m.mps(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.EqualValues(t, "NothingShared", s.Reason)
	require.Equal(t, []string{"Default"}, m.modes())
}

func TestNewConfigurationRestartsControlDaemons(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet().configured(mpsShared, "--mps-root", "/mps")
	daemon := m.mpsDaemon(mpsShared)
	m.wait(8)
	for _, path := range []string{m.path("/config.yaml"), m.path("/mps.yaml")} {
		require.NoError(t, os.WriteFile(path, []byte("version: v1\n"+strings.Replace(mpsShared, "4", "2", 1)), 0o644))
	}
	require.NoError(t, daemon.WaitOutput(soon(t), "the resource is shared in another way now"))
	since := time.Now() // later writes are from the other daemons
	m.mps(func(s nodestate.State) bool { return s.Time.After(since) && serving(1, 2)(s) })
	require.Equal(t, 1, m.wait(4).Registered)
	require.Equal(t, "50.0", m.control(resource, "get_default_active_thread_percentage"))
}
