package main_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// smallRun mounts a file system that the test can fill over the folder of states and proofs.
func (r *rig) smallRun() (fill, makeRoom func()) {
	r.t.Helper()
	run := r.path("/run/nvidia")
	require.NoError(r.t, os.MkdirAll(run, 0o755))
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "size=64m"); err != nil {
		r.t.Skipf("mounting a tmpfs needs root: %v", err)
	}
	r.t.Cleanup(func() { require.NoError(r.t, unix.Unmount(run, unix.MNT_DETACH)) })
	dir := filepath.Join(run, "fill")
	fill = func() {
		r.t.Helper()
		require.NoError(r.t, os.MkdirAll(dir, 0o755))
		for size := 16 << 20; size >= 4096; size /= 2 {
			var err error
			for i := 0; err == nil; i++ {
				err = os.WriteFile(filepath.Join(dir, strconv.Itoa(size)+"-"+strconv.Itoa(i)), make([]byte, size), 0o644)
			}
			require.ErrorIs(r.t, err, unix.ENOSPC)
		}
	}
	return fill, func() { require.NoError(r.t, os.RemoveAll(dir)) }
}

// GPUs break while the device plugin and the validator can write nothing. Both go on; the node says
// why it is not up to date, and it is again within seconds after there is room.
func TestAFullFileSystemIsNamedAndItsEndIsNoticed(t *testing.T) {
	r := newRig(t)
	fill, makeRoom := r.smallRun()
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	server := kubetest.Start("n1")
	t.Cleanup(func() { server.Stop() })
	server.Token("secret")
	account := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte("secret"), 0o600))
	condition := func() corev1.NodeCondition {
		if c := server.Condition("n1", "GPUReady"); c != nil {
			return *c
		}
		return corev1.NodeCondition{}
	}
	becomes := func(reason, message string) {
		t.Helper()
		err := server.Wait(ctx, func() bool { return condition().Reason == reason && strings.Contains(condition().Message, message) })
		require.NoError(t, err, "%+v", condition())
	}
	eventOf := func(reason string) func() bool {
		return func() bool {
			return slices.ContainsFunc(server.Events(), func(e corev1.Event) bool { return e.Reason == reason })
		}
	}
	xid := func(gpus ...string) {
		for _, g := range gpus {
			built.Gpusim(t, "xid", "--root", r.path(driverRoot), "--gpu", g, "--xid", "79")
		}
	}
	r.driver(8)
	r.toolkit(r.gpus()...)
	kubelet := r.kubelet(8)
	daemon := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen=", "--node-name=n1", "--api-server="+server.URL(), "--service-account-dir="+account), r.env()...)
	becomes("Ready", "8 of 8 GPUs ready")

	fill()
	xid("1", "2", "3", "4") // the device plugin's state grows beyond the room that it has
	becomes("StateNotWritable", "df -h "+r.path("/run/nvidia/"))
	require.NoError(t, server.Wait(ctx, eventOf("StateNotWritable")))
	allocatable(t, kubelet, 4)
	_, explained, _ := r.run(r.args("explain")...)
	require.Contains(t, explained, "StateNotWritable")
	state := r.path("/run/nvidia/gpuready/deviceplugin/" + nodestate.FileName)
	// The room of the former state may be enough for the new one when it is tried again.
	text, err := os.ReadFile(state)
	require.NoError(t, err)
	require.True(t, len(text) == 0 || strings.Contains(string(text), "XID 79"), "nothing that is not true any more: %s", text)
	xid("5") // the latest state is what is written in the end
	allocatable(t, kubelet, 3)

	makeRoom()
	began := time.Now()
	becomes("Degraded", "3 of 8 GPUs ready")
	require.Less(t, time.Since(began), 15*time.Second)
	r.until(readiness.Plugin, proven)
	require.NoError(t, server.Wait(ctx, func() bool { return eventOf("Proven")() || eventOf("StateWritten")() }))
	for _, text := range []string{"cannot write the outcome of the check", "cannot write the record of Events"} {
		require.LessOrEqual(t, strings.Count(daemon.Output(), text), 1, daemon.Output())
	}
}

// The file system of the states is mounted read-only, so that the device plugin's state stays as it
// was, and is not true any more.
func TestAReadOnlyFileSystemIsNamed(t *testing.T) {
	r := newRig(t)
	_, _ = r.smallRun()
	r.driver(2)
	r.toolkit(r.gpus()...)
	kubelet := r.kubelet(2)
	daemon := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen="), r.env()...)
	r.until(readiness.Plugin, proven)
	states := r.path("/run/nvidia/gpuready")
	require.NoError(t, unix.Mount(states, states, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(states, unix.MNT_DETACH)) })
	// It is busy while a file there is open for writing.
	require.Eventually(t, func() bool {
		return unix.Mount("", states, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "") == nil
	}, time.Minute, time.Millisecond)
	built.Gpusim(t, "xid", "--root", r.path(driverRoot), "--gpu", "1", "--xid", "79")
	allocatable(t, kubelet, 1)
	// The validator checks on an event. On a cluster that is the change of the Node; here it is a new socket.
	require.NoError(t, kubelet.Restart())
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	require.NoError(t, daemon.WaitOutput(ctx, "reason=StateNotWritable"))
	require.NoError(t, unix.Mount("", states, "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	require.NoError(t, daemon.WaitOutput(ctx, "the outcomes of the checks are written again"))
	require.NoError(t, untilState(ctx, states+"/deviceplugin", func(s nodestate.State) bool { return len(s.DevicePlugin.Faults) == 1 }))
}

// allocatable waits until the kubelet offers that many GPUs.
func allocatable(t *testing.T, k *kubelettest.Kubelet, gpus int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	_, err := k.Wait(ctx, "nvidia.com/gpu", func(r kubelettest.Resource) bool { return r.Allocatable == gpus })
	require.NoError(t, err)
}
