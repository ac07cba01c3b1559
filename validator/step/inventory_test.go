package step

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

func TestANodeServedByDRAIsComparedWithItsInventory(t *testing.T) {
	served := func(t *testing.T) *pluginTestNode {
		n := newNode(t)
		var inventory []nodestate.GPU
		for i := range 3 {
			inventory = append(inventory, nodestate.GPU{UUID: n.driver.GPUs[i].UUID, Index: i, Minor: i, Condition: nodestate.Condition{Health: nodestate.Healthy}})
		}
		n.state.DevicePlugin = &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA, Inventory: inventory}
		held, err := nodestate.Hold(n.StatePath(nodestate.DevicePlugin))
		require.NoError(t, err)
		n.end = func() { _ = held.Close() }
		boot := n.BootID
		require.NoError(t, nodestate.Write(n.StatePath(nodestate.DRADriver), nodestate.State{Component: nodestate.DRADriver, BootID: boot, Phase: nodestate.Ready, DRADriver: &nodestate.DRADriverInfo{Serve: nodestate.ServeDRA}}))
		driver, err := nodestate.Hold(n.StatePath(nodestate.DRADriver))
		require.NoError(t, err)
		n.endDriver = func() { _ = driver.Close() }
		t.Cleanup(n.endDriver)
		t.Cleanup(n.end)
		return n
	}
	o := served(t).check(t)
	require.Equal(t, check.Passed, o.Kind, o)
	require.Contains(t, o.Notes[0], "no pod with a claim has been run")
	require.Equal(t, 3, o.Proof.GPUs)

	sick := served(t)
	sick.state.DevicePlugin.Inventory[1].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79"}
	o = sick.check(t)
	require.Equal(t, check.Passed, o.Kind)
	require.Equal(t, 2, o.Proof.GPUs)
	require.Contains(t, o.Notes[1], "has a taint: XID: XID 79")

	broken := served(t)
	broken.state.DevicePlugin.Inventory[1].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID}
	broken.state.DevicePlugin.LeftOut = []nodestate.LeftOutDevice{{GPU: broken.driver.GPUs[1].UUID, Reason: "Excluded"}}
	o = broken.check(t)
	require.Equal(t, 2, o.Proof.GPUs)
	require.Contains(t, o.Notes[1], "is not offered: the configuration leaves it out")

	require.Empty(t, o.Holders)
	sick.kubelet.Claimed = map[gpu.UUID][]string{sick.driver.GPUs[1].UUID: {"team/train", "team/eval"}}
	o = sick.check(t)
	require.Equal(t, []string{"team/eval", "team/train"}, o.Holders[sick.driver.GPUs[1].UUID])
	require.False(t, o.HoldersTime.IsZero())
	require.True(t, o.Retry, "nothing tells when the pods have ended")
	sick.err = errors.New("connection refused")
	o = sick.check(t)
	require.Equal(t, check.Passed, o.Kind, "claims do not need it")
	require.Zero(t, o.HoldersTime)

	partitioned := served(t) // its partitions come and go with claims, faster than the driver is read
	partitioned.state.DevicePlugin.MIG = nodestate.MIGDynamic
	require.NoError(t, nodestate.Write(partitioned.StatePath(nodestate.DevicePlugin), partitioned.state))
	require.True(t, PartitionsOnDemand(partitioned.Node))
	partitioned.driver.OnDemand, partitioned.driver.GPUs[0].MIGEnabled = true, true
	partitioned.state.DevicePlugin.Inventory[0].MIGEnabled = true
	partitioned.state.DevicePlugin.Inventory[0].MIG = []nodestate.MIGDevice{{UUID: "MIG-0", Condition: nodestate.Condition{Health: nodestate.Healthy}}}
	o = partitioned.check(t)
	require.Equal(t, check.Passed, o.Kind, o)
	require.Equal(t, 3, o.Proof.GPUs)
	// A tenant's program has made its own partition fault.
	partitioned.state.DevicePlugin.Inventory[0].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID}
	partitioned.state.DevicePlugin.Inventory[0].Whole = &nodestate.Condition{Health: nodestate.Healthy}
	require.Equal(t, 3, partitioned.check(t).Proof.GPUs)

	for name, c := range map[string]struct {
		change func(*pluginTestNode)
		reason gpu.Reason
	}{
		"one is missing":     {func(n *pluginTestNode) { n.state.DevicePlugin.Inventory = n.state.DevicePlugin.Inventory[1:] }, ReasonAllocatableDiffers},
		"one is too many":    {func(n *pluginTestNode) { n.driver.GPUs = n.driver.GPUs[1:] }, ReasonAllocatableDiffers},
		"the driver objects": {func(n *pluginTestNode) { n.driver.GPUs[0].Fault = gpu.Fault{Reason: gpu.ReasonLost} }, ReasonAllocatableDiffers},
		"it waits":           {func(n *pluginTestNode) { n.state.Phase, n.state.Reason = nodestate.Waiting, "NoDriver" }, "NoDriver"},
		"none is healthy": {func(n *pluginTestNode) {
			for i := range n.state.DevicePlugin.Inventory {
				n.state.DevicePlugin.Inventory[i].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID}
			}
		}, reasonNothingAllocatable},
		"all is withheld": {func(n *pluginTestNode) {
			for _, g := range n.state.DevicePlugin.Inventory {
				n.state.DevicePlugin.Withheld = append(n.state.DevicePlugin.Withheld, nodestate.Withheld{GPU: g.UUID, Reason: "HeldByPod"})
			}
		}, reasonNothingAllocatable},
		"gpu-dra-driver was killed":    {func(n *pluginTestNode) { n.endDriver() }, reasonDRADriverSilent},
		"gpu-dra-driver is not so far": {func(n *pluginTestNode) { n.state.DevicePlugin.SwitchID = "later" }, reasonDRADriverWaiting},
		"it was killed":                {func(n *pluginTestNode) { n.end() }, reasonPluginSilent},
		"it has stopped":               {func(n *pluginTestNode) { n.state.Reason = reasonPluginStopped }, reasonPluginSilent},
	} {
		t.Run(name, func(t *testing.T) {
			n := served(t)
			c.change(n)
			o := n.check(t)
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, c.reason, o.NotReady.Reason)
		})
	}
}

// The kubelet offers the MIG devices that there are, so the driver's must be compared with them.
func TestMIGDevicesAreComparedWhereTheDevicePluginServes(t *testing.T) {
	n := newNode(t)
	n.state.DevicePlugin.Serve, n.state.DevicePlugin.MIG = nodestate.ServePlugin, nodestate.MIGDynamic
	require.Equal(t, check.Passed, n.check(t).Kind)
	require.False(t, PartitionsOnDemand(n.Node))
}
