package main

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// label writes the node's label as the validator does.
func (n *node) label(value string) {
	n.t.Helper()
	boot, err := nodestate.BootIDAt(filepath.Join(n.dir, "host"))
	require.NoError(n.t, err)
	require.NoError(n.t, nodestate.Write(filepath.Join(n.dir, "host/state/validator"), nodestate.State{
		Component: nodestate.Validator, BootID: boot, Phase: nodestate.Ready, Validator: &nodestate.ValidatorInfo{NodeLabels: map[string]string{}, Serve: value}}))
}

// waitServe waits until the device plugin's state has who offers the GPUs, and what is withheld is as wanted.
func (n *node) waitServe(by string, wanted func([]nodestate.Withheld) bool) *nodestate.DevicePluginInfo {
	n.t.Helper()
	boot, err := nodestate.BootIDAt(filepath.Join(n.dir, "host"))
	require.NoError(n.t, err)
	limit := time.Now().Add(time.Minute)
	for {
		s, err := nodestate.ReadBoot(filepath.Join(n.dir, "host/state/deviceplugin"), boot)
		if err == nil && s.DevicePlugin != nil && s.DevicePlugin.Serve == by && wanted(s.DevicePlugin.Withheld) {
			return s.DevicePlugin
		}
		require.True(n.t, time.Now().Before(limit), "%v: %+v", err, s.DevicePlugin)
		time.Sleep(20 * time.Millisecond)
	}
}

func withheldFor(reason string, devices int) func([]nodestate.Withheld) bool {
	return func(all []nodestate.Withheld) bool {
		for _, w := range all {
			if string(w.Reason) != reason {
				return false
			}
		}
		return len(all) == devices
	}
}

// A node goes to the device plugin and back while a claim holds a partition, with the real programs of both
// sides.
func TestANodeIsSwitchedWhileAClaimHoldsAPartition(t *testing.T) {
	t.Parallel()
	n := newMIGNode(t, "h100-sxm", "")
	n.startDevicePlugin()
	n.start("pod-1")
	client := n.register(t, "pod-1")
	n.waitPartitions()
	held, late := n.claim("held", fmt.Sprintf(small, 3)), n.claim("late", fmt.Sprintf(small, 0), "gpu-1")
	before, refusal, err := prepare(t.Context(), client, held)
	require.NoError(t, err)
	require.Empty(t, refusal)
	n.waitStarts("it exists", 3)

	n.label(nodestate.ServePlugin)
	n.waitDevices("all are withdrawn", count(0))
	info := n.waitServe(nodestate.ServePlugin, withheldFor("HeldByClaim", 2))
	require.Equal(t, info.Inventory[0].MIG[0].UUID, info.Withheld[1].GPU, "the MIG device, with its GPU; the other GPU is released")
	_, refusal, err = prepare(t.Context(), client, late)
	require.NoError(t, err)
	require.Contains(t, refusal, "device gpu-1 is not offered now: ServedByDevicePlugin")
	again, refusal, err := prepare(t.Context(), client, held)
	require.NoError(t, err)
	require.Equal(t, before, again, refusal)

	n.label(nodestate.ServeDRA)
	n.waitServe(nodestate.ServeDRA, withheldFor("", 0))
	n.waitDevices("all are published", func(devices map[string]resourceapi.Device) bool {
		_, whole := devices["gpu-1"]
		return whole && len(devices[large].ConsumesCounters) == 1 && untaintedAll(devices)
	})
	_, refusal, err = prepare(t.Context(), client, late)
	require.NoError(t, err)
	require.Empty(t, refusal)

	n.label(nodestate.ServePlugin)
	n.waitServe(nodestate.ServePlugin, withheldFor("HeldByClaim", 4))
	for _, c := range []string{"held", "late"} {
		refusal, err = unprepare(t.Context(), client, n.claim(c))
		require.NoError(t, err)
		require.Empty(t, refusal)
	}
	n.waitServe(nodestate.ServePlugin, withheldFor("", 0))
}
