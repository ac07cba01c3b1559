package step

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// Reasons of this layer, besides those of the device plugin itself.
const (
	reasonPluginSilent        gpu.Reason = "DevicePluginSilent"
	reasonPluginStateInvalid  gpu.Reason = "DevicePluginStateInvalid"
	reasonPluginNotRegistered gpu.Reason = "DevicePluginNotRegistered"
	reasonKubelet             gpu.Reason = "KubeletUnreachable"
	reasonNothingAllocatable  gpu.Reason = "NothingAllocatable"
	reasonAllocatableShort    gpu.Reason = "AllocatableShort"
	reasonAllocatableDiffers  gpu.Reason = "AllocatableDiffers"
)

// Account is the kubelet's account of the node's devices.
type Account struct {
	Allocatable map[string]map[string]bool   // device IDs by resource
	Allocated   map[string]map[string]string // the pod ("namespace/name") that holds a device, by resource and device ID
}

// readAccount reads the kubelet's account from its PodResources socket, a path of this process.
type readAccount func(ctx context.Context, socket string) (Account, error)

// Workload runs a pod to prove that a pod can use a GPU.
type Workload interface {
	// Prove adds the result of a pod that requests one of the resource free to accounts,
	// which is a pass. free is "" where pods hold all devices. It does not wait.
	Prove(driver check.Driver, accounts check.Outcome, free string) check.Outcome
	// Forget drops the last result.
	Forget()
}

// checkPlugin checks layer plugin: the kubelet offers to pods exactly the GPUs that the driver
// lists, except for those that the device plugin withholds with a reason. Where workload is
// not nil, a pod that requested a GPU must have run.
//
// It compares three accounts: the driver's, the device plugin's state, and the kubelet's,
// from its PodResources API. Each difference is named.
func checkPlugin(ctx context.Context, node check.Node, driver check.Driver, ask readAccount, workload Workload) check.Outcome {
	accounts, free := compareAccounts(ctx, node, driver, ask)
	switch {
	case accounts.Kind != check.Passed:
		if workload != nil && ctx.Err() == nil {
			workload.Forget()
		}
		return accounts
	case workload == nil:
		return accounts
	}
	proven := workload.Prove(driver, accounts, free)
	proven.Allocatable = accounts.Allocatable
	return proven
}

// compareAccounts is the first half of Check; free is a resource of which a pod could be
// allocated one now.
func compareAccounts(ctx context.Context, node check.Node, driver check.Driver, ask readAccount) (o check.Outcome, free string) {
	state, err := node.State(nodestate.DevicePlugin)
	if failed := pluginNotRegistered(state, err); failed != nil {
		return *failed, ""
	}
	a, err := waitForAgreement(ctx, node, driver, *state.DevicePlugin, ask)
	if err != nil {
		return check.Fail(reasonKubelet, fmt.Sprintf("the kubelet does not answer on %s: %v", node.PodResources, err),
			"see that the kubelet runs and that its pod-resources folder is mounted here (--pod-resources-socket)"), ""
	}
	if len(a.differences) > 0 && len(a.differences) == a.short {
		return check.Fail(reasonAllocatableShort, fmt.Sprintf("%s fewer can be allocated than the driver sees: %s", countDevices(a.short), strings.Join(a.differences, "; ")),
			"see the log of gpu-device-plugin, and of the kubelet, which takes a few seconds after a change"), ""
	}
	if len(a.differences) > 0 {
		return check.Fail(reasonAllocatableDiffers, strings.Join(a.differences, "; "),
			"see the log of gpu-device-plugin; the kubelet takes a few seconds after a change"), ""
	}
	resources, total := map[string]int{}, 0
	for _, r := range a.plugin.Resources {
		resources[r.Name] = len(a.kubelet.Allocatable[r.Name])
		total += resources[r.Name]
	}
	if total == 0 {
		return check.Fail(reasonNothingAllocatable, "no GPU can be allocated: "+strings.Join(a.notes, "; "), "see why each GPU is held back"), ""
	}
	o = check.NewPass(readiness.Proof{
		Driver: &driver.Info, HostRoot: node.Root.Dir(), DevRoot: driver.DevRoot, GPUs: total, Resources: resources,
		Summary: summarizeResources(resources, a.kubelet),
	}, a.notes...)
	o.Allocatable = maps.Clone(resources)
	return o, a.kubelet.Free(resources)
}

func countDevices(devices int) string {
	if devices == 1 {
		return "1 device"
	}
	return fmt.Sprintf("%d devices", devices)
}

// Free returns the first resource, by name, of which a device is free for a pod, or "". It counts
// as the scheduler does: a device that broke while a pod holds it is no longer allocatable, but
// still counts as requested.
func (k Account) Free(resources map[string]int) string {
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		if len(k.Allocatable[name]) > len(k.Allocated[name]) {
			return name
		}
	}
	return ""
}

