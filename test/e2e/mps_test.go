package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

const (
	mpsDaemonSet = "nvidia-device-plugin-mps-control-daemon"
	mpsShm       = "/run/nvidia/mps/shm"
	mpsLog       = "/run/nvidia/mps/nvidia.com/gpu/log"
)

// TestDevicePluginMPS has two pods share each of a node's two GPUs through MPS.
func TestDevicePluginMPS(t *testing.T) {
	t.Parallel()
	s := Up(t, cluster.Config{Nodes: 1})
	s.Apply(t, "gpuready.yaml")
	s.Simulate(t, "t4", 2)
	s.World.WaitAllocatable(t, 2, "n1")
	s.play(t,
		scenario{"GPUs shared by MPS are twice as many", gpusSharedByMPSAreTwiceAsMany},
		scenario{"pods on one GPU find its control daemon and share memory", podsFindTheControlDaemon},
		scenario{"a control daemon that ended is started again", anEndedControlDaemonIsStartedAgain},
		scenario{"a killed mps-daemon is restarted", aKilledMPSDaemonIsRestarted},
		scenario{"without mps-daemon no GPU is allocated", withoutMPSDaemonNothingIsAllocated},
		scenario{"GPUs no longer shared are as before", gpusNoLongerSharedAreAsBefore},
		scenario{"uninstalling leaves no shared memory", uninstallingLeavesNoSharedMemory},
	)
}

func gpusSharedByMPSAreTwiceAsMany(t *testing.T, s *Suite) {
	require.Equal(t, []string{"Default", "Default"}, s.computeModes(t, "n1"))
	const text = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
	s.WriteConfigMap(t, map[string]string{"config.yaml": text})
	s.Apply(t, "mps.yaml")
	s.ConfigurePlugin(t, text)
	s.World.WaitDaemonSets(t, Namespace, mpsDaemonSet)
	s.World.WaitAllocatable(t, 4, "n1")
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process"}, s.computeModes(t, "n1"))
}

// podsFindTheControlDaemon checks that pods reach it by its pipes, and that all share one
// bounded memory, which is the host's.
func podsFindTheControlDaemon(t *testing.T, s *Suite) {
	on := s.Node("n1").PathOnNode
	var host unix.Statfs_t
	require.NoError(t, unix.Statfs(on(mpsShm), &host))
	require.EqualValues(t, unix.TMPFS_MAGIC, host.Type, "the host sees what mps-daemon mounted")
	require.EqualValues(t, 64<<20, host.Blocks*uint64(host.Bsize))
	require.NoError(t, unix.Statfs(on(mpsLog), &host))
	require.EqualValues(t, 16<<20, host.Blocks*uint64(host.Bsize), "clients add to the logs by connecting")
	users := map[string]int{}
	for i := range 4 {
		name := fmt.Sprintf("shares-%d", i)
		s.Run(t, Job{Name: name, GPUs: 1, Command: busy})
		s.World.Until(t, name+" runs", func() error { return checkRunning(s.World.Pod("default", name)) })
		ids := uuids(s.Kubectl(t, "exec", name, "--", "nvidia-smi", "-L"))
		require.Len(t, ids, 1)
		users[ids[0]]++
		require.Contains(t, s.Kubectl(t, "exec", name, "--", "vectoradd"), "Test PASSED")

		_, in := process(t, s.World.Pod("default", name), "vectoradd")
		environ, err := os.ReadFile(in + "/environ")
		require.NoError(t, err)
		const pipe = "/mps/nvidia.com/gpu/pipe"
		require.Contains(t, strings.Split(string(environ), "\x00"), "CUDA_MPS_PIPE_DIRECTORY="+pipe)
		control, err := os.Stat(in + "/root" + pipe + "/control")
		require.NoError(t, err)
		require.Equal(t, os.ModeSocket, control.Mode().Type())
		response := s.Shell(t, t.TempDir(), "echo get_default_active_thread_percentage | kubectl exec -i "+name+" -- nvidia-cuda-mps-control")
		require.Equal(t, "50.0", strings.TrimSpace(response), "it connects")
		require.ErrorIs(t, os.WriteFile(in+"/root"+pipe+"/new", nil, 0o644), unix.EROFS)
		require.ErrorIs(t, os.Remove(in+"/root"+pipe+"/control"), unix.EROFS)
		require.ErrorIs(t, os.Chmod(in+"/root"+pipe+"/control", 0), unix.EROFS)
		note := fmt.Sprintf("/of-%d", i)
		require.NoError(t, os.WriteFile(in+"/root/dev/shm"+note, []byte(name), 0o644))
		require.FileExists(t, on(mpsShm+note))
		require.FileExists(t, in+"/root/dev/shm/of-0", "others see it, too")
	}
	for i := range 4 {
		require.NoError(t, checkRunning(s.World.Pod("default", fmt.Sprintf("shares-%d", i))), "it keeps its part")
	}
	require.Len(t, users, 2)
	for id, n := range users {
		require.Equal(t, 2, n, id)
	}
	_, daemon := process(t, s.mpsPod(t), control)
	require.FileExists(t, daemon+"/root/dev/shm/of-0", "and the control daemon")
}

