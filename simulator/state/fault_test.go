package state_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// The driver's recovery actions after a fault, nvmlDeviceGpuRecoveryAction_t.
const (
	recoverNone       = 0
	recoverReset      = 1
	recoverDrainReset = 4
)

func machine(t require.TestingT, name string) *state.State {
	p, err := profile.Get(name)
	require.NoError(t, err)
	s, err := p.State(profile.Options{})
	require.NoError(t, err)
	return s
}

func TestXIDRequestsTheDriversRecovery(t *testing.T) {
	for xid, want := range map[uint64]uint32{13: recoverNone, 31: recoverNone, 48: recoverReset, 79: recoverReset, 94: recoverDrainReset, 95: recoverReset} {
		s := machine(t, "h100-sxm")
		events, err := s.ReportXID(3, xid, state.None, state.None)
		require.NoError(t, err)
		require.Equal(t, state.Event{Type: state.EventXID, Data: xid, Gpu: 3, Gi: state.None, Ci: state.None}, events[0])
		require.Equal(t, want, s.Gpu[3].RecoveryAction)
		require.Equal(t, want != recoverNone, len(events) == 2)
	}
}

func TestGraverRecoveryIsKept(t *testing.T) {
	s := machine(t, "h100-sxm")
	for _, xid := range []uint64{94, 95, 94, 13} {
		_, err := s.ReportXID(0, xid, state.None, state.None)
		require.NoError(t, err)
	}
	require.EqualValues(t, recoverReset, s.Gpu[0].RecoveryAction)
}

func TestXIDIsConfinedToAnInstanceThatExists(t *testing.T) {
	s := machine(t, "h100-sxm")
	require.NoError(t, profile.EnableMIG(&s.Gpu[0], []profile.Instance{{Profile: "3g.40gb", Start: -1}}))
	gi := s.Gpu[0].Gi[0].Id
	events, err := s.ReportXID(0, 13, gi, 0)
	require.NoError(t, err)
	require.Equal(t, gi, events[0].Gi)
	require.Zero(t, events[0].Ci)
	_, err = s.ReportXID(0, 13, gi+1, 0)
	require.ErrorContains(t, err, "has no GPU instance")
	_, err = s.ReportXID(0, 13, gi, 5)
	require.ErrorContains(t, err, "has no compute instance 5")
	_, err = s.ReportXID(0, 13, state.None, 0)
	require.ErrorContains(t, err, "say --gi")
	_, err = s.ReportXID(0, 0, state.None, state.None)
	require.ErrorContains(t, err, "0 is not 1 to")
}

func TestECCCountsAndRetiresMemory(t *testing.T) {
	s := machine(t, "h100-sxm")
	events, err := s.CountECCErrors(1, "dram", 3, 2)
	require.NoError(t, err)
	var types []uint64
	for _, e := range events {
		types = append(types, e.Type)
	}
	require.Equal(t, []uint64{state.EventSingleBitECC, state.EventDoubleBitECC, state.EventRecoveryAction}, types)
	g := &s.Gpu[1]
	require.EqualValues(t, 3, g.EccVolatile[0][2])
	require.EqualValues(t, 2, g.EccAggregate[1][2])
	require.EqualValues(t, 2, g.RemapUncorrected)
	require.EqualValues(t, 1, g.RemapPending)

	s.ResetGPU(1)
	require.Zero(t, g.EccVolatile)
	require.Zero(t, g.RemapPending)
	require.EqualValues(t, 2, g.EccAggregate[1][2], "what was counted over the board's life stays")

	old := machine(t, "dgx-2")
	_, err = old.CountECCErrors(0, "dram", 0, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, old.Gpu[0].RetiredDbe)

	_, err = s.CountECCErrors(0, "disk", 1, 0)
	require.ErrorContains(t, err, `"disk" is not one of cbu, dram,`)
	_, err = s.CountECCErrors(0, "dram", 0, 0)
	require.ErrorContains(t, err, "no errors to count")
}

