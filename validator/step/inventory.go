package step

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// servedByDRA returns the device plugin's state, and whether gpu-dra-driver offers the GPUs in it as
// claims. The kubelet then has no resource nvidia.com/gpu to compare with the driver.
func servedByDRA(node check.Node) (nodestate.State, bool) {
	s, err := node.State(nodestate.DevicePlugin)
	return s, err == nil && s.Reason != reasonPluginStopped && s.DevicePlugin != nil && s.DevicePlugin.Serve == nodestate.ServeDRA
}

// PartitionsOnDemand reports whether MIG devices are created when claims ask for them. That needs DRA:
// the device plugin itself offers only MIG devices that exist, whatever --mig says.
func PartitionsOnDemand(node check.Node) bool {
	s, err := node.State(nodestate.DevicePlugin)
	return err == nil && s.DevicePlugin != nil && s.DevicePlugin.MIG == nodestate.MIGDynamic && s.DevicePlugin.Serve == nodestate.ServeDRA
}

// checkInventory compares the inventory with the devices that the NVIDIA driver sees. The device plugin,
// which watches the GPUs, writes the inventory into its state, and gpu-dra-driver publishes it. No
// ResourceSlice and no claim is tested; a note of the passed check says so.
func checkInventory(node check.Node, driver check.Driver, s nodestate.State) check.Outcome {
	// The kubelet withdraws resources when the device plugin ends. ResourceSlices stay, so ask whether it runs.
	if err := nodestate.CheckHeld(node.StatePath(nodestate.DevicePlugin)); err != nil {
		return check.Fail(reasonPluginSilent, "gpu-device-plugin does not run, so that nobody watches the GPUs: "+err.Error(), startAction)
	}
	if s.Phase != nodestate.Ready && s.Phase != nodestate.Degraded {
		return check.Fail(cmp.Or(s.Reason, reasonPluginNotRegistered), fmt.Sprintf("the device plugin has no inventory for gpu-dra-driver; it says %s: %s", s.Phase, s.Message),
			pluginAction(s, "see the log of gpu-device-plugin"))
	}
	if failed, ok := checkDRADriver(node, s); !ok {
		return failed
	}
	faults := driverDevices(driver) // every device that the driver sees, with its fault or ""
	withheld := map[gpu.UUID]nodestate.Withheld{}
	for _, w := range s.DevicePlugin.Withheld {
		withheld[w.GPU] = w
	}
	excluded := s.DevicePlugin.Excluded()
	healthy, listed := 0, map[gpu.UUID]bool{}
	notes := []string{"offered by gpu-dra-driver: no pod with a claim has been run to prove it"}
	var differences []string
	compare := func(id, parent gpu.UUID, c nodestate.Condition) {
		listed[id] = true
		switch fault, known := faults[id]; {
		case excluded[id] || excluded[parent]:
			notes = append(notes, fmt.Sprintf("%s is not offered: the configuration leaves it out", id))
		case withheld[id].Reason != "":
			notes = append(notes, fmt.Sprintf("%s is withheld: %s: %s", id, withheld[id].Reason, withheld[id].Message))
		case c.Health != nodestate.Healthy:
			notes = append(notes, fmt.Sprintf("%s has a taint: %s: %s", id, c.Reason, c.Message))
		case !known:
			differences = append(differences, fmt.Sprintf("the inventory has %s, which the driver does not see", id))
		case fault != "":
			differences = append(differences, fmt.Sprintf("the inventory has %s as healthy, but the driver says %s", id, fault))
		default:
			healthy++
		}
	}
	for _, g := range s.DevicePlugin.Inventory {
		if !g.MIGEnabled || driver.OnDemand {
			compare(g.UUID, "", g.WholeCondition()) // it is offered as a whole, or is partitioned by claims
			continue
		}
		for _, m := range g.MIG {
			compare(m.UUID, g.UUID, m.Condition)
		}
	}
	for _, u := range driver.Units() {
		if !listed[u.UUID] {
			differences = append(differences, fmt.Sprintf("the driver sees %s that the inventory lacks", u.Name))
		}
	}
	switch {
	case len(differences) > 0:
		return check.Fail(ReasonAllocatableDiffers, strings.Join(differences, "; "), "see the log of gpu-device-plugin")
	case healthy == 0:
		return check.Fail(reasonNothingAllocatable, "no GPU can be claimed: "+strings.Join(notes, "; "), "see why each GPU has a taint, is withheld or is left out")
	}
	return check.NewPass(readiness.Proof{
		Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: healthy,
		Summary: fmt.Sprintf("%s for gpu-dra-driver", countOf(healthy, "device")),
	}, notes...)
}

// withHolders returns the outcome with the pods that hold the devices, if the kubelet tells: nobody is refused a
// GPU because it does not.
func withHolders(ctx context.Context, node check.Node, plugin nodestate.DevicePluginInfo, ask readAccount, o check.Outcome) check.Outcome {
	asked := time.Now()
	account, err := ask(ctx, node.Root.Path(node.PodResources))
	if err != nil {
		return o
	}
	o.Holders, o.HoldersTime = account.holders(plugin), asked
	// No event tells that the pod of a broken device has ended.
	o.Retry = o.Retry || slices.ContainsFunc(plugin.Devices(), func(d nodestate.Device) bool {
		return d.Health == nodestate.Unhealthy && len(o.Holders[d.GPU]) > 0
	})
	return o
}

// Reasons of a node whose GPUs gpu-dra-driver is to offer, and does not.
const (
	reasonDRADriverSilent  gpu.Reason = "DRADriverSilent"
	reasonDRADriverWaiting gpu.Reason = "DRADriverWaiting"
)

// checkDRADriver checks that gpu-dra-driver runs, and has followed the device plugin's state s. If not, it
// returns the failure and false.
func checkDRADriver(node check.Node, s nodestate.State) (failed check.Outcome, ok bool) {
	const action = "start gpu-dra-driver on this node (DaemonSet gpu-dra-driver), or label the Node " + nodestate.ServeLabel + "=" + nodestate.ServePlugin
	dra, err := node.State(nodestate.DRADriver)
	if err == nil {
		err = nodestate.CheckHeld(node.StatePath(nodestate.DRADriver))
	}
	const waits = "gpu-dra-driver does not offer the GPUs yet: "
	switch {
	case err != nil:
		return check.Fail(reasonDRADriverSilent, "gpu-dra-driver does not run, so that no pod gets a GPU: "+err.Error(), action), false
	case dra.Phase != nodestate.Ready && dra.Phase != nodestate.Degraded:
		return check.Fail(reasonDRADriverWaiting, waits+dra.Message, "see the log of gpu-dra-driver"), false
	case dra.DRADriver == nil || dra.DRADriver.SwitchID != s.DevicePlugin.SwitchID:
		return check.Fail(reasonDRADriverWaiting, waits+"it has not followed the device plugin's latest state", "see the log of gpu-dra-driver"), false
	}
	return check.Outcome{}, true
}
