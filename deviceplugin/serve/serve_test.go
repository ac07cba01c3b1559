package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

var (
	start   = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	devices = []Device{{UUID: "GPU-0"}, {UUID: "GPU-1"}, {UUID: "MIG-a", Parent: "GPU-1"}, {UUID: "MIG-b", Parent: "GPU-1"}}
)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// reasons returns the withheld devices with their reasons.
func reasons(s State, when time.Time) map[gpu.UUID]gpu.Reason {
	all := map[gpu.UUID]gpu.Reason{}
	for _, w := range s.Withheld(devices, nil, when) {
		all[w.GPU] = w.Reason
	}
	return all
}

func all(reason gpu.Reason) map[gpu.UUID]gpu.Reason {
	m := map[gpu.UUID]gpu.Reason{}
	for _, d := range devices {
		m[d.UUID] = reason
	}
	return m
}

func TestADeviceIsWithheldFromDRAWhileAPodHoldsItOrAnOverlappingOne(t *testing.T) {
	s := New("plugin", "", nil, false, "1").Follow("dra", "2")
	require.True(t, s.Draining())
	require.False(t, s.Advertises())
	require.Equal(t, "plugin", s.Current, "the kubelet was not sent the empty lists yet")
	s = s.ListsSent("3")
	require.Equal(t, "dra", s.Current)
	require.Equal(t, all(ReasonUnknown), reasons(s, at(0)))
	s = s.WithAccount(Account{Err: errors.New("the kubelet is away")})
	require.Equal(t, all(ReasonUnknown), reasons(s, at(0)))
	s = s.WithAccount(Account{Began: at(1), Allocated: map[gpu.UUID]time.Time{"GPU-0": at(0)}, Holders: []Holder{{Resource: "nvidia.com/mig", UUID: "MIG-a", By: "pod team/a"}}})
	require.Equal(t, map[gpu.UUID]gpu.Reason{"GPU-0": ReasonHeldByPod, "GPU-1": ReasonHeldByPod, "MIG-a": ReasonHeldByPod}, reasons(s, at(1)), "MIG-b shares nothing with MIG-a")
	require.Equal(t, []string{"nvidia.com/mig"}, s.Resources())
	s = s.WithAccount(Account{Began: at(4), Allocated: map[gpu.UUID]time.Time{"GPU-0": at(0)}})
	require.Equal(t, map[gpu.UUID]gpu.Reason{}, reasons(s, at(4)), "no pod was seen with either for 3 s")
	require.False(t, s.NeedsAccount(s.Withheld(devices, nil, at(4))))
}

// A message without a namespace is shown to nobody: those that name no pod say so.
func TestWhoMaySeeWhyADeviceIsWithheld(t *testing.T) {
	s := New("plugin", "", nil, false, "1").Follow("dra", "2").ListsSent("3")
	show := func(namespace string) (shown []bool) {
		for _, w := range s.Withheld(devices[:2], nil, at(0)) {
			shown = append(shown, w.MayShow(namespace))
		}
		return shown
	}
	require.Equal(t, []bool{true, true}, show("team"), "it is not known who holds them")
	s = s.WithAccount(Account{Began: at(1), Allocated: map[gpu.UUID]time.Time{"GPU-0": at(1)}, Holders: []Holder{{UUID: "GPU-1", By: "pod team/a", Namespace: "team"}}})
	require.Equal(t, []bool{true, true}, show("team"))
	require.Equal(t, []bool{true, false}, show("other"))
	require.Equal(t, []bool{true, false}, show(""))
	s = s.WithAccount(Account{Began: at(1), Holders: []Holder{{UUID: "GPU-0", By: "a pod"}, {UUID: "GPU-1", By: "pod team/a", Namespace: "team"}, {UUID: "GPU-1", By: "pod b/b", Namespace: "b"}}})
	require.Equal(t, []bool{false, false}, show("team"))
	s = New("dra", "", &nodestate.DevicePluginInfo{Serve: "dra", SwitchID: "3", Withheld: []nodestate.Withheld{{GPU: "GPU-0", Reason: ReasonHeldByPod, Message: "held by pod team/a"}}}, true, "4")
	require.Equal(t, []bool{false}, show("team"), "an earlier version has written it")
}

