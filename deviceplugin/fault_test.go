package main

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/test/lab/built"
)

// registered waits until the current kubelet has had that many registrations and has a
// list with that many allocatable devices.
func (m *machine) registered(times, allocatable int) kubelettest.Resource {
	m.Helper()
	r, err := m.kubelet.Wait(soon(m), resource, func(r kubelettest.Resource) bool {
		return r.Registered >= times && r.Lists > 0 && !r.Gone && r.Allocatable == allocatable
	})
	require.NoError(m, err)
	require.Equal(m, times, r.Registered, "registrations")
	return r
}

// requireStable requires that the kubelet's list stays the same for a while.
func (m *machine) requireStable(allocatable int, while time.Duration) {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), while)
	defer cancel()
	_, err := m.kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool { return r.Allocatable != allocatable })
	require.ErrorIs(m, err, context.DeadlineExceeded)
}

func TestFailingEventWaitCausesNoStorm(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	before := m.wait(8)
	lines := strings.Count(m.process.Output(), "\n")
	m.sim("fail", "--events", "unknown")
	m.wait(0)
	m.requireStable(0, 3*time.Second)
	m.sim("fail", "--events", "none")
	r := m.wait(8)
	require.Equal(t, ids(before), ids(r))
	require.LessOrEqual(t, r.Lists-before.Lists, 10)
	require.LessOrEqual(t, strings.Count(m.process.Output(), "\n")-lines, 50, "a line for each of 8 devices, twice, and a few")
	m.sim("xid", "--gpu", "2", "--xid", "79")
	require.Equal(t, []int{2}, unhealthy(m.wait(7)), "events are heard again")
	require.Equal(t, 1, m.registered(1, 7).Registered, "the kubelet has noticed none of it but the lists")
}

func TestRemovedSocketIsCreatedAndRegisteredOnce(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	for i := range 3 {
		require.NoError(t, os.Remove(m.path("/dp/nvidia-gpu.sock")))
		m.registered(i+2, 8)
	}
	m.sim("xid", "--gpu", "0", "--xid", "79")
	m.registered(4, 7)
	_, err := m.kubelet.Admit(soon(t), pod("job", 2))
	require.NoError(t, err)
}

func TestDeadConnectionCausesOneRegistration(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	for i := range 3 {
		require.NoError(t, m.kubelet.Disconnect(resource))
		m.registered(i+2, 8)
	}
	m.sim("xid", "--gpu", "5", "--xid", "79")
	require.Equal(t, []int{5}, unhealthy(m.registered(4, 7)))
}

// Its folder appears late, too. The first list has all changes until then.
func TestLateKubeletGetsTheCurrentHealth(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().start()
	m.waitForOutput("waiting for the kubelet's folder " + m.path("/dp"))
	m.sim("xid", "--gpu", "6", "--xid", "48")
	m.sim("lose", "--gpu", "1", "--how", "calls")
	m.state(func(s nodestate.State) bool { return s.DevicePlugin != nil && len(s.DevicePlugin.Faults) == 2 })
	m.withKubelet()
	r := m.registered(1, 6)
	require.Equal(t, []int{1, 6}, unhealthy(r))
	require.Equal(t, 1, r.Lists, "no list has promised more")
}

func TestRecreatedFolderEndsThePlugin(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	m.sim("xid", "--gpu", "3", "--xid", "61")
	m.fault(3, false)
	m.kubelet.Stop()
	// Not removed in place: the plugin would create its socket in it again meanwhile.
	require.NoError(t, os.Rename(m.path("/dp"), m.path("/old")))
	require.NoError(t, os.Mkdir(m.path("/dp"), 0o750))
	require.NoError(t, os.RemoveAll(m.path("/old")))
	require.Equal(t, program.Failed, m.exit())
	s := m.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "KubeletFolderReplaced", s.Reason)
	require.NotEmpty(t, s.DevicePlugin.Faults, "what is known of the GPUs' health outlives it")

	m.withKubelet().start()
	require.Equal(t, []int{3}, unhealthy(m.registered(1, 7)))
}

