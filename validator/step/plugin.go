package step

import (
	"cmp"
	"context"
	"errors"
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
	reasonPluginStopped       gpu.Reason = "DevicePluginStopped" // the device plugin's own
	reasonPluginStarting      gpu.Reason = "Starting"            // the device plugin's own
	reasonPluginRefused       gpu.Reason = "ConfigRefused"       // the device plugin's own
	reasonPluginStateInvalid  gpu.Reason = "DevicePluginStateInvalid"
	reasonPluginNotRegistered gpu.Reason = "DevicePluginNotRegistered"
	reasonKubelet             gpu.Reason = "KubeletUnreachable"
	reasonNothingAllocatable  gpu.Reason = "NothingAllocatable"
	// ReasonAllocatableShort and ReasonAllocatableDiffers: an account may be outdated, and no event
	// shows when it is renewed.
	ReasonAllocatableShort   gpu.Reason = "AllocatableShort"
	ReasonAllocatableDiffers gpu.Reason = "AllocatableDiffers"
)

// startAction is the action where the device plugin does not run.
const startAction = "start gpu-device-plugin on this node (DaemonSet nvidia-device-plugin-daemonset)"

// correctAction is the action where the device plugin refuses a setting, which its message names.
const correctAction = "correct that setting: a variable in devicePlugin.env of the ClusterPolicy or in the DaemonSet, " +
	"a field in the configuration file"

// Account is the kubelet's account of the node's devices.
type Account struct {
	Allocatable map[string]map[string]bool   // device IDs by resource
	Allocated   map[string]map[string]string // the pod ("namespace/name") that holds a device, by resource and device ID
	Claimed     map[gpu.UUID][]string        // the pods that hold a GPU or MIG device by claims
	claims      []podClaim                   // of which Claimed is made
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
	ask = leaveOutAdmin(node, ask)
	if state, is := servedByDRA(node); is {
		if workload != nil {
			workload.Forget()
		}
		return withHolders(ctx, node, *state.DevicePlugin, ask, checkInventory(node, driver, state))
	}
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
	proven.Allocatable, proven.Holders, proven.HoldersTime = accounts.Allocatable, accounts.Holders, accounts.HoldersTime
	proven.Retry = proven.Retry || accounts.Retry
	return proven
}