// control is the kernel's name of the control daemon's process.
const control = "nvidia-cuda-mps"

// anEndedControlDaemonIsStartedAgain checks that the same container starts it.
func anEndedControlDaemonIsStartedAgain(t *testing.T, s *Suite) {
	before := s.mpsPod(t)
	pid, _ := process(t, before, control)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	s.World.Until(t, "mps-daemon says that it ended", func() error { // only in its log: it restarts in a moment
		if log := s.Kubectl(t, "-n", Namespace, "logs", before.Name); !strings.Contains(log, "reason=MPSDaemonFailed") {
			return fmt.Errorf("%s", log)
		}
		return nil
	})
	s.served(t)
	s.World.WaitAllocatable(t, 4, "n1")
	now, _ := process(t, s.mpsPod(t), control)
	require.NotEqual(t, pid, now)
	s.requireUntouched(t, before)
	s.RequireFree(t, "n1", 1)
}

// aKilledMPSDaemonIsRestarted checks that the mounts stay, each of them once.
func aKilledMPSDaemonIsRestarted(t *testing.T, s *Suite) {
	before := s.mpsPod(t)
	pid, _ := process(t, before, "gpu-device-plug")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	s.World.Until(t, "the kubelet has started it again", func() error {
		now := s.World.Pod(Namespace, before.Name)
		if now == nil || now.Status.ContainerStatuses[0].RestartCount == 0 || !ready(now) {
			return fmt.Errorf("it has not")
		}
		return nil
	})
	s.World.WaitAllocatable(t, 4, "n1")
	require.FileExists(t, s.Node("n1").PathOnNode(mpsShm+"/of-0"))
	require.Equal(t, 1, s.mounts(t, "n1", mpsShm))
	s.RequireFree(t, "n1", 1)
}

// withoutMPSDaemonNothingIsAllocated checks that the device plugin reports the reason.
func withoutMPSDaemonNothingIsAllocated(t *testing.T, s *Suite) {
	const label = "nvidia.com/gpu.deploy.mps-control-daemon"
	before := s.pluginContainer(t, "n1")
	s.Kubectl(t, "label", "node", "n1", label+"=false")
	s.World.WaitAllocatable(t, 0, "n1")
	st := s.State(t, "n1", nodestate.DevicePlugin)
	require.EqualValues(t, "MPSNotReady", st.Reason, st.Message)
	require.Equal(t, nodestate.Waiting, st.Phase)
	require.Equal(t, []string{"Default", "Default"}, s.computeModes(t, "n1"))
	s.Kubectl(t, "label", "node", "n1", label+"-")
	s.World.WaitAllocatable(t, 4, "n1")
	require.Equal(t, []string{"Exclusive_Process", "Exclusive_Process"}, s.computeModes(t, "n1"))
	require.Equal(t, before, s.pluginContainer(t, "n1"))
	s.RequireFree(t, "n1", 1)
}

