package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// serve writes who offers the GPUs, as the device plugin does.
func (n *node) serve(by, switchID string, withheld ...int) {
	n.state.DevicePlugin.Serve, n.state.DevicePlugin.SwitchID, n.state.DevicePlugin.Withheld = by, switchID, nil
	for _, i := range withheld {
		n.state.DevicePlugin.Withheld = append(n.state.DevicePlugin.Withheld, nodestate.Withheld{GPU: gpuID(i), Reason: "HeldByPod", Message: "held by pod team/old", Namespace: "team"})
	}
	n.writeState()
}

// waitKept waits until the driver's state answers a change, and keeps just these GPUs.
func (n *node) waitKept(switchID string, kept ...int) nodestate.State {
	n.t.Helper()
	boot, err := nodestate.BootID()
	require.NoError(n.t, err)
	want := ""
	for _, i := range kept {
		want += string(gpuID(i)) + " "
	}
	limit := time.Now().Add(time.Minute)
	for {
		s, err := nodestate.ReadBoot(filepath.Join(n.dir, "host/state/dra-driver"), boot)
		have := ""
		if s.DRADriver != nil {
			for _, k := range s.DRADriver.Kept {
				have += string(k.GPU) + " "
			}
			if s.DRADriver.SwitchID == switchID && have == want {
				return s
			}
		}
		require.True(n.t, time.Now().Before(limit), "%v: %+v", err, s.DRADriver)
		time.Sleep(20 * time.Millisecond)
	}
}

func count(n int) func(map[string]resourceapi.Device) bool {
	return func(devices map[string]resourceapi.Device) bool { return len(devices) == n }
}

// A device is released once, and never given to a claim after that.
func TestDevicesAreReleasedToTheDevicePlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.serve(nodestate.ServeDRA, "1", 3)
	p := n.start("pod-1")
	client := n.register(t, "pod-1")
	n.waitDevices("without the GPU that a pod holds", func(devices map[string]resourceapi.Device) bool {
		_, has := devices["gpu-3"]
		return len(devices) == 3 && !has
	})
	_, refusal, err := prepare(t.Context(), client, n.claim("early", "gpu-3"))
	require.NoError(t, err)
	require.Contains(t, refusal, "device gpu-3 ("+string(gpuID(3))+") is withheld: HeldByPod: held by pod team/old; next: ")
	held, late := n.claim("held", "gpu-0"), n.claim("late", "gpu-1")
	names, _, err := prepare(t.Context(), client, held)
	require.NoError(t, err)
	require.Len(t, names, 1)

	setUnsure := func(unsure bool) {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		n.api.unsure = unsure
	}
	setUnsure(true) // the time for claims on the way begins when the driver knows that the slices are withdrawn
	n.serve(nodestate.ServePlugin, "2", 0, 1, 2, 3)
	n.waitDevices("which are withdrawn", count(0))
	s := n.waitKept("2", 0, 1, 2)
	require.Equal(t, "HeldByClaim", string(s.DRADriver.Kept[0].Reason))
	require.Contains(t, s.DRADriver.Kept[0].Message, "held by claim team/held")
	require.Equal(t, "ClaimsOnTheWay", string(s.DRADriver.Kept[1].Reason))
	names, refusal, err = prepare(t.Context(), client, late)
	require.NoError(t, err)
	require.Len(t, names, 1, "it was allocated before: %s", refusal)
	setUnsure(false)
	n.waitKept("2", 0, 1)
	_, refusal, err = prepare(t.Context(), client, n.claim("too-late", "gpu-2"))
	require.NoError(t, err)
	require.Contains(t, refusal, "device gpu-2 is not offered now: ServedByDevicePlugin: ")

	require.NoError(t, p.Signal(syscall.SIGKILL))
	_, err = p.Wait(t.Context())
	require.NoError(t, err)
	p = n.start("pod-1")
	client = n.register(t, "pod-1")
	_, refusal, err = prepare(t.Context(), client, n.claim("too-late", "gpu-2"))
	require.NoError(t, err)
	require.NotEmpty(t, refusal, "what was released stays so")
	names, refusal, err = prepare(t.Context(), client, held)
	require.NoError(t, err)
	require.Len(t, names, 1, "who has a GPU keeps it: %s", refusal)
	for _, c := range []*resourceapi.ResourceClaim{held, late} {
		refusal, err = unprepare(t.Context(), client, c)
		require.NoError(t, err)
		require.Empty(t, refusal)
	}
	n.waitKept("2")
	require.NoError(t, p.Signal(syscall.SIGTERM))
}

// While the API server is away it may still have the devices, and the scheduler may allocate them.
func TestNothingIsReleasedBeforeTheAPIServerHasTheWithdrawal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.serve(nodestate.ServeDRA, "1")
	n.start("pod-1")
	n.register(t, "pod-1")
	n.waitDevices("all", count(4))
	setDown := func(down bool) {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		n.api.down = down
	}
	setDown(true)
	n.serve(nodestate.ServePlugin, "2", 0, 1, 2, 3)
	limit := time.Now().Add(time.Minute)
	for s := n.waitKept("2", 0, 1, 2, 3); !strings.Contains(fmt.Sprint(s.DRADriver.Kept), "the API server does not say whether the ResourceSlices are withdrawn"); s = n.waitKept("2", 0, 1, 2, 3) {
		require.True(t, time.Now().Before(limit), "%+v", s.DRADriver)
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(6 * time.Second) // longer than the time for claims on the way
	n.waitKept("2", 0, 1, 2, 3)
	setDown(false)
	n.waitDevices("none", count(0))
	n.waitKept("2")
}
