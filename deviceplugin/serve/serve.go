// Package serve decides who offers the node's GPUs to pods: the device plugin, as resources of the
// kubelet, or gpu-dra-driver, as devices in ResourceSlices. A node goes from one to the other under
// running pods. The package is pure: it is told facts, and returns what follows from them.
//
// From plugin to dra: the device plugin lists no device and refuses every allocation. When the kubelet
// has been sent that, Current becomes dra, with a new ID. A device stays withheld from gpu-dra-driver
// while the kubelet's account, or this plugin's own record of allocations, has a pod that holds it.
//
// From dra to plugin: Current becomes plugin at once, with a new ID. Every device stays withheld from
// the kubelet until gpu-dra-driver repeats that ID in its state; from then on those that it still keeps.
package serve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Reasons why a device is withheld, besides those of gpu-dra-driver's state.
const (
	ReasonHeldByPod gpu.Reason = "HeldByPod"         // a pod got it from the device plugin
	ReasonUnknown   gpu.Reason = "PodsUnknown"       // the kubelet has not said which devices pods hold
	ReasonNoAnswer  gpu.Reason = "DRADriverSilent"   // gpu-dra-driver has not said which devices claims hold
	ReasonRefused   gpu.Reason = "ServeLabelRefused" // the node's label has an unknown value
	ReasonDraining  gpu.Reason = "SwitchingToDRA"    // the kubelet has not been sent the empty lists yet
	ReasonWithheld  gpu.Reason = "DevicesWithheld"   // phase: nothing else is wrong
)

// settle is the time after which a device that no pod holds any more is free; see State.heldByPod.
const settle = 3 * time.Second

// maxNamed bounds the holders that a message names.
const maxNamed = 8

const (
	sinceThen      = "; since then nothing is known of gpu-dra-driver: "
	noAnswerText   = "gpu-dra-driver has not said which devices claims hold"
	noAnswerAction = "; next: see that the DaemonSet gpu-dra-driver runs on this node"
)

// Device is a GPU or MIG device of the node.
type Device struct {
	UUID   gpu.UUID
	Parent gpu.UUID // of a MIG device
}

// overlaps reports whether two devices share hardware.
func (d Device) overlaps(other Device) bool {
	return d.UUID == other.UUID || d.UUID == other.Parent || d.Parent == other.UUID
}

// Holder is a pod that holds a device of a resource of the kubelet.
type Holder struct {
	Resource  string
	UUID      gpu.UUID
	By        string // for people
	Namespace string // of the pod; "": not known
}

// Account is one reading of the devices that pods hold.
type Account struct {
	Began     time.Time              // of the reading
	Holders   []Holder               // by the kubelet
	Allocated map[gpu.UUID]time.Time // by this process: the last allocation of each device before Began
	Claims    bool                   // whether pods have claims of a driver of gpu-dra-driver's name
	Err       error                  // why it could not be read; then the other fields mean nothing
}

// State has who offers the GPUs, and which devices are withheld. With the zero State the device plugin
// offers all. A State is immutable: each method returns another one.
type State struct {
	Current string // who offers the devices that are not withheld
	Wanted  string // who is to offer them
	ID      string // of the latest change of Current in this boot; "": there was none
	Refused string // why the node's label is not followed; "": it is, or there is none
	Seen    bool   // gpu-dra-driver has run in this boot

	flag     string // what counts without a label
	account  Account
	read     bool                            // account is of the time since ID
	lastHeld map[gpu.UUID]time.Time          // by an account or an allocation
	restored map[gpu.UUID]nodestate.Withheld // of an earlier process, until read
	report   nodestate.DRADriverInfo         // the latest with SwitchID == ID
	absent   bool                            // gpu-dra-driver has written no state in this boot
	problem  string                          // why gpu-dra-driver's state cannot be used; "": it can
}