func TestReplicasOfABrokenGPUAreUnhealthy(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet()
	m.configured("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n")
	m.wait(20)
	m.sim("xid", "--gpu", "1", "--xid", "79")
	r := m.wait(10)
	for _, d := range r.Devices {
		require.Equal(t, strings.HasPrefix(d.GetID(), r.Devices[0].GetID()[:40]), d.GetHealth() == v1beta1.Healthy, d.GetID())
	}
	m.fault(1, true)
	m.sim("restore", "--gpu", "1")
	m.wait(20)
}

func TestMIGDevicesFollowTheirGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--gpus", "2").withKubelet()
	m.mig("0", "1g.10gb,1g.10gb,1g.10gb").mig("1", "1g.10gb,1g.10gb")
	m.configured("flags: {migStrategy: mixed}\nhealth: {quietPeriod: 1s}\n")
	before := m.waitForDevices(small, 5)
	s := m.state(func(s nodestate.State) bool { return s.DevicePlugin != nil && s.DevicePlugin.Registered })
	part := s.DevicePlugin.Resources[0].Devices[1].MIG
	require.NotNil(t, part)

	m.sim("xid", "--gpu", "0", "--xid", "32", "--gi", strconv.Itoa(part.GPUInstance), "--ci", strconv.Itoa(part.ComputeInstance))
	r := m.waitForDevices(small, 4)
	require.Equal(t, []int{1}, unhealthy(r), "its neighbours on the GPU stay")
	m.waitForDevices(small, 5) // it was quiet since, and passed its probe

	m.sim("xid", "--gpu", "0", "--xid", "79")
	r = m.waitForDevices(small, 2)
	require.Equal(t, []int{0, 1, 2}, unhealthy(r))
	require.Equal(t, ids(before), ids(r))
	m.fault(0, true)
	m.sim("restore", "--gpu", "0")
	m.waitForDevices(small, 5)
}

func TestHealthCheckVariablesOfTheReference(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	m.process = built.Start(m, "gpu-device-plugin", m.args(), "DP_DISABLE_HEALTHCHECKS=all", "DP_ENABLE_HEALTHCHECKS=61")
	m.wait(8)
	m.sim("xid", "--gpu", "1", "--xid", "58") // makes a GPU unhealthy by default
	m.waitForOutput("XID that is not held against the GPU")
	m.sim("xid", "--gpu", "2", "--xid", "61")
	require.Equal(t, []int{2}, unhealthy(m.wait(7)))
}

func TestEveryStreamGetsEveryChange(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet().start()
	m.wait(8)
	path := m.path("/dp/nvidia-gpu.sock")
	conn, err := grpc.NewClient("passthrough:///"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	var streams []v1beta1.DevicePlugin_ListAndWatchClient
	for range 3 {
		s, err := v1beta1.NewDevicePluginClient(conn).ListAndWatch(soon(t), &v1beta1.Empty{})
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		streams = append(streams, s)
	}
	m.sim("xid", "--gpu", "4", "--xid", "79")
	require.Equal(t, []int{4}, unhealthy(m.wait(7)))
	for _, s := range streams {
		for {
			list, err := s.Recv()
			require.NoError(t, err)
			if slices.ContainsFunc(list.GetDevices(), func(d *v1beta1.Device) bool { return d.GetHealth() != v1beta1.Healthy }) {
				require.Equal(t, v1beta1.Unhealthy, list.GetDevices()[4].GetHealth())
				break
			}
		}
	}
}

// A GPU that repeats a program's error is unhealthy until the quiet period after the
// last one is over.
func TestQuietGPUIsAllocatableAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up().withKubelet()
	m.configured("health: {quietPeriod: 8s}\n") // both faults are to be seen at once, on a busy machine too
	m.wait(8)
	m.sim("xid", "--gpu", "2", "--xid", "32")
	m.sim("xid", "--gpu", "3", "--xid", "61") // which takes a reset
	require.Equal(t, []int{2, 3}, unhealthy(m.wait(6)))
	require.Equal(t, []int{3}, unhealthy(m.wait(7)))
	f := m.state(func(s nodestate.State) bool { return s.DevicePlugin != nil && len(s.DevicePlugin.Faults) == 1 })
	require.Equal(t, gpu.ReasonXID, f.DevicePlugin.Faults[0].Reason)
	require.EqualValues(t, 61, f.DevicePlugin.Faults[0].XID)
}