// gpusNoLongerSharedAreAsBefore follows docs/configuration.md.
func gpusNoLongerSharedAreAsBefore(t *testing.T, s *Suite) {
	s.Delete(t, "mps.yaml") // does not delete the namespace
	s.World.Until(t, "mps-daemon is gone", func() error {
		if n := len(s.World.Pods(Namespace, "app="+mpsDaemonSet)); n > 0 {
			return fmt.Errorf("there are %d pods", n)
		}
		return nil
	})
	last := s.State(t, "n1", nodestate.MPS)
	require.Equalf(t, []string{"Default", "Default"}, s.computeModes(t, "n1"), "mps-daemon left %+v %+v", last, last.MPS)
	require.NotNil(t, last.MPS, last)
	require.Emptyf(t, last.MPS.Claimed, "%+v", last)
	s.edit(t, map[string]string{"config.yaml": "version: v1"})
	s.World.WaitAllocatable(t, 2, "n1")
	s.RequireFree(t, "n1", 2)
}

func uninstallingLeavesNoSharedMemory(t *testing.T, s *Suite) {
	require.Equal(t, 1, s.mounts(t, "n1", mpsShm), "until then it stays")
	s.Delete(t, "gpuready.yaml", "simulated-driver.yaml", "validation-job.yaml", "mps.yaml")
	s.Apply(t, "uninstall.yaml")
	s.Kubectl(t, "-n", "gpuready-uninstall", "rollout", "status", "daemonset/gpuready-uninstall", "--timeout=120s")
	require.Zero(t, s.mounts(t, "n1", mpsShm))
	require.Zero(t, s.mounts(t, "n1", mpsLog))
}

// served waits until the control daemon serves both GPUs.
func (s *Suite) served(t *testing.T) {
	t.Helper()
	s.World.Until(t, "both GPUs are served", func() error {
		st := s.State(t, "n1", nodestate.MPS)
		if st.Phase != nodestate.Ready || st.MPS == nil || len(st.MPS.Resources) != 1 || len(st.MPS.Resources[0].GPUs) != 2 {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// mpsPod returns the pod of mps-daemon.
func (s *Suite) mpsPod(t *testing.T) *corev1.Pod {
	t.Helper()
	s.World.WaitDaemonSets(t, Namespace, mpsDaemonSet)
	pods := s.World.Pods(Namespace, "app="+mpsDaemonSet)
	require.Len(t, pods, 1)
	return pods[0]
}

// computeModes returns the compute modes of a node's GPUs, as seen on the host.
func (s *Suite) computeModes(t *testing.T, node string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := s.Node(node).Exec(ctx, "/run/nvidia/driver/usr/bin/nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader")
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// mounts returns the number of mounts at a path of a node.
func (s *Suite) mounts(t *testing.T, node, path string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := s.Node(node).Exec(ctx, "cat", "/proc/self/mountinfo")
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			n++
		}
	}
	return n
}

// process finds a pod's process by the kernel's name for it, which has 15 bytes at most. dir is
// the process's folder in /proc, through which its files can be read.
func process(t *testing.T, pod *corev1.Pod, name string) (pid int, dir string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(dir string) bool {
		comm, _ := os.ReadFile(dir + "/comm")
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		return strings.TrimSpace(string(comm)) == name && strings.Contains(string(cgroup), "/pod"+string(pod.UID))
	})
	require.GreaterOrEqualf(t, i, 0, "pod %s has no process %s", pod.Name, name)
	pid, err = strconv.Atoi(filepath.Base(all[i]))
	require.NoError(t, err)
	return pid, all[i]
}