// New returns the State at the start of a process. label is the value of the node's label, as far as it
// is known; info is what an earlier process of this boot recorded, if anything. driverSeen reports that
// gpu-dra-driver has run in this boot: without a record, it may have given devices to claims. id is new.
func New(flag, label string, info *nodestate.DevicePluginInfo, driverSeen bool, id string) State {
	s := State{flag: flag, Seen: driverSeen}
	if info != nil {
		// Versions without a SwitchID where gpu-dra-driver serves have a driver that writes no state.
		s.Seen = s.Seen || info.DRADriverSeen || info.Serve == nodestate.ServeDRA && info.SwitchID == ""
		s.Current, s.ID, s.restored = cmp.Or(info.Serve, nodestate.ServePlugin), info.SwitchID, map[gpu.UUID]nodestate.Withheld{}
		s.report = nodestate.DRADriverInfo{Serve: s.Current, SwitchID: s.ID}
		for _, w := range info.Withheld {
			w.Message, _, _ = strings.Cut(w.Message, sinceThen)
			s.restored[w.GPU], s.report.Kept = w, append(s.report.Kept, w)
		}
		s.Wanted = cmp.Or(info.Wanted, s.Current)
		return s.Follow(label, id)
	}
	s.Current = flag
	if isKnown(label) {
		s.Current = label
	}
	if s.Wanted = s.Current; driverSeen || s.Current == nodestate.ServeDRA {
		s.ID = id
	}
	return s.Follow(label, id)
}

func isKnown(mode string) bool { return mode == nodestate.ServePlugin || mode == nodestate.ServeDRA }

// Advertises reports whether the device plugin lists devices for the kubelet.
func (s State) Advertises() bool {
	return s.Current != nodestate.ServeDRA && s.Wanted != nodestate.ServeDRA
}

// Draining reports whether the kubelet has still to be sent empty lists.
func (s State) Draining() bool {
	return s.Current != nodestate.ServeDRA && s.Wanted == nodestate.ServeDRA
}

// Follow returns the State after the node's label was read; "": it has none. A value that is not known
// changes nothing but Refused. id is used if Current changes.
func (s State) Follow(label, id string) State {
	s.Refused = ""
	if wanted := cmp.Or(label, s.flag); isKnown(wanted) {
		return s.follow(wanted, id)
	}
	s.Refused = fmt.Sprintf("the Node's label %s is %.80q, and only %s and %s are known; %s stays in force; next: kubectl gpu serve NODE %s",
		nodestate.ServeLabel, label, nodestate.ServePlugin, nodestate.ServeDRA, s.Wanted, s.Wanted)
	return s
}

func (s State) follow(wanted, id string) State {
	s.Wanted = wanted
	if wanted == nodestate.ServePlugin && s.Current == nodestate.ServeDRA {
		s.Current = nodestate.ServePlugin
		s.begin(id)
	}
	return s
}

// begin forgets what was known of the time before a change of Current.
func (s *State) begin(id string) {
	s.ID, s.read, s.restored, s.report, s.lastHeld, s.account = id, false, nil, nodestate.DRADriverInfo{}, nil, Account{}
}

// ListsSent returns the State after the kubelet has been sent empty lists, and no allocation is under
// way: gpu-dra-driver may offer what no pod holds.
func (s State) ListsSent(id string) State {
	if s.Draining() {
		s.Current = nodestate.ServeDRA
		s.begin(id)
	}
	return s
}

// WithAccount returns the State after a reading of the devices that pods hold.
func (s State) WithAccount(a Account) State {
	if a.Err != nil {
		s.account.Err = a.Err
		return s
	}
	held := maps.Clone(s.lastHeld)
	if held == nil {
		held = map[gpu.UUID]time.Time{}
	}
	for id, at := range a.Allocated {
		if at.After(held[id]) {
			held[id] = at
		}
	}
	for _, h := range a.Holders {
		held[h.UUID] = a.Began
	}
	s.account, s.read, s.lastHeld, s.restored = a, true, held, nil
	return s
}

// WithReport returns the State after gpu-dra-driver's state was read, or could not be. That of an
// earlier change is ignored. What the driver has released stays released if it ends. A driver that
// has not run in this boot has given no device to a claim: it writes its state before that.
func (s State) WithReport(info *nodestate.DRADriverInfo, err error) State {
	s.problem, s.absent = "", nodestate.IsAbsent(err)
	s.Seen = s.Seen || !s.absent
	if err != nil {
		s.problem = err.Error()
	}
	if info != nil && info.SwitchID == s.ID && info.Serve == s.Current {
		s.report = *info
	}
	return s
}

// NeedsAccount reports whether it must be read which devices pods hold, since some are withheld for that.
func (s State) NeedsAccount(withheld []nodestate.Withheld) bool {
	if s.Current != nodestate.ServeDRA {
		return s.ID != "" && s.absent && !s.Seen && (!s.read || s.account.Claims)
	}
	return !s.read || len(withheld) > 0
}

