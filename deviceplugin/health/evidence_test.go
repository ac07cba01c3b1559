package health_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// A record is one thing that happened, for whoever wants to check afterwards
// whether there was evidence.
type record struct {
	at      time.Time
	event   *gpu.Event    // heard
	seen    *gpu.Snapshot // or shown
	probe   *health.Probe // or tried
	deaf    bool          // or nothing is heard any more
	reload  bool          // and the driver is away
	hearing bool          // or it is heard again
}

// story is a node of two divided GPUs and what happened to it.
type story struct {
	now    time.Time
	health health.State
	told   []record
}

func newStory() *story {
	s := &story{now: now, health: health.New(gpu.Fault{})}
	s.see(divided)
	s.listen()
	return s
}

func (s *story) tell(r record) {
	r.at = s.now
	s.told = append(s.told, r)
}

func (s *story) see(snap gpu.Snapshot) {
	s.health = s.health.See(snap, s.now)
	s.tell(record{seen: &snap})
}

func (s *story) listen() {
	s.health = s.health.Watching(s.now)
	s.tell(record{hearing: true})
}

func (s *story) deafen(unloaded bool) {
	s.health = s.health.Blind(gpu.Fault{Reason: gpu.ReasonUnwatched}, unloaded, s.now)
	s.tell(record{deaf: true, reload: unloaded})
}

// restart is another process, which remembers by the file.
func (s *story) restart(t *rapid.T) {
	text, err := json.Marshal(file(s.health))
	require.NoError(t, err)
	read := nodestate.State{}
	require.NoError(t, json.Unmarshal(text, &read))
	s.health = health.Recall(read)
	s.deafen(false)
}

// step draws something that can happen.
func (s *story) step(t *rapid.T) {
	s.now = s.now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "minutes")) * time.Minute)
	d := divided.Devices[rapid.IntRange(0, 1).Draw(t, "gpu")]
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
		e := instance(d.UUID, rapid.SampledFrom([]int{-1, 1, 2, 4}).Draw(t, "gi"), rapid.SampledFrom([]int{-1, 0}).Draw(t, "ci"),
			rapid.SampledFrom([]uint64{13, 48, 63, 79, 94, 32, 151, 999}).Draw(t, "xid"))
		s.hear(e)
	case 2:
		kind := rapid.SampledFrom([]gpu.EventKind{gpu.EventECC, gpu.EventLost, gpu.EventChanged}).Draw(t, "kind")
		e := gputest.Event(kind, d.UUID, "said")
		e.Seen = kind == gpu.EventLost && rapid.Bool().Draw(t, "met")
		s.hear(e)
	case 3:
		snap := divided.Clone()
		snap.Devices[d.Index].Fault.Reason = rapid.SampledFrom([]gpu.Reason{gpu.ReasonLost, gpu.ReasonUnreadable, gpu.ReasonRowRemap, gpu.ReasonResetNeeded}).Draw(t, "fault")
		s.see(snap)
	case 4:
		snap := divided.Clone()
		snap.Devices = slices.Delete(snap.Devices, d.Index, d.Index+1)
		s.see(snap)
	case 5:
		s.deafen(rapid.Bool().Draw(t, "unloaded"))
		s.listen()
	case 6:
		snap := divided.Clone()
		snap.Driver.Version = rapid.SampledFrom([]string{divided.Driver.Version, "600.1"}).Draw(t, "driver")
		s.see(snap)
	case 7:
		s.restart(t)
		s.see(divided)
		s.listen()
	case 8:
		for _, id := range s.health.Due(s.now) {
			s.try(health.Probe{ID: id, Began: s.now, Passed: rapid.Bool().Draw(t, "passed")})
		}
		s.see(divided)
	default:
		// One that nobody asked for, and that may be old.
		began := s.now.Add(-time.Duration(rapid.IntRange(0, 6).Draw(t, "ago")) * time.Minute)
		s.try(health.Probe{ID: rapid.SampledFrom(parts(d)).Draw(t, "tried"), Began: began, Passed: true})
		s.see(divided)
	}
}

func (s *story) hear(e gpu.Event) {
	s.health = s.health.Hear(e, s.now)
	s.tell(record{event: &e})
}

func (s *story) try(p health.Probe) {
	s.health = s.health.Probed(p, s.now)
	s.tell(record{probe: &p})
}

