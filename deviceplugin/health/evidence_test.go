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

// record is one observation, kept to check afterwards whether there was evidence.
type record struct {
	at        time.Time
	event     *gpu.Event
	snapshot  *gpu.Snapshot
	probe     *health.Probe
	unwatched bool // watching has ended
	reload    bool // and the driver was unloaded
	watching  bool // watching has begun
}

// timeline is a node of two MIG GPUs and the record of what happened to it.
type timeline struct {
	now     time.Time
	health  health.State
	records []record
}

func newTimeline() *timeline {
	s := &timeline{now: now, health: health.New(gpu.Fault{})}
	s.applySnapshot(divided)
	s.startWatching()
	return s
}

func (s *timeline) add(r record) {
	r.at = s.now
	s.records = append(s.records, r)
}

func (s *timeline) applySnapshot(snap gpu.Snapshot) {
	s.health = s.health.ApplySnapshot(snap, s.now)
	s.add(record{snapshot: &snap})
}

func (s *timeline) startWatching() {
	s.health = s.health.SetAllWatched(s.now)
	s.add(record{watching: true})
}

func (s *timeline) stopWatching(unloaded bool) {
	s.health = s.health.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, unloaded, s.now)
	s.add(record{unwatched: true, reload: unloaded})
}

// restart replaces the state by what a new process reads from the file.
func (s *timeline) restart(t *rapid.T) {
	text, err := json.Marshal(file(s.health))
	require.NoError(t, err)
	read := nodestate.State{}
	require.NoError(t, json.Unmarshal(text, &read))
	s.health = health.Restore(read)
	s.stopWatching(false)
}

// step draws and applies one random change.
func (s *timeline) step(t *rapid.T) {
	s.now = s.now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "minutes")) * time.Minute)
	d := divided.Devices[rapid.IntRange(0, 1).Draw(t, "gpu")]
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
		e := instance(d.UUID, rapid.SampledFrom([]int{-1, 1, 2, 4}).Draw(t, "gi"), rapid.SampledFrom([]int{-1, 0}).Draw(t, "ci"),
			rapid.SampledFrom([]uint64{13, 48, 63, 79, 94, 32, 151, 999}).Draw(t, "xid"))
		s.applyEvent(e)
	case 2:
		kind := rapid.SampledFrom([]gpu.EventKind{gpu.EventECC, gpu.EventLost, gpu.EventChanged}).Draw(t, "kind")
		e := gputest.Event(kind, d.UUID, "said")
		e.Observed = kind == gpu.EventLost && rapid.Bool().Draw(t, "met")
		s.applyEvent(e)
	case 3:
		snap := divided.Clone()
		snap.Devices[d.Index].Fault.Reason = rapid.SampledFrom([]gpu.Reason{gpu.ReasonLost, gpu.ReasonUnreadable, gpu.ReasonRowRemap, gpu.ReasonResetNeeded}).Draw(t, "fault")
		s.applySnapshot(snap)
	case 4:
		snap := divided.Clone()
		snap.Devices = slices.Delete(snap.Devices, d.Index, d.Index+1)
		s.applySnapshot(snap)
	case 5:
		s.stopWatching(rapid.Bool().Draw(t, "unloaded"))
		s.startWatching()
	case 6:
		snap := divided.Clone()
		snap.Driver.Version = rapid.SampledFrom([]string{divided.Driver.Version, "600.1"}).Draw(t, "driver")
		s.applySnapshot(snap)
	case 7:
		s.restart(t)
		s.applySnapshot(divided)
		s.startWatching()
	case 8:
		for _, id := range s.health.DueProbes(s.now) {
			s.applyProbe(health.Probe{ID: id, Began: s.now, Passed: rapid.Bool().Draw(t, "passed")})
		}
		s.applySnapshot(divided)
	default:
		// A probe that was not due and may be old.
		began := s.now.Add(-time.Duration(rapid.IntRange(0, 6).Draw(t, "ago")) * time.Minute)
		s.applyProbe(health.Probe{ID: rapid.SampledFrom(parts(d)).Draw(t, "tried"), Began: began, Passed: true})
		s.applySnapshot(divided)
	}
}

func (s *timeline) applyEvent(e gpu.Event) {
	s.health = s.health.ApplyEvent(e, s.now)
	s.add(record{event: &e})
}

func (s *timeline) applyProbe(p health.Probe) {
	s.health = s.health.ApplyProbe(p, s.now)
	s.add(record{probe: &p})
}

// hasEvidence reports whether the timeline proves that the effect of an event,
// records[i], on a part of a GPU is over. It follows the package comment and knows
// nothing of the implementation.
func (s *timeline) hasEvidence(i int, d gpu.Device, recovery gpu.Recovery) bool {
	proven := false
	driver := ""
	for j, r := range s.records {
		switch {
		case r.snapshot != nil:
			now, there := r.snapshot.Device(d.UUID)
			reloaded := driver != "" && r.snapshot.Driver.Version != driver
			driver = r.snapshot.Driver.Version
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
		case j >= i && r.event != nil && r.event.Observed && r.event.UUID == d.UUID:
			proven = proven || recovery != gpu.RecoveryNever
		case j > i && r.reload:
			proven = true
		case j > i && r.probe != nil && r.probe.Passed && recovery == gpu.RecoveryQuiet:
			proven = proven || slices.Contains(parts(d), r.probe.ID) && s.wasQuiet(i, j)
		}
	}
	return false
}