// Held returns the sorted devices that a pod, "namespace/name", holds.
func (k Account) Held(pod string) []string {
	var ids []string
	for _, held := range k.Allocated {
		for id, by := range held {
			if by == pod {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// accounts holds the accounts of device plugin and kubelet, and their comparison with the
// driver's.
type accounts struct {
	plugin      nodestate.DevicePluginInfo
	kubelet     Account
	differences []string
	short       int // the number of differences that are missing devices
	notes       []string
}

// waitForAgreement compares the accounts until they agree, for up to node.Settle. The plugin reports a
// change to the kubelet and then writes its state, and no event shows when the kubelet has
// applied the change.
func waitForAgreement(ctx context.Context, node check.Node, driver check.Driver, plugin nodestate.DevicePluginInfo, ask readAccount) (accounts, error) {
	const first = 50 * time.Millisecond
	enough := time.Now().Add(node.Settle)
	for wait := first; ; wait *= 2 {
		kubelet, err := ask(ctx, node.Root.Path(node.PodResources))
		if err != nil {
			return accounts{}, err
		}
		a := accounts{plugin: plugin, kubelet: kubelet}
		a.differences, a.short, a.notes = compareDevices(driver, plugin, kubelet)
		if len(a.differences) == 0 || time.Now().Add(wait).After(enough) {
			return a, nil
		}
		select {
		case <-ctx.Done():
			return a, nil
		case <-time.After(wait):
		}
		state, err := node.State(nodestate.DevicePlugin)
		if pluginNotRegistered(state, err) != nil {
			return a, nil // another change follows
		}
		plugin = *state.DevicePlugin
	}
}

// pluginNotRegistered returns the failure shown by the device plugin's state; nil if it is registered.
func pluginNotRegistered(s nodestate.State, err error) *check.Outcome {
	switch {
	case nodestate.IsAbsent(err):
		return failed(reasonPluginSilent, "the device plugin has not said anything in this boot", "start gpu-device-plugin on this node (DaemonSet nvidia-device-plugin-daemonset)")
	case err != nil:
		return failed(reasonPluginStateInvalid, err.Error(), "restart gpu-device-plugin, which writes the file anew")
	case s.DevicePlugin == nil || !s.DevicePlugin.Registered:
		return failed(cmp.Or(s.Reason, reasonPluginNotRegistered), fmt.Sprintf("the device plugin is not registered with the kubelet; it says %s: %s", s.Phase, s.Message),
			"see the log of gpu-device-plugin and that the kubelet runs")
	}
	return nil
}

// compareDevices compares the devices of driver, device plugin and kubelet. It returns the
// differences, the number of differences that are missing devices, and notes about devices that are
// held back or left out for a stated reason.
func compareDevices(driver check.Driver, plugin nodestate.DevicePluginInfo, kubelet Account) (differences []string, short int, notes []string) {
	devices := driverDevices(driver)
	offered := map[gpu.UUID]bool{}
	for _, r := range plugin.Resources {
		healthy := map[string]bool{}
		for _, d := range r.Devices {
			offered[d.GPU] = true
			switch fault, known := devices[d.GPU]; {
			case !known && d.Health == nodestate.Healthy:
				differences = append(differences, fmt.Sprintf("the device plugin offers %s of %s, which the driver does not see", d.ID, r.Name))
			case d.Health == nodestate.Healthy && fault != "":
				differences = append(differences, fmt.Sprintf("the device plugin offers %s of %s, but the driver says %s", d.ID, r.Name, fault))
			case d.Health == nodestate.Unhealthy && d.Reason == "":
				differences = append(differences, fmt.Sprintf("the device plugin holds %s of %s back and does not say why", d.ID, r.Name))
			case d.Health == nodestate.Unhealthy:
				notes = append(notes, fmt.Sprintf("%s of %s is held back: %s: %s", d.ID, r.Name, d.Reason, d.Message))
			}
			if d.Health == nodestate.Healthy {
				for _, id := range d.IDs() {
					healthy[id] = true
				}
			}
		}
		for _, id := range missingFrom(healthy, kubelet.Allocatable[r.Name]) {
			short++
			differences = append(differences, fmt.Sprintf("the kubelet does not offer %s of %s, which the device plugin says is healthy", id, r.Name))
		}
		for _, id := range missingFrom(kubelet.Allocatable[r.Name], healthy) {
			differences = append(differences, fmt.Sprintf("the kubelet offers %s of %s, which the device plugin does not", id, r.Name))
		}
		for _, id := range slices.Sorted(maps.Keys(kubelet.Allocated[r.Name])) {
			if !healthy[id] {
				notes = append(notes, fmt.Sprintf("%s of %s is held by pod %s and is not healthy", id, r.Name, kubelet.Allocated[r.Name][id]))
			}
		}
	}
	left := map[gpu.UUID]bool{}
	for _, l := range plugin.LeftOut {
		left[l.GPU] = true
		notes = append(notes, fmt.Sprintf("%s is not advertised: %s: %s", l.GPU, l.Reason, l.Message))
	}
	for _, u := range driver.Units() {
		if left[u.UUID] || left[u.GPU.UUID] {
			continue
		}
		// If the plugin does not offer MIG devices separately they are offered with their GPU.
		if !offered[u.UUID] && !offered[u.GPU.UUID] {
			short++
			differences = append(differences, u.Name+" is seen by the driver and not by the device plugin")
		}
	}
	return differences, short, notes
}

// driverDevices returns the GPUs and MIG devices that the driver lists, with the fault of each, ""
// for none.
func driverDevices(driver check.Driver) map[gpu.UUID]string {
	all := map[gpu.UUID]string{}
	for _, g := range driver.GPUs {
		fault := ""
		if g.Fault != (gpu.Fault{}) {
			fault = g.Fault.String()
		}
		all[g.UUID] = fault
		for _, m := range g.MIG {
			all[m.UUID] = fault
		}
	}
	return all
}

// missingFrom returns the sorted elements of a that are not in b.
func missingFrom(a, b map[string]bool) []string {
	var out []string
	for id := range a {
		if !b[id] {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func summarizeResources(resources map[string]int, kubelet Account) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		parts = append(parts, fmt.Sprintf("%s: %d allocatable, %d allocated", name, resources[name], len(kubelet.Allocated[name])))
	}
	return strings.Join(parts, ", ")
}