func TestPendingRowIsRemappedByAReset(t *testing.T) {
	s := machine(t, "h100-sxm")
	events, err := s.RemapRow(1, "pending")
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.EqualValues(t, 63, events[0].Data)
	g := &s.Gpu[1]
	require.EqualValues(t, []uint32{1, 1, 0, recoverNone}, []uint32{g.RemapUncorrected, g.RemapPending, g.RemapFailed, g.RecoveryAction})
	s.ResetGPU(1)
	require.EqualValues(t, []uint32{1, 0}, []uint32{g.RemapUncorrected, g.RemapPending})

	events, err = s.RemapRow(1, "failed")
	require.NoError(t, err)
	require.EqualValues(t, 64, events[0].Data)
	s.ResetGPU(1)
	require.EqualValues(t, 1, g.RemapFailed, "no reset mends that")
	events, err = s.RemapRow(1, "none")
	require.NoError(t, err)
	require.Empty(t, events)
	require.Zero(t, g.RemapFailed)

	old := machine(t, "dgx-2")
	events, err = old.RemapRow(0, "pending")
	require.NoError(t, err)
	require.EqualValues(t, 63, events[0].Data)
	require.EqualValues(t, []uint32{1, 1}, []uint32{old.Gpu[0].RetiredDbe, old.Gpu[0].RetiredPending})
	_, err = old.RemapRow(0, "none")
	require.NoError(t, err)
	require.Zero(t, old.Gpu[0].RetiredPending)
	_, err = old.RemapRow(0, "failed")
	require.ErrorContains(t, err, "remaps no rows")
	old.Gpu[0].EccCurrent = 0
	_, err = old.RemapRow(0, "pending")
	require.ErrorContains(t, err, "ECC is off")
	_, err = s.RemapRow(0, "lost")
	require.ErrorContains(t, err, `"lost" is not one of failed, none, pending`)
}

func TestLosingAGPUTouchesNoOther(t *testing.T) {
	for _, how := range state.LostWays() {
		s := machine(t, "h100-sxm")
		events, err := s.LoseGPU(2, how, true)
		require.NoError(t, err)
		require.EqualValues(t, state.XIDFallenOff, events[0].Data)
		require.Equal(t, how, state.LostWay(s.Gpu[2].Lost))
		want := machine(t, "h100-sxm")
		for i := range want.GPUs() {
			require.Equal(t, i != 2, want.Gpu[i] == s.Gpu[i])
		}
		s.ResetGPU(2)
		require.True(t, *want == *s)
	}
	s := machine(t, "t4")
	events, err := s.LoseGPU(0, "calls", false)
	require.NoError(t, err)
	require.Empty(t, events)
	_, err = s.LoseGPU(0, "stolen", false)
	require.ErrorContains(t, err, "calls, events, gone, handle, unknown")
}

func TestMemoryFaultIsOneBitOfAWord(t *testing.T) {
	s := machine(t, "t4")
	require.NoError(t, s.CorruptMemory(0, "stuck", 4096, 31))
	require.Equal(t, "stuck", state.MemfaultName(s.Gpu[0].MemfaultKind))
	require.ErrorContains(t, s.CorruptMemory(0, "stuck", 4095, 0), "no multiple of 4")
	require.ErrorContains(t, s.CorruptMemory(0, "stuck", 0, 32), "32 is not 0 to 31")
	require.ErrorContains(t, s.CorruptMemory(0, "flop", 0, 0), "flip, none, stuck")
	require.ErrorContains(t, s.CorruptMemory(0, "flip", 1<<40, 0), "lies beyond")
}

func TestALinkBetweenTwoGPUsIsDownAtBothEnds(t *testing.T) {
	p, err := profile.Get("a100-80gb")
	require.NoError(t, err)
	s, err := p.State(profile.Options{GPUs: 4})
	require.NoError(t, err)
	was := *s
	far := s.Gpu[1].Link[2]
	require.EqualValues(t, state.RemoteGPU, far.RemoteType)
	require.NoError(t, s.Degrade(1, state.Degradation{LinksDown: &[]string{"2"}}))
	require.Zero(t, s.Gpu[1].Link[2].Active)
	require.Zero(t, s.Gpu[far.RemoteGpu].Link[far.RemoteLink].Active)
	require.NoError(t, s.Degrade(1, state.Degradation{LinksDown: &[]string{"2", "3"}}))
	require.NoError(t, s.Degrade(1, state.Degradation{LinksDown: &[]string{"none"}}))
	require.True(t, was == *s)
}