// wasQuiet reports whether the node was watched for the quiet period between an event
// and a probe.
func (s *timeline) wasQuiet(i, j int) bool {
	begin := s.records[i].at
	for _, r := range s.records[:j] {
		if r.watching && r.at.After(begin) {
			begin = r.at
		}
	}
	return s.records[j].probe.Began.Sub(begin) >= health.DefaultQuietPeriod
}

func TestNoGPUIsHealthyWithoutEvidence(t *testing.T) {
	policy := health.DefaultPolicy()
	rapid.Check(t, func(t *rapid.T) {
		s := newTimeline()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			s.step(t)
			wrong := unhealthy(s.health, divided)
			for i, r := range s.records {
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
				if rule.Action == gpu.ActionIgnore || s.hasEvidence(i, d, rule.Recovery) {
					continue
				}
				for _, id := range affected(*r.event, d) {
					if wrong[id] == "" {
						t.Fatalf("%s is healthy, and there is no evidence against %+v", id, *r.event)
					}
				}
			}
		}
	})
}

// affected lists the devices that an event makes unhealthy.
func affected(e gpu.Event, d gpu.Device) []gpu.UUID {
	info, _ := gpu.XID(e.XID)
	ids := []gpu.UUID{d.UUID}
	for _, m := range d.MIG {
		if !info.Contained || e.GPUInstance < 0 || e.GPUInstance == m.GPUInstance {
			ids = append(ids, m.UUID)
		}
	}
	return ids
}

func TestNewProcessBehavesLikeTheOldOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTimeline()
		for range rapid.IntRange(0, 12).Draw(t, "before") {
			s.step(t)
		}
		// Both start watching anew; from now on they observe the same.
		old := &timeline{now: s.now, health: s.health}
		old.stopWatching(false)
		s.restart(t)
		require.Equal(t, file(old.health).DevicePlugin.Faults, file(s.health).DevicePlugin.Faults)
		for _, p := range []*timeline{old, s} {
			p.applySnapshot(divided)
			p.startWatching()
		}
		require.Equal(t, unhealthy(old.health, divided), unhealthy(s.health, divided))
		for range rapid.IntRange(1, 6).Draw(t, "after") {
			before := len(s.records)
			s.step(t)
			for _, r := range s.records[before:] {
				switch {
				case r.event != nil:
					old.health = old.health.ApplyEvent(*r.event, r.at)
				case r.snapshot != nil:
					old.health = old.health.ApplySnapshot(*r.snapshot, r.at)
				case r.probe != nil:
					old.health = old.health.ApplyProbe(*r.probe, r.at)
				case r.watching:
					old.health = old.health.SetAllWatched(r.at)
				case r.unwatched:
					old.health = old.health.SetUnwatchable(gpu.Fault{Reason: gpu.ReasonUnwatched}, r.reload, r.at)
				}
			}
			require.Equal(t, unhealthy(old.health, divided), unhealthy(s.health, divided))
			require.Equal(t, old.health.DueProbes(s.now), s.health.DueProbes(s.now))
			for _, id := range parts(divided.Devices[0]) {
				require.Equal(t, old.health.AwaitsReset(id), s.health.AwaitsReset(id))
			}
		}
	})
}

func TestStateIsImmutable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTimeline()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			before := s.health
			faults, wrong := before.Faults(), unhealthy(before, divided)
			s.step(t)
			require.Equal(t, faults, before.Faults())
			require.Equal(t, wrong, unhealthy(before, divided))
		}
	})
}

// The plugin can be upgraded within a boot, so it reads what the earlier version wrote.
func TestRecallReadsStateOfEarlierVersions(t *testing.T) {
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
			h := health.Restore(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Faults: c.faults}})
			got, _ := h.Verdict(id)
			require.Equal(t, c.faults[0].Reason, got.Reason, "nothing is forgiven before a snapshot")
			require.Equal(t, c.want, reasons(h.ApplySnapshot(node, now)))
		})
	}
}

func TestUnknownEvidenceNameNeedsADriverReload(t *testing.T) {
	for needs, recovers := range map[nodestate.Evidence]bool{"": true, "reset": true, "quiet": true, "snapshot": true, "prayer": false} {
		h := health.Restore(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Faults: []nodestate.Fault{
			{GPU: gputest.GPU(1), Reason: gpu.ReasonXID, XID: 48, Since: now, Needs: needs, Evidence: "prayer"},
		}}})
		require.Equal(t, needs != "snapshot", len(reasons(h.ApplySnapshot(node, now))) == 1, needs)
		require.Equal(t, recovers, len(reasons(h.ApplySnapshot(with(1, gpu.ReasonLost), now).ApplySnapshot(node, now))) == 0, needs)
	}
}

func FuzzRecall(f *testing.F) {
	h := watched(divided).ApplyEvent(instance(divided.Devices[0].UUID, 2, 0, 94), now).ApplyEvent(gputest.XID(divided.Devices[1].UUID, 48), now)
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
		h := health.Restore(read)
		if read.DevicePlugin == nil {
			return
		}
		for _, fault := range read.DevicePlugin.Faults {
			if v, _ := h.Verdict(fault.GPU); v.Reason != fault.Reason && len(read.DevicePlugin.Faults) == 1 {
				t.Errorf("%+v became %+v", fault, v)
			}
		}
		again := health.Restore(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Faults: h.Faults()}})
		if len(again.Faults()) != len(h.Faults()) {
			t.Errorf("%+v became %+v", h.Faults(), again.Faults())
		}
	})
}