func TestADeviceIsWithheldFromTheKubeletUntilTheDriverReleasesIt(t *testing.T) {
	s := New("dra", "", nil, false, "1").Follow("plugin", "2")
	require.True(t, s.Advertises())
	require.Equal(t, all(ReasonNoAnswer), reasons(s, at(0)))
	earlier := nodestate.DRADriverInfo{Serve: "plugin", SwitchID: "0"}
	require.Equal(t, all(ReasonNoAnswer), reasons(s.WithReport(&earlier, nil), at(0)), "that is an answer to another change")
	s = s.WithReport(&nodestate.DRADriverInfo{Serve: "plugin", SwitchID: "2", Kept: []nodestate.Withheld{{GPU: "GPU-1", Reason: "HeldByClaim", Message: "held by claim team/a"}}}, nil)
	held := map[gpu.UUID]gpu.Reason{"GPU-1": "HeldByClaim", "MIG-a": "HeldByClaim", "MIG-b": "HeldByClaim"}
	require.Equal(t, held, reasons(s, at(0)))
	dead := s.WithReport(nil, errors.New("its writer has ended"))
	require.Equal(t, held, reasons(dead, at(0)), "what was released stays so, and nothing else is")
	require.Contains(t, dead.Withheld(devices, nil, at(0))[0].Message, "held by claim team/a; since then nothing is known of gpu-dra-driver: its writer has ended; next: ")
	require.Empty(t, reasons(s.WithReport(&nodestate.DRADriverInfo{Serve: "plugin", SwitchID: "2"}, nil), at(0)))
}

// A node that was labelled by mistake, without the driver.
func TestADriverThatNeverRanHoldsNothing(t *testing.T) {
	s := New("dra", "", nil, false, "1").Follow("plugin", "2").WithReport(nil, fs.ErrNotExist)
	require.Equal(t, all(ReasonNoAnswer), reasons(s, at(0)))
	require.True(t, s.NeedsAccount(nil), "the kubelet may know of claims of NVIDIA's driver")
	require.Equal(t, all(ReasonNoAnswer), reasons(s.WithAccount(Account{Began: at(1), Claims: true}), at(1)))
	require.Empty(t, reasons(s.WithAccount(Account{Began: at(1)}), at(1)))
	again := New("dra", "plugin", &nodestate.DevicePluginInfo{Serve: "dra", SwitchID: "1", DRADriverSeen: true}, false, "2").WithReport(nil, fs.ErrNotExist).WithAccount(Account{Began: at(1)})
	require.Equal(t, all(ReasonNoAnswer), reasons(again, at(1)), "it has run, and its state was removed")
	upgraded := New("dra", "plugin", &nodestate.DevicePluginInfo{Serve: "dra"}, false, "2").WithReport(nil, fs.ErrNotExist).WithAccount(Account{Began: at(1)})
	require.Equal(t, all(ReasonNoAnswer), reasons(upgraded, at(1)), "a driver of the version before writes no state")
}

func TestAnUnknownLabelChangesNothing(t *testing.T) {
	for _, mode := range []string{"plugin", "dra"} {
		s := New(mode, "", nil, false, "1").Follow("DRA", "2")
		require.Equal(t, mode, s.Current)
		require.Equal(t, mode, s.Wanted)
		require.Contains(t, s.Refused, `the Node's label nvidia.com/gpu.serve is "DRA", and only plugin and dra are known; `+mode+" stays in force; next: ")
		require.Empty(t, s.Follow("", "3").Refused)
	}
}