// compareAccounts is the first half of Check; free is a resource of which a pod could be
// allocated one now.
func compareAccounts(ctx context.Context, node check.Node, driver check.Driver, ask readAccount) (o check.Outcome, free string) {
	state, err := node.State(nodestate.DevicePlugin)
	if failed := pluginNotRegistered(state, err); failed != nil {
		failed.Away = absence(state, err)
		return *failed, ""
	}
	a, err := waitForAgreement(ctx, node, driver, *state.DevicePlugin, ask)
	if err != nil {
		return check.Fail(reasonKubelet, fmt.Sprintf("the kubelet does not answer on %s: %v", node.PodResources, err),
			"see that the kubelet runs and that its pod-resources folder is mounted here (--pod-resources-socket)"), ""
	}
	defer func() { o.Holders, o.HoldersTime = a.kubelet.holders(a.plugin), a.time }()
	if len(a.differences) > 0 && a.others == 0 {
		o = check.Fail(ReasonAllocatableShort, fmt.Sprintf("%s fewer can be allocated than the driver sees: %s", countOf(a.short, "device"), strings.Join(a.differences, "; ")),
			"see the log of gpu-device-plugin, and of the kubelet, which takes a few seconds after a change")
		o.Away = check.Waiting
		return o, ""
	}
	if len(a.differences) > 0 {
		o = check.Fail(ReasonAllocatableDiffers, strings.Join(a.differences, "; "),
			"see the log of gpu-device-plugin; the kubelet takes a few seconds after a change")
		o.Away = check.Waiting
		return o, ""
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
	o.Retry = a.isBrokenHeld() // no event tells that the pod has ended
	return o, a.kubelet.Free(resources)
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

// holders returns the sorted pods that hold each GPU and MIG device: those that the device plugin offers, and any
// by claims.
func (k Account) holders(plugin nodestate.DevicePluginInfo) map[gpu.UUID][]string {
	pods := map[gpu.UUID][]string{}
	for id, by := range k.Claimed {
		pods[id] = slices.Sorted(slices.Values(by))
	}
	for _, r := range plugin.Resources {
		held := k.Allocated[r.Name]
		if len(held) == 0 {
			continue
		}
		for _, d := range r.Devices {
			for _, id := range d.IDs() {
				if pod, ok := held[id]; ok && !slices.Contains(pods[d.GPU], pod) {
					pods[d.GPU] = append(pods[d.GPU], pod)
				}
			}
			slices.Sort(pods[d.GPU])
		}
	}
	return pods
}

// isBrokenHeld reports whether a pod holds a device that is unhealthy.
func (a accounts) isBrokenHeld() bool {
	holders := a.kubelet.holders(a.plugin)
	for _, r := range a.plugin.Resources {
		if slices.ContainsFunc(r.Devices, func(d nodestate.Device) bool { return d.Health == nodestate.Unhealthy && len(holders[d.GPU]) > 0 }) {
			return true
		}
	}
	return false
}

// accounts holds the accounts of device plugin and kubelet, and their comparison with the
// driver's.
type accounts struct {
	plugin      nodestate.DevicePluginInfo
	kubelet     Account
	time        time.Time // of the kubelet's
	differences []string
	short       int // the number of devices that are missing
	others      int // the number of other differences
	notes       []string
}

// waitForAgreement compares the accounts until they agree, for up to node.Settle. The plugin reports a
// change to the kubelet and then writes its state, and no event shows when the kubelet has
// applied the change.
func waitForAgreement(ctx context.Context, node check.Node, driver check.Driver, plugin nodestate.DevicePluginInfo, ask readAccount) (accounts, error) {
	const first = 50 * time.Millisecond
	enough := time.Now().Add(node.Settle)
	for wait := first; ; wait *= 2 {
		asked := time.Now()
		kubelet, err := ask(ctx, node.Root.Path(node.PodResources))
		if err != nil {
			return accounts{}, err
		}
		a := accounts{plugin: plugin, kubelet: kubelet, time: asked}
		a.differences, a.short, a.others, a.notes = compareDevices(driver, plugin, kubelet)
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
		return failed(reasonPluginSilent, "the device plugin has reported nothing since the node booted", startAction)
	case errors.Is(err, nodestate.ErrUnwritten):
		return unwritten("gpu-device-plugin", err)
	case err != nil:
		return failed(reasonPluginStateInvalid, err.Error(), "restart gpu-device-plugin, which writes the file anew")
	case s.Reason == reasonPluginStopped:
		return failed(reasonPluginSilent, s.Message, startAction+": its log, and the labels (nvidia.com/gpu.deploy.device-plugin) and taints of the node")
	case s.DevicePlugin == nil || !s.DevicePlugin.Registered:
		return failed(cmp.Or(s.Reason, reasonPluginNotRegistered), fmt.Sprintf("the device plugin is not registered with the kubelet; it says %s: %s", s.Phase, s.Message),
			pluginAction(s, "see the log of gpu-device-plugin and that the kubelet runs"))
	}
	return nil
}

// absence returns how far a device plugin that is not registered is from serving, if it may be being
// replaced.
func absence(s nodestate.State, err error) check.Absence {
	switch {
	case err != nil:
		return check.Present
	case s.Reason == reasonPluginStopped || s.Reason == reasonPluginStarting:
		return check.Stopped
	case s.Phase == nodestate.Waiting:
		return check.Waiting
	}
	return check.Present
}

// pluginAction returns the action for the reason of a device plugin that does not serve: correctAction
// for a refused setting, otherwise the given one.
func pluginAction(s nodestate.State, otherwise string) string {
	if s.Reason == reasonPluginRefused {
		return correctAction
	}
	return otherwise
}

// unwritten returns the failure of a component that cannot write its state. err is a
// nodestate.ErrUnwritten, which ends with what to do.
func unwritten(component string, err error) *check.Outcome {
	message, action := readiness.SplitAction(err.Error())
	return failed(nodestate.ReasonNotWritable, component+": "+message, action+"; the component then writes it by itself")
}

// compareDevices compares the devices of driver, device plugin and kubelet. It returns the
// differences, the number of devices that are missing, that of other differences, and notes about
// devices that are held back or left out for a stated reason.
func compareDevices(driver check.Driver, plugin nodestate.DevicePluginInfo, kubelet Account) (differences []string, short, others int, notes []string) {
	differ := func(format string, args ...any) {
		others++
		differences = append(differences, fmt.Sprintf(format, args...))
	}
	devices := driverDevices(driver)
	offered := map[gpu.UUID]bool{}
	for _, r := range plugin.Resources {
		healthy := map[string]bool{}
		for _, d := range r.Devices {
			offered[d.GPU] = true
			switch fault, known := devices[d.GPU]; {
			case !known && d.Health == nodestate.Healthy:
				differ("the device plugin offers %s of %s, which the driver does not see", d.ID, r.Name)
			case d.Health == nodestate.Healthy && fault != "":
				differ("the device plugin offers %s of %s, but the driver says %s", d.ID, r.Name, fault)
			case d.Health == nodestate.Unhealthy && d.Reason == "":
				differ("the device plugin holds %s of %s back and does not say why", d.ID, r.Name)
			case d.Health == nodestate.Unhealthy:
				notes = append(notes, fmt.Sprintf("%s of %s is held back: %s: %s", d.ID, r.Name, d.Reason, d.Message))
			}
			if d.Health == nodestate.Healthy {
				for _, id := range d.IDs() {
					healthy[id] = true
				}
			}
		}
		if ids := missingFrom(healthy, kubelet.Allocatable[r.Name]); len(ids) > 0 {
			short += len(ids)
			differences = append(differences, fmt.Sprintf("the kubelet does not offer %s of %s, healthy to the device plugin: %s", countOf(len(ids), "device"), r.Name, listSome(ids)))
		}
		if ids := missingFrom(kubelet.Allocatable[r.Name], healthy); len(ids) > 0 {
			differ("the kubelet offers %s of %s that the device plugin does not: %s", countOf(len(ids), "device"), r.Name, listSome(ids))
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
	var unseen []string
	for _, u := range driver.Units() {
		if left[u.UUID] || left[u.GPU.UUID] {
			continue
		}
		// If the plugin does not offer MIG devices separately they are offered with their GPU.
		if !offered[u.UUID] && !offered[u.GPU.UUID] {
			unseen = append(unseen, u.Name)
		}
	}
	if len(unseen) > 0 {
		short += len(unseen)
		differences = append(differences, fmt.Sprintf("the driver sees %s that the device plugin does not: %s", countOf(len(unseen), "device"), listSome(unseen)))
	}
	return differences, short, others, notes
}

// maxListed is the number of devices that a message names.
const maxListed = 3

// listSome lists the first devices, and counts the others.
func listSome(devices []string) string {
	if more := len(devices) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(devices[:maxListed], ", "), more)
	}
	return strings.Join(devices, ", ")
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
