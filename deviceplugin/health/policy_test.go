package health_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

func TestTheDefaultPolicyIsTheTable(t *testing.T) {
	p := health.DefaultPolicy()
	for _, x := range gpu.XIDs() {
		require.Equal(t, health.Rule{Action: x.Action, Recovery: x.Recovery}, p.Rule(x.First))
	}
	require.Equal(t, health.Rule{Action: gpu.ActionAsk, Recovery: gpu.RecoveryReset}, p.Rule(1234), "what nobody knows is taken seriously")
	require.Equal(t, 5*time.Minute, p.QuietPeriod())
	require.Equal(t, health.DefaultPolicy(), health.New(gpu.Fault{}).Policy())
}

func TestChangesOverrideEarlierOnes(t *testing.T) {
	ignore, unhealthy := gpu.ActionIgnore, gpu.ActionUnhealthy
	file := health.Changes{
		Unknown:     health.Rule{Action: ignore},
		XIDs:        map[uint64]health.Rule{79: {Recovery: gpu.RecoveryNever}, 48: {Action: ignore}, 13: {Action: unhealthy}},
		QuietPeriod: time.Hour,
	}
	p := health.DefaultPolicy().With(file)
	require.Equal(t, health.Rule{Action: unhealthy, Recovery: gpu.RecoveryNever}, p.Rule(79))
	require.Equal(t, health.Rule{Action: ignore, Recovery: gpu.RecoveryReset}, p.Rule(48))
	require.Equal(t, health.Rule{Action: unhealthy, Recovery: gpu.RecoveryQuiet}, p.Rule(13))
	require.Equal(t, health.Rule{Action: ignore, Recovery: gpu.RecoveryReset}, p.Rule(1234))
	require.Equal(t, time.Hour, p.QuietPeriod())

	env := health.Changes{Every: ignore, XIDs: map[uint64]health.Rule{79: {Action: unhealthy}}}
	q := p.With(env)
	require.Equal(t, health.Rule{Action: unhealthy, Recovery: gpu.RecoveryNever}, q.Rule(79), "how it recovers was said before and is not taken back")
	require.Equal(t, ignore, q.Rule(13).Action)
	require.Equal(t, ignore, q.Rule(95).Action)
	require.Equal(t, time.Hour, q.QuietPeriod())
	require.Equal(t, unhealthy, q.With(health.Changes{Every: unhealthy}).Rule(1234).Action)

	require.Equal(t, unhealthy, p.Rule(13).Action, "a Policy is never changed")
	require.Equal(t, health.DefaultPolicy(), health.DefaultPolicy().With(health.Changes{}))
	require.Len(t, file.XIDs, 3)
}

func TestPolicyDecidesTheEffectOfAnXID(t *testing.T) {
	p := health.DefaultPolicy().With(health.Changes{XIDs: map[uint64]health.Rule{48: {Action: gpu.ActionIgnore}, 31: {Action: gpu.ActionUnhealthy}}})
	h := health.New(gpu.Fault{}).WithPolicy(p).ApplySnapshot(node, now).
		ApplyEvent(gputest.XID(gputest.GPU(0), 48), now).
		ApplyEvent(event(gpu.EventECC, 1), now).
		ApplyEvent(gputest.XID(gputest.GPU(2), 31), now).
		ApplyEvent(event(gpu.EventLost, 3), now)
	require.Equal(t, marks{2: gpu.ReasonXID, 3: gpu.ReasonLost}, reasons(h), "an ECC error goes with XID 48; a loss is no XID")
	require.Len(t, reasons(h.WithPolicy(health.DefaultPolicy())), 2, "what is held stays, what was ignored is over")
}

func TestParseDisable(t *testing.T) {
	for name, c := range map[string]struct {
		disable, enable string
		heeded, ignored []uint64
	}{
		"neither":               {"", "", []uint64{48, 79}, []uint64{13, 31, 43, 45, 68, 109}},
		"some ignored":          {" 48, 79 ", "", []uint64{95}, []uint64{13, 48, 79}},
		"all ignored":           {"all", "", nil, []uint64{13, 48, 79, 95, 1234}},
		"all, by its old name":  {"XIDS", "", nil, []uint64{13, 48, 79, 95, 1234}},
		"all with exceptions":   {"all", "48,13", []uint64{48, 13}, []uint64{79, 95, 1234}},
		"one that programs do":  {"", "45", []uint64{45, 79}, []uint64{13, 31}},
		"heeded wins":           {"48,79", "79", []uint64{79, 95}, []uint64{48}},
		"all heeded":            {"", "all", []uint64{13, 48, 1234}, nil},
		"all heeded wins":       {"48,all", "all", []uint64{13, 48, 1234}, nil},
		"among others and case": {"12,All", "", nil, []uint64{48, 79}},
		"blanks":                {",48,, ", ",", []uint64{79}, []uint64{48}},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := health.ParseDisable(c.disable, c.enable)
			require.NoError(t, err)
			p := health.DefaultPolicy().With(changes)
			for _, xid := range c.heeded {
				require.Equal(t, gpu.ActionUnhealthy, p.Rule(xid).Action, "XID %d", xid)
			}
			for _, xid := range c.ignored {
				require.Equal(t, gpu.ActionIgnore, p.Rule(xid).Action, "XID %d", xid)
			}
		})
	}
	for _, bad := range []string{"x", "48;79", "0", "-1", "4294967296", "all 13", "0x30", "none", "48 79"} {
		_, err := health.ParseDisable(bad, "")
		require.ErrorContains(t, err, health.DisableVariable)
		require.ErrorContains(t, err, strconv.Quote(bad))
		_, err = health.ParseDisable("all", "13,"+bad)
		require.ErrorContains(t, err, health.EnableVariable)
	}
}