func TestARestartGoesOnWhereItWas(t *testing.T) {
	record := func(s State) *nodestate.DevicePluginInfo {
		info := &nodestate.DevicePluginInfo{Serve: s.Current, SwitchID: s.ID, Withheld: s.Withheld(devices, nil, at(0))}
		if s.Wanted != s.Current {
			info.Wanted = s.Wanted
		}
		return info
	}
	fresh := New("plugin", "", nil, false, "1")
	require.Empty(t, reasons(fresh, at(0)), "claims were never served in this boot")
	require.Equal(t, all(ReasonNoAnswer), reasons(New("plugin", "", nil, true, "1"), at(0)), "the record is lost, and claims may have been served")
	require.Equal(t, "dra", New("plugin", "dra", nil, false, "1").Current)
	require.True(t, New("plugin", "dra", record(fresh), false, "2").Draining())

	toDRA := fresh.Follow("dra", "2").ListsSent("3").WithAccount(Account{Began: at(1), Holders: []Holder{{UUID: "GPU-0"}}})
	again := New("plugin", "dra", record(toDRA), false, "4")
	require.Equal(t, reasons(toDRA, at(1)), reasons(again, at(1)))
	require.Equal(t, "3", again.ID)
	require.True(t, again.NeedsAccount(nil))
	back := New("plugin", "", record(toDRA), false, "4") // the label was removed meanwhile
	require.Equal(t, all(ReasonNoAnswer), reasons(back, at(1)))
	kept := back.WithReport(&nodestate.DRADriverInfo{Serve: "plugin", SwitchID: "4", Kept: []nodestate.Withheld{{GPU: "GPU-0", Reason: "HeldByClaim"}}}, nil)
	require.Equal(t, map[gpu.UUID]gpu.Reason{"GPU-0": "HeldByClaim"}, reasons(New("plugin", "", record(kept), true, "5"), at(2)))
}

// world is a node on which pods come and go while who offers the GPUs changes: the device plugin is the
// real State, the kubelet and gpu-dra-driver are models that may be slow, restart, and read old files.
type world struct {
	t     *rapid.T
	now   time.Time
	ids   int
	label string

	plugin    State
	file      *nodestate.DevicePluginInfo // what the device plugin has written
	list      map[gpu.UUID]bool           // that the kubelet was sent
	allocated map[gpu.UUID]time.Time      // by the device plugin's process
	pods      map[gpu.UUID]bool           // devices that pods hold, by the kubelet's account
	driver    nodestate.DRADriverInfo     // what the driver has written; it has followed Serve and SwitchID
	offered   map[gpu.UUID]bool           // in the slices
	claims    map[gpu.UUID]bool           // devices of prepared claims
}

func (w *world) id() string { w.ids++; return fmt.Sprint(w.ids) }

// write writes the state file, as the device plugin does after each fact.
func (w *world) write() {
	withheld := w.plugin.Withheld(devices[:2], nil, w.now)
	w.file = &nodestate.DevicePluginInfo{Serve: w.plugin.Current, SwitchID: w.plugin.ID, Withheld: withheld}
	if w.plugin.Wanted != w.plugin.Current {
		w.file.Wanted = w.plugin.Wanted
	}
}

func (w *world) isWithheld(id gpu.UUID) bool {
	for _, x := range w.plugin.Withheld(devices[:2], nil, w.now) {
		if x.GPU == id {
			return true
		}
	}
	return false
}

// allocate is the kubelet's: it may have an old list, and asks the device plugin.
func (w *world) allocate(id gpu.UUID) {
	if !w.list[id] || w.pods[id] || !w.plugin.Advertises() || w.isWithheld(id) {
		return
	}
	w.allocated[id], w.pods[id] = w.now, true
	w.check(id)
}

// prepare is the driver's: only what it offers, or has not released, while it has followed the file.
func (w *world) prepare(id gpu.UUID) {
	kept := false
	for _, k := range w.driver.Kept {
		kept = kept || k.GPU == id
	}
	if w.driver.Serve == "dra" && w.offered[id] || w.driver.Serve == "plugin" && kept {
		w.claims[id] = true
		w.check(id)
	}
}

func (w *world) check(id gpu.UUID) {
	if w.pods[id] && w.claims[id] {
		w.t.Fatalf("%s is held by a pod and by a claim", id)
	}
}