// Resources returns the resources of the devices that pods hold. While there are some, the device plugin
// stays registered for them, with an empty list: the kubelet then updates its record.
func (s State) Resources() []string {
	if s.Current != nodestate.ServeDRA {
		return nil
	}
	names := map[string]bool{}
	for _, h := range s.account.Holders {
		names[h.Resource] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Withheld returns those of the node's devices that nobody is offered. before is an earlier result,
// whose times are kept where the reason is the same.
func (s State) Withheld(devices []Device, before []nodestate.Withheld, at time.Time) []nodestate.Withheld {
	parents := map[gpu.UUID]gpu.UUID{}
	for _, d := range devices {
		parents[d.UUID] = d.Parent
	}
	var all []nodestate.Withheld
	for _, d := range devices {
		w, found := s.withhold(d, parents)
		if !found {
			continue
		}
		w.GPU, w.Parent, w.Since = d.UUID, d.Parent, at.UTC()
		if i := slices.IndexFunc(before, func(b nodestate.Withheld) bool { return b.GPU == d.UUID && b.Reason == w.Reason }); i >= 0 {
			w.Since = before[i].Since
		}
		all = append(all, w)
	}
	return all
}

// withhold returns why a device is withheld. parents are the GPUs of the MIG devices.
func (s State) withhold(d Device, parents map[gpu.UUID]gpu.UUID) (nodestate.Withheld, bool) {
	if s.Current == nodestate.ServeDRA {
		return s.heldByPod(d, parents)
	}
	switch {
	case s.ID == "":
		return nodestate.Withheld{}, false
	case s.report.SwitchID != s.ID && s.absent && !s.Seen && s.read && !s.account.Claims:
		return nodestate.Withheld{}, false
	case s.report.SwitchID != s.ID:
		text := noAnswerText
		if s.problem != "" {
			text += ": " + s.problem
		}
		return nodestate.Withheld{Reason: ReasonNoAnswer, Message: text + noAnswerAction}, true
	}
	for _, w := range s.report.Kept {
		if d.overlaps(Device{w.GPU, w.Parent}) {
			if s.problem != "" {
				w.Message += sinceThen + s.problem + noAnswerAction
			}
			return w, true
		}
	}
	return nodestate.Withheld{}, false
}

// heldByPod returns why a device is withheld from gpu-dra-driver. One that a pod has held is free when
// it was missing from the kubelet's account for a while: the kubelet may not have recorded an allocation
// yet, and forgets a pod that was deleted by force while its containers are being stopped.
func (s State) heldByPod(d Device, parents map[gpu.UUID]gpu.UUID) (nodestate.Withheld, bool) {
	if !s.read {
		if s.restored != nil {
			w, found := s.restored[d.UUID]
			return w, found
		}
		text := "it is not known yet which devices pods hold"
		if s.account.Err != nil {
			text += ": " + s.account.Err.Error() + "; next: see that the kubelet runs, and that its PodResources socket is mounted"
		}
		return nodestate.Withheld{Reason: ReasonUnknown, Message: text, Namespace: nodestate.NoNamespace}, true
	}
	var holders []string
	namespace := ""
	for _, h := range s.account.Holders {
		text := h.By + ", by the resource " + h.Resource
		if d.overlaps(Device{h.UUID, parents[h.UUID]}) && !slices.Contains(holders, text) {
			if holders = append(holders, text); len(holders) == 1 {
				namespace = h.Namespace
			}
			if h.Namespace == "" || h.Namespace != namespace {
				namespace = nodestate.SeveralNamespaces
			}
		}
	}
	if len(holders) > 0 {
		return nodestate.Withheld{Reason: ReasonHeldByPod, Message: joinHolders(holders), Namespace: namespace}, true
	}
	for id, at := range s.lastHeld {
		if d.overlaps(Device{id, parents[id]}) && s.account.Began.Sub(at) < settle {
			return nodestate.Withheld{Reason: ReasonHeldByPod, Message: "held by a pod until a moment ago", Namespace: nodestate.NoNamespace}, true
		}
	}
	return nodestate.Withheld{}, false
}

func joinHolders(all []string) string {
	text := "held by "
	for i, h := range all {
		switch {
		case i == maxNamed:
			return text + fmt.Sprintf(" and %d more", len(all)-i)
		case i > 0:
			text += "; "
		}
		text += h
	}
	return text
}