// The kubelet gets the health of every GPU while the state cannot be written. The latest state is
// written as soon as that is possible, with one line in the log at the begin and one at the end.
func TestStateOnAReadOnlyFileSystemIsWrittenLater(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	require.NoError(t, os.Mkdir(m.path("/state"), 0o755))
	if err := unix.Mount("tmpfs", m.path("/state"), "tmpfs", 0, ""); err != nil {
		t.Skipf("mounting a tmpfs needs root: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(m.path("/state"), unix.MNT_DETACH)) })
	remount := func(flags uintptr) {
		// It is busy while a file there is open for writing.
		require.Eventually(t, func() bool { return unix.Mount("", m.path("/state"), "", unix.MS_REMOUNT|flags, "") == nil }, time.Minute, time.Millisecond)
	}
	m.up().withKubelet().start()
	m.wait(8)
	m.state(func(s nodestate.State) bool { return s.DevicePlugin != nil && s.DevicePlugin.Registered })
	remount(unix.MS_RDONLY)
	m.sim("xid", "--gpu", "2", "--xid", "79")
	m.wait(7)
	m.waitForOutput("reason=StateNotWritable")
	m.sim("xid", "--gpu", "3", "--xid", "79")
	m.wait(6)
	remount(0)
	m.state(func(s nodestate.State) bool { return len(s.DevicePlugin.Faults) == 2 })
	m.waitForOutput("the state is written again")
	for _, text := range []string{"the state cannot be written", "the state is written again"} {
		require.Equal(t, 1, strings.Count(m.process.Output(), text), m.process.Output())
	}
}

// To release a lost GPU, NVML is shut down and initialised again. That GPU may make either hang for a minute,
// or for ever.
func TestAGPUThatHangsNVMLCostsNoNeighbour(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for NVML longer than a call may take: 45 s")
	}
	for name, args := range map[string][]string{
		"init":     {"cost", "--init", "30s"},
		"shutdown": {"refuse", "--call", "nvmlShutdown", "--delay", "30s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t).up().withKubelet().start()
			m.wait(8)
			m.sim(args[0], args[1:]...)
			m.sim("lose", "--gpu", "3")
			require.Equal(t, []int{3}, unhealthy(m.wait(7)))
			ctx, cancel := context.WithCancel(t.Context())
			changed := make(chan error, 1)
			go func() {
				_, err := m.kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool { return r.Allocatable != 7 })
				changed <- err
			}()
			m.waitForOutput("NVML does not return from its shutdown or initialisation")
			m.waitForOutput("NVML was initialised again")
			cancel()
			require.ErrorIs(t, <-changed, context.Canceled, "its neighbours were offered all the time")
			m.sim("xid", "--gpu", "5", "--xid", "48")
			require.Equal(t, []int{3, 5}, unhealthy(m.wait(6)), "and they are watched")
			m.sim("refuse", "--call", "all", "--code", "none")
		})
	}
}

// What a GPU can do without may be refused, as by the drivers of older GPUs and of virtual ones:
// internal/gpu/nvml has a test for each call and code.
func TestCallsThatTheDriverRefusesCostNoGPU(t *testing.T) {
	t.Parallel()
	calls := strings.Join([]string{
		"nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial", "nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture",
		"nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
		"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetTopologyCommonAncestor",
		"nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetRemappedRows",
		"nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetAddressingMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetEccMode",
		"nvmlDeviceGetFieldValues", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetP2PStatus",
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlSystemGetCudaDriverVersion_v2",
	}, ",")
	for _, code := range []string{"4", "999"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t).up()
			m.sim("refuse", "--call", calls, "--code", code)
			m.withKubelet().start()
			m.wait(8)
			m.sim("refuse", "--call", "all", "--code", "none")
			m.sim("refuse", "--call", "nvmlDeviceGetUUID,nvmlDeviceGetMemoryInfo,nvmlDeviceGetPciInfo_v3,nvmlDeviceGetMigMode", "--gpu", "3", "--code", "gpu-is-lost")
			require.Equal(t, []int{3}, unhealthy(m.wait(7)))
		})
	}
}