// follow is the driver's: it acts on the file as it is now.
func (w *world) follow() {
	same := w.driver.Serve == w.file.Serve && w.driver.SwitchID == w.file.SwitchID
	if same && w.file.Serve == "plugin" {
		return
	}
	if w.file.Serve == "dra" {
		if !same {
			w.driver = nodestate.DRADriverInfo{Serve: "dra", SwitchID: w.file.SwitchID}
		}
		w.offered = map[gpu.UUID]bool{}
		withheld := map[gpu.UUID]bool{}
		for _, x := range w.file.Withheld {
			withheld[x.GPU] = true
		}
		for _, d := range devices[:2] {
			if w.offered[d.UUID] = !withheld[d.UUID]; w.offered[d.UUID] || w.claims[d.UUID] {
				w.driver.Kept = append(w.driver.Kept, nodestate.Withheld{GPU: d.UUID, Reason: "ClaimsOnTheWay"})
			}
		}
		return
	}
	w.driver.Serve, w.driver.SwitchID, w.offered = "plugin", w.file.SwitchID, nil
}

func (w *world) release() {
	if w.driver.Serve != "plugin" {
		return
	}
	var kept []nodestate.Withheld
	for _, k := range w.driver.Kept {
		if w.claims[k.GPU] {
			kept = append(kept, k)
		}
	}
	w.driver.Kept = kept
}

func (w *world) account() {
	a := Account{Began: w.now, Allocated: maps.Clone(w.allocated)}
	for id := range w.pods {
		if w.pods[id] {
			a.Holders = append(a.Holders, Holder{Resource: "nvidia.com/gpu", UUID: id, By: "pod"})
		}
	}
	w.plugin = w.plugin.WithAccount(a)
}

// report delivers the driver's state, as it is or as it was.
func (w *world) report(old bool) {
	info := w.driver
	if old {
		info.SwitchID, info.Kept = "0", nil
	}
	w.plugin = w.plugin.WithReport(&info, nil)
}

func (w *world) step(action int, id gpu.UUID) {
	switch action {
	case 0:
		w.label = []string{"plugin", "dra", "", "other"}[w.ids%4]
		w.plugin = w.plugin.Follow(w.label, w.id())
	case 1:
		if w.plugin.Draining() { // the kubelet has the empty list now
			w.list = map[gpu.UUID]bool{}
			w.plugin = w.plugin.ListsSent(w.id())
		}
	case 2:
		w.account()
	case 3:
		w.report(false)
	case 4:
		w.report(true)
	case 5: // the device plugin is killed before or after it has written its state
		w.plugin, w.allocated = New("plugin", w.label, w.file, true, w.id()), map[gpu.UUID]time.Time{}
	case 6:
		w.follow()
	case 7:
		w.release()
	case 8:
		w.allocate(id)
	case 9:
		delete(w.pods, id)
	case 10:
		w.prepare(id)
	case 11:
		delete(w.claims, id)
	case 12: // the kubelet gets the list
		w.list = map[gpu.UUID]bool{}
		for _, d := range devices[:2] {
			w.list[d.UUID] = w.plugin.Advertises() && !w.isWithheld(d.UUID)
		}
	case 13:
		w.write()
	}
	w.now = w.now.Add(time.Second)
}

func TestNothingIsGivenTwiceInAnyOrderOfEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, now: start, plugin: New("plugin", "", nil, false, "0"), list: map[gpu.UUID]bool{}, allocated: map[gpu.UUID]time.Time{}, pods: map[gpu.UUID]bool{}, claims: map[gpu.UUID]bool{}}
		w.write()
		for range 300 {
			w.step(rapid.IntRange(0, 13).Draw(t, "action"), devices[rapid.IntRange(0, 1).Draw(t, "device")].UUID)
		}
		// Whatever has happened: when pods have ended and all listen, everything is offered by one.
		w.pods, w.claims = map[gpu.UUID]bool{}, map[gpu.UUID]bool{}
		for range 10 {
			for _, action := range []int{1, 13, 6, 7, 3, 2, 13} {
				w.step(action, "")
			}
		}
		if left := w.plugin.Withheld(devices[:2], nil, w.now); len(left) > 0 {
			t.Fatalf("%s offers, and %+v stays withheld", w.plugin.Current, left)
		}
	})
}