// evident says whether the story has evidence that what an event, told[i], did
// to a part of a GPU is over. It is written from what the package says it takes,
// and knows nothing of how that is kept.
func (s *story) evident(i int, d gpu.Device, recovery gpu.Recovery) bool {
	proven := false
	driver := ""
	for j, r := range s.told {
		switch {
		case r.seen != nil:
			now, there := r.seen.Device(d.UUID)
			reloaded := driver != "" && r.seen.Driver.Version != driver
			driver = r.seen.Driver.Version
			if j <= i {
				continue
			}
			switch now.Fault.Reason {
			case gpu.ReasonLost, gpu.ReasonResetNeeded:
				proven = proven || recovery != gpu.RecoveryNever
			}
			proven = proven || reloaded || !there && recovery != gpu.RecoveryNever
			if proven && there && now.Fault.Reason == "" {
				return true
			}
		case j >= i && r.event != nil && r.event.Seen && r.event.UUID == d.UUID:
			proven = proven || recovery != gpu.RecoveryNever
		case j > i && r.reload:
			proven = true
		case j > i && r.probe != nil && r.probe.Passed && recovery == gpu.RecoveryQuiet:
			proven = proven || slices.Contains(parts(d), r.probe.ID) && s.quiet(i, j)
		}
	}
	return false
}

// quiet says whether there was a while between an event and a probe in which
// somebody listened.
func (s *story) quiet(i, j int) bool {
	begin := s.told[i].at
	for _, r := range s.told[:j] {
		if r.hearing && r.at.After(begin) {
			begin = r.at
		}
	}
	return s.told[j].probe.Began.Sub(begin) >= health.DefaultQuiet
}

func TestNothingIsHealthyWithoutEvidence(t *testing.T) {
	policy := health.DefaultPolicy()
	rapid.Check(t, func(t *rapid.T) {
		s := newStory()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			s.step(t)
			wrong := held(s.health, divided)
			for i, r := range s.told {
				if r.event == nil {
					continue
				}
				rule := health.Rule{Action: gpu.ActionUnhealthy, Recovery: gpu.RecoveryReset}
				switch r.event.Kind {
				case gpu.EventXID:
					rule = policy.Rule(r.event.XID)
				case gpu.EventChanged:
					continue
				}
				d, _ := divided.Device(r.event.UUID)
				if rule.Action == gpu.ActionIgnore || s.evident(i, d, rule.Recovery) {
					continue
				}
				for _, id := range concerned(*r.event, d) {
					if wrong[id] == "" {
						t.Fatalf("%s is healthy, and there is no evidence against %+v", id, *r.event)
					}
				}
			}
		}
	})
}

// concerned lists what an event makes unhealthy.
func concerned(e gpu.Event, d gpu.Device) []gpu.UUID {
	info, _ := gpu.XID(e.XID)
	ids := []gpu.UUID{d.UUID}
	for _, m := range d.MIG {
		if !info.Contained || e.GPUInstance < 0 || e.GPUInstance == m.GPUInstance {
			ids = append(ids, m.UUID)
		}
	}
	return ids
}

func TestANewProcessKnowsWhatTheOldOneKnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStory()
		for range rapid.IntRange(0, 12).Draw(t, "before") {
			s.step(t)
		}
		// Both begin to listen anew; from now on they see and hear the same.
		old := &story{now: s.now, health: s.health}
		old.deafen(false)
		s.restart(t)
		require.Equal(t, file(old.health).DevicePlugin.Faults, file(s.health).DevicePlugin.Faults)
		for _, p := range []*story{old, s} {
			p.see(divided)
			p.listen()
		}
		require.Equal(t, held(old.health, divided), held(s.health, divided))
		for range rapid.IntRange(1, 6).Draw(t, "after") {
			before := len(s.told)
			s.step(t)
			for _, r := range s.told[before:] {
				switch {
				case r.event != nil:
					old.health = old.health.Hear(*r.event, r.at)
				case r.seen != nil:
					old.health = old.health.See(*r.seen, r.at)
				case r.probe != nil:
					old.health = old.health.Probed(*r.probe, r.at)
				case r.hearing:
					old.health = old.health.Watching(r.at)
				case r.deaf:
					old.health = old.health.Blind(gpu.Fault{Reason: gpu.ReasonUnwatched}, r.reload, r.at)
				}
			}
			require.Equal(t, held(old.health, divided), held(s.health, divided))
			require.Equal(t, old.health.Due(s.now), s.health.Due(s.now))
			for _, id := range parts(divided.Devices[0]) {
				require.Equal(t, old.health.LetGo(id), s.health.LetGo(id))
			}
		}
	})
}

func TestTheStateBeforeIsNeverChanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStory()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			before := s.health
			faults, wrong := before.Faults(), held(before, divided)
			s.step(t)
			require.Equal(t, faults, before.Faults())
			require.Equal(t, wrong, held(before, divided))
		}
	})
}

// The plugin is upgraded within a boot: what the version before wrote is understood.
func TestWhatAnEarlierVersionRemembered(t *testing.T) {
	id, also := gputest.GPU(1), nodestate.Fault{GPU: gputest.GPU(1), Reason: gpu.ReasonMissing, Message: "seen out of service since", Since: now}
	for name, c := range map[string]struct {
		faults []nodestate.Fault
		want   map[int]gpu.Reason
	}{
		"an event":                     {[]nodestate.Fault{{GPU: id, Reason: gpu.ReasonXID, XID: 79, Since: now}}, map[int]gpu.Reason{1: gpu.ReasonXID}},
		"an event, and a reset begun":  {[]nodestate.Fault{{GPU: id, Reason: gpu.ReasonXID, XID: 79, Since: now}, also}, map[int]gpu.Reason{}},
		"what a snapshot showed":       {[]nodestate.Fault{{GPU: id, Reason: gpu.ReasonRowRemap, Since: now}, also}, map[int]gpu.Reason{}},
		"missing":                      {[]nodestate.Fault{{GPU: id, Reason: gpu.ReasonMissing, Since: now}, also}, map[int]gpu.Reason{}},
		"two faults of a later one":    {[]nodestate.Fault{{GPU: id, Reason: gpu.ReasonMissing, Needs: "reset", Since: now}, {GPU: id, Reason: gpu.ReasonMissing, Needs: "reset", Since: now}}, map[int]gpu.Reason{1: gpu.ReasonMissing}},
		"missing, from an event alone": {[]nodestate.Fault{{GPU: id, Reason: gpu.ReasonMissing, Since: now}}, map[int]gpu.Reason{1: gpu.ReasonMissing}},
	} {
		t.Run(name, func(t *testing.T) {
			h := health.Recall(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Faults: c.faults}})
			got, _ := h.Verdict(id)
			require.Equal(t, c.faults[0].Reason, got.Reason, "nothing is forgiven before a snapshot")
			require.Equal(t, c.want, reasons(h.See(node, now)))
		})
	}
}

func TestAWordFromTheFutureIsReadToTheGPUsDisadvantage(t *testing.T) {
	for needs, recovers := range map[string]bool{"": true, "reset": true, "quiet": true, "snapshot": true, "prayer": false} {
		h := health.Recall(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Faults: []nodestate.Fault{
			{GPU: gputest.GPU(1), Reason: gpu.ReasonXID, XID: 48, Since: now, Needs: needs, Evidence: "prayer"},
		}}})
		require.Equal(t, needs != "snapshot", len(reasons(h.See(node, now))) == 1, needs)
		require.Equal(t, recovers, len(reasons(h.See(with(1, gpu.ReasonLost), now).See(node, now))) == 0, needs)
	}
}

func FuzzRecall(f *testing.F) {
	h := watched(divided).Hear(instance(divided.Devices[0].UUID, 2, 0, 94), now).Hear(gputest.XID(divided.Devices[1].UUID, 48), now)
	text, err := json.Marshal(file(h))
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(`{"devicePlugin":{"faults":[{"gpu":"","gpuInstance":-7,"needs":"x"},{"gpu":"","gpuInstance":-7}]}}`))
	f.Add([]byte(`{"devicePlugin":{"faults":[{"gpuInstance":-2},{}]}}`))
	f.Add([]byte(`{"devicePlugin":{"resources":[{"devices":[{"gpu":"MIG-a","mig":{"parent":"GPU-a"}},{"gpu":"MIG-a","mig":{"parent":"GPU-b"}}]}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var read nodestate.State
		if json.Unmarshal(text, &read) != nil {
			return
		}
		h := health.Recall(read)
		if read.DevicePlugin == nil {
			return
		}
		for _, fault := range read.DevicePlugin.Faults {
			if v, _ := h.Verdict(fault.GPU); v.Reason != fault.Reason && len(read.DevicePlugin.Faults) == 1 {
				t.Errorf("%+v became %+v", fault, v)
			}
		}
		again := health.Recall(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Faults: h.Faults()}})
		if len(again.Faults()) != len(h.Faults()) {
			t.Errorf("%+v became %+v", h.Faults(), again.Faults())
		}
	})
}
