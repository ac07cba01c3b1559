package security

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
)

// fillAndRemove does, as a container's root, what an MPS client could do to harm the host or its
// neighbours.
const fillAndRemove = `
d=$CUDA_MPS_PIPE_DIRECTORY
i=0; while [ $i -lt 600 ]; do echo x > $d/file$i; i=$((i+1)); done 2>/dev/null
dd if=/dev/zero of=$d/big bs=1M count=64 2>/dev/null
mkdir $d/folder; mkfifo $d/fifo; mknod $d/node c 1 3; ln -s /etc/passwd $d/control.pid
mv $d/control $d/gone; chmod 0 $d/control; rm -rf $d/control $d/control_lock $d/*
mount -o remount,rw $d; umount $d
dd if=/dev/zero of=/dev/shm/big bs=1M count=200 2>/dev/null
i=0; while [ $i -lt 20000 ]; do echo > /dev/shm/file$i || break; i=$((i+1)); done 2>/dev/null
echo tried everything
`

// mpsClientFillsAndRemoves shares the GPUs by MPS for a while. One client's actions must leave the
// host's /run unchanged, and the other clients must continue and reconnect.
func mpsClientFillsAndRemoves(t *testing.T, n *node) {
	const shared = `apiVersion: v1
kind: ConfigMap
metadata: {name: gpuready-device-plugin-config, namespace: gpuready}
data: {config.yaml: "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"}
`
	n.ApplyText(t, shared)
	n.Apply(t, "mps.yaml")
	const plugin = "daemonset/nvidia-device-plugin-daemonset"
	n.Kubectl(t, "-n", e2e.Namespace, "patch", plugin, "-p", `{"spec":{"template":{"spec":{
		"containers":[{"name":"device-plugin","env":[{"name":"CONFIG_FILE","value":"/etc/gpuready/config.yaml"}],"volumeMounts":[{"name":"config","mountPath":"/etc/gpuready","readOnly":true}]}],
		"volumes":[{"name":"config","configMap":{"name":"gpuready-device-plugin-config"}}]}}}}`)
	defer func() {
		shm := n.hostPath("/run/nvidia/mps/shm")
		for _, name := range names(t, shm) {
			require.NoError(t, os.RemoveAll(filepath.Join(shm, name)))
		}
		n.Delete(t, "mps.yaml")
		n.World.Until(t, "mps-daemon is gone", func() error {
			if pods := n.World.Pods(e2e.Namespace, "app=nvidia-device-plugin-mps-control-daemon"); len(pods) > 0 {
				return fmt.Errorf("there are %d pods", len(pods))
			}
			return nil
		})
		n.Kubectl(t, "-n", e2e.Namespace, "rollout", "undo", plugin)
		n.Kubectl(t, "-n", e2e.Namespace, "delete", "configmap", "gpuready-device-plugin-config")
		n.World.WaitAllocatable(t, 8, n.name)
	}()
	n.World.WaitAllocatable(t, 16, n.name)

	neighbour := withGPUs(n.shellPod("mps-neighbour", "sleep 3600"), 1)
	n.create(t, neighbour)
	require.Equal(t, corev1.PodRunning, n.starts(t, neighbour).Status.Phase)
	n.connects(t, neighbour.Name)
	pipe := n.hostPath("/run/nvidia/mps/nvidia.com/gpu/pipe")
	before, free := names(t, pipe), n.freeInRun(t)
	require.Contains(t, before, "control")

	hostile, root := withGPUs(n.shellPod("mps-hostile", fillAndRemove), 1), int64(0)
	hostile.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &root} // and the usual capabilities
	out, _ := n.output(t, hostile)
	require.Contains(t, out, "tried everything")
	require.Equal(t, before, names(t, pipe), out)
	now := n.freeInRun(t)
	// The containers of these pods also have files there: some tens, of some kilobytes.
	require.Less(t, int64(free.Ffree)-int64(now.Ffree), int64(300), "files in the host's /run")
	require.Less(t, (int64(free.Bfree)-int64(now.Bfree))*now.Bsize, int64(8<<20), "bytes in the host's /run")

	n.connects(t, neighbour.Name)
	later := withGPUs(n.shellPod("mps-later", "sleep 3600"), 1)
	n.create(t, later)
	require.Equal(t, corev1.PodRunning, n.starts(t, later).Status.Phase)
	n.connects(t, later.Name)
}

// connects has a client call its control daemon, by the container's socket.
func (n *node) connects(t *testing.T, pod string) {
	t.Helper()
	answer := n.Shell(t, t.TempDir(), "echo get_default_active_thread_percentage | kubectl exec -i "+pod+" -- /usr/bin/nvidia-cuda-mps-control")
	require.Equal(t, "50.0", strings.TrimSpace(answer))
}

// freeInRun returns the free space and files of the host's /run.
func (n *node) freeInRun(t *testing.T) unix.Statfs_t {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(n.hostPath("/run"), &st))
	return st
}

// names returns the names in a folder, sorted.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