// It follows the reference's documentation, except for the notices that ours ignores
// too, and for unknown XIDs.
func TestParseDisableMatchesTheReference(t *testing.T) {
	entry := rapid.SampledFrom([]string{"13", "31", "48", "79", "94", "1234", "", " 95 ", "all", "xids", "ALL"})
	application := map[uint64]bool{13: true, 31: true, 43: true, 45: true, 68: true, 109: true}
	rapid.Check(t, func(t *rapid.T) {
		disable := rapid.SliceOfN(entry, 0, 3).Draw(t, "disable")
		enable := rapid.SliceOfN(entry, 0, 3).Draw(t, "enable")
		changes, err := health.ParseDisable(strings.Join(disable, ","), strings.Join(enable, ","))
		require.NoError(t, err)
		p := health.DefaultPolicy().With(changes)
		names := func(list []string, xid uint64) (one, all bool) {
			for _, e := range list {
				e = strings.ToLower(strings.TrimSpace(e))
				one = one || e == strconv.FormatUint(xid, 10)
				all = all || e == "all" || e == "xids"
			}
			return one, all
		}
		for _, xid := range []uint64{13, 31, 48, 79, 94, 95, 1234} {
			on, allOn := names(enable, xid)
			off, allOff := names(disable, xid)
			want := gpu.ActionUnhealthy
			switch {
			case on, allOn:
			case off, allOff, application[xid]:
				want = gpu.ActionIgnore
			case xid == 1234:
				want = gpu.ActionAsk
			}
			require.Equal(t, want, p.Rule(xid).Action, "XID %d", xid)
		}
	})
}

func FuzzParseDisable(f *testing.F) {
	f.Add("all", "48,79")
	f.Add("xids,", "0")
	f.Fuzz(func(t *testing.T, disable, enable string) {
		changes, err := health.ParseDisable(disable, enable)
		if err != nil {
			return
		}
		for xid := range changes.XIDs {
			if text := strconv.FormatUint(xid, 10); xid == 0 || !strings.Contains(disable+enable, text) {
				t.Errorf("%d is not among %q, %q", xid, disable, enable)
			}
		}
	})
}

func TestAConfigurationChangesThePolicy(t *testing.T) {
	c, _, err := config.Parse([]byte(`
version: v1
health:
  xids:
    - {xid: 79, recovery: never}
    - {xid: 94, action: ignore}
    - {xid: 31, action: unhealthy}
  unknownXIDs: {action: ignore}
  quietPeriod: 90s
`), "config.yaml", config.Options{})
	require.NoError(t, err)
	p := health.DefaultPolicy().With(health.ChangesFromConfig(c.Health))
	require.Equal(t, health.Rule{Action: gpu.ActionUnhealthy, Recovery: gpu.RecoveryNever}, p.Rule(79))
	require.Equal(t, gpu.ActionIgnore, p.Rule(94).Action)
	require.Equal(t, health.Rule{Action: gpu.ActionUnhealthy, Recovery: gpu.RecoveryQuiet}, p.Rule(31))
	require.Equal(t, gpu.ActionIgnore, p.Rule(1234).Action)
	require.Equal(t, 90*time.Second, p.QuietPeriod())
	require.Equal(t, health.DefaultPolicy(), health.DefaultPolicy().With(health.ChangesFromConfig(config.Health{})))

	_, _, err = config.Parse([]byte("version: v1\nhealth: {quietPeriod: 5m, xids: [{xid: 48, action: reboot}]}"), "config.yaml", config.Options{})
	require.ErrorContains(t, err, "health.xids[0].action", "what is not checked here is checked there")
}

// The configuration and the policy use the same words.
func TestEveryConfiguredActionAndRecoveryIsKnown(t *testing.T) {
	for _, action := range []gpu.Action{gpu.ActionIgnore, gpu.ActionUnhealthy} {
		for _, recovery := range []gpu.Recovery{gpu.RecoveryQuiet, gpu.RecoveryReset, gpu.RecoveryNever} {
			text := "version: v1\nhealth: {xids: [{xid: 48, action: " + string(action)
			if action == gpu.ActionUnhealthy {
				text += ", recovery: " + string(recovery)
			}
			c, _, err := config.Parse([]byte(text+"}]}"), "config.yaml", config.Options{})
			require.NoError(t, err)
			rule := health.DefaultPolicy().With(health.ChangesFromConfig(c.Health)).Rule(48)
			require.Equal(t, action, rule.Action)
			if action == gpu.ActionUnhealthy {
				require.Equal(t, recovery, rule.Recovery)
			}
		}
	}
}
