package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

// A link that flaps in a rack, or a switch tray that is serviced, raises XIDs 144 to 150 on all GPUs of all
// nodes. They are not fatal, and the driver asks for nothing.
func TestNVLinkErrorsThatAreNotFatalTakeNoGPU(t *testing.T) {
	for profile, gpus := range map[string]int{"b200": 8, "b300": 8, "gb200": 4} {
		t.Run(profile, func(t *testing.T) { nonFatalNVLinkErrors(t, profile, gpus) })
	}
}

func nonFatalNVLinkErrors(t *testing.T, profile string, gpus int) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := ln.Addr().String()
	require.NoError(t, ln.Close())
	m := newMachine(t).up("--profile", profile).withKubelet().start("--listen", address)
	m.wait(gpus)
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan error, 1)
	go func() {
		_, err := m.kubelet.Wait(ctx, resource, func(r kubelettest.Resource) bool { return r.Allocatable != gpus })
		changed <- err
	}()
	const each = 72
	for i := range 7 {
		m.sim("xid", "--gpu", fmt.Sprint(i%gpus), "--xid", fmt.Sprint(144+i), "--times", fmt.Sprint(each))
		want := fmt.Sprintf("gpuready_deviceplugin_events_total{kind=\"XID\"} %d\n", each*(i+1))
		require.Eventually(t, func() bool {
			_, body := built.Get(t, "http://"+address+"/metrics")
			return strings.Contains(body, want)
		}, time.Minute, 20*time.Millisecond, want)
	}
	cancel()
	require.ErrorIs(t, <-changed, context.Canceled, "after 504 XIDs all GPUs are offered, and were all the time")
	require.Contains(t, m.process.Output(), "XID that is not held against the GPU")

	m.sim("xid", "--gpu", "3", "--xid", "149", "--recovery", "gpu-reset")
	require.Equal(t, []int{3}, unhealthy(m.wait(gpus-1)), "a fatal one takes its GPU, and no other")
	d := m.fault(3, false)
	require.Equal(t, gpu.ReasonXID, d.Reason)
	require.Contains(t, d.Message, "XID 149")
}

// A GPU that leaves its fabric while its siblings are in it cannot be used, and comes back by itself. One whose
// fabric is degraded can be.
func TestTheFabricOfAGPUIsWatched(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--profile", "b200").withKubelet().start()
	m.wait(8)
	m.sim("fabric", "--gpu", "3", "--state", "in-progress")
	m.sim("fabric", "--gpu", "4", "--status", "unknown")
	m.sim("fabric", "--gpu", "5", "--health", "bandwidth,access-timeout", "--configuration", "5")
	require.Equal(t, []int{3, 4}, unhealthy(m.wait(6)))
	require.Equal(t, gpu.ReasonFabric, m.fault(3, false).Reason)
	require.Equal(t, gpu.ReasonFabric, m.fault(4, false).Reason)
	s := m.state(func(s nodestate.State) bool { return len(s.DevicePlugin.Inventory[5].Notes) > 0 })
	require.Equal(t, gpu.NoteFabricDegraded, s.DevicePlugin.Inventory[5].Notes[0].Reason)
	for _, part := range []string{"less bandwidth than it should have", "accesses that timed out", "its configuration is wrong (5 in nvml.h)"} {
		require.Contains(t, s.DevicePlugin.Inventory[5].Notes[0].Message, part)
	}
	m.sim("fabric", "--gpu", "3", "--state", "completed")
	m.sim("fabric", "--gpu", "4", "--status", "none")
	m.sim("restore", "--gpu", "5")
	m.wait(8)
	m.state(func(s nodestate.State) bool { return len(s.DevicePlugin.Inventory[5].Notes) == 0 })
}

// A driver that loses its IMEX domain asks for its recovery on every GPU of the node: all of them work.
func TestWhatConcernsOtherNodesTakesNoGPU(t *testing.T) {
	t.Parallel()
	m := newMachine(t).up("--profile", "b200").withKubelet().start()
	m.wait(8)
	for i := range 8 {
		m.sim("xid", "--gpu", fmt.Sprint(i), "--xid", "145", "--recovery", "recover-imex-domain")
	}
	s := m.state(func(s nodestate.State) bool {
		for _, g := range s.DevicePlugin.Inventory {
			if len(g.Notes) != 1 {
				return false
			}
		}
		return true
	})
	require.Equal(t, gpu.NoteRecoverIMEX, s.DevicePlugin.Inventory[0].Notes[0].Reason)
	require.Equal(t, "RecoverIMEXDomain", s.DevicePlugin.Labels["nvidia.com/gpu.notes"])
	require.Empty(t, unhealthy(m.wait(8)))
}