// TestRestoreUndoesAnySequenceOfFaults, but for what is counted over a lifetime.
func TestRestoreUndoesAnySequenceOfFaults(t *testing.T) {
	a100 := machine(t, "a100-80gb")
	rapid.Check(t, func(t *rapid.T) {
		s, fresh := new(state.State), new(state.State)
		*s, *fresh = *a100, *a100
		t.Repeat(map[string]func(*rapid.T){
			"xid": func(t *rapid.T) {
				_, err := s.ReportXID(0, rapid.Uint64Range(1, 160).Draw(t, "xid"), state.None, state.None)
				require.NoError(t, err)
			},
			"ecc": func(t *rapid.T) {
				_, err := s.CountECCErrors(0, rapid.SampledFrom(state.ECCLocationNames()).Draw(t, "location"), 1, rapid.Uint64Range(0, 3).Draw(t, "uncorrected"))
				require.NoError(t, err)
			},
			"lose": func(t *rapid.T) {
				_, err := s.LoseGPU(0, rapid.SampledFrom(state.LostWays()).Draw(t, "how"), rapid.Bool().Draw(t, "xid"))
				require.NoError(t, err)
			},
			"memory": func(t *rapid.T) {
				require.NoError(t, s.CorruptMemory(0, rapid.SampledFrom(state.MemfaultKinds()).Draw(t, "kind"), 64, 3))
			},
			"wrong": func(t *rapid.T) { require.NoError(t, s.Miscompute(0, 7, 3)) },
			"degrade": func(t *rapid.T) {
				gen, width := uint32(2), uint32(4)
				require.NoError(t, s.Degrade(0, state.Degradation{
					&gen, &width, &[]string{rapid.SampledFrom(state.ThrottleReasons()).Draw(t, "throttle")}, &[]string{strconv.Itoa(rapid.IntRange(0, 11).Draw(t, "link"))},
				}))
			},
		})
		s.ResetGPU(0)
		lasting := &fresh.Gpu[0]
		lasting.EccAggregate, lasting.RemapUncorrected = s.Gpu[0].EccAggregate, s.Gpu[0].RemapUncorrected
		if *s != *fresh {
			t.Fatal("something stays")
		}
	})
}

func TestErrorsHaveNamesAndNumbers(t *testing.T) {
	for text, want := range map[string]uint32{"": 0, "none": 0, "no-permission": 4, "driver-not-loaded": 9, "unknown": 999, "28": 28, "0": 0} {
		code, err := state.ParseError(text)
		require.NoError(t, err)
		require.Equal(t, want, code, text)
	}
	for _, text := range []string{"often", "-1", "1000", "4294967296"} {
		_, err := state.ParseError(text)
		require.ErrorContains(t, err, "is neither a number up to 999 nor one of driver-not-loaded, ")
	}
	require.Equal(t, "no-permission", state.ErrorName(4))
	require.Equal(t, "28", state.ErrorName(28))
}

func TestLoadIsWhatTheGPUCanHave(t *testing.T) {
	s := machine(t, "h100-sxm")
	percent, memory, watts := uint32(80), uint64(40960), uint32(650)
	require.NoError(t, s.SetLoad(2, state.Load{Percent: &percent, MemoryMiB: &memory, Watts: &watts}))
	g := s.Gpu[2]
	require.Equal(t, []uint64{80, 650_000, 0, 40 << 30}, []uint64{uint64(g.Load), uint64(g.LoadPowerMw), uint64(g.LoadTemperature), g.LoadMemory})
	require.NoError(t, s.SetLoad(2, state.Load{}))
	require.Equal(t, g, s.Gpu[2], "what is not given stays as it is")
	percent, memory = 101, 1<<20
	require.ErrorContains(t, s.SetLoad(2, state.Load{Percent: &percent}), "percent: 101 is not 0 to 100")
	require.ErrorContains(t, s.SetLoad(2, state.Load{MemoryMiB: &memory}), "MiB free when idle")
}
