package preflight

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/probe"
)

func table(t require.TestingT) Thresholds {
	all, err := EmbeddedThresholds()
	require.NoError(t, err)
	return all
}

// node returns a healthy node of a profile, read once before, four times during and once
// after the samples.
func node(profile string, n int) (Observations, Result) {
	s := Observations{Snapshot: gputest.Node(profile, n)}
	r := Result{Node: "n1"}
	for _, d := range s.Snapshot.Devices {
		r.GPUs = append(r.GPUs, GPU{Index: fmt.Sprint(d.Index), UUID: d.UUID, Product: d.Product, PCI: d.PCI, Compute: d.Compute.String(),
			Port: &Port{MaxGeneration: 5, MaxWidth: 16}})
	}
	for i := range 6 {
		reading := Reading{Loaded: i > 0 && i < 5, Conditions: map[gpu.UUID]gpu.Condition{}, Errors: map[gpu.UUID]string{}}
		for _, d := range s.Snapshot.Devices {
			reading.Conditions[d.UUID] = gpu.Condition{
				ECC: gpu.ECC{On: true}, Throttle: []gpu.Throttle{gpu.ThrottleIdle},
				PCIe:    gpu.PCIe{Generation: 1, MaxGeneration: 5, Width: 16, MaxWidth: 16},
				NVLinks: gpu.NVLinks{Up: []int{0, 1, 2, 3}},
			}
		}
		s.Readings = append(s.Readings, reading)
	}
	for _, reading := range s.Readings[2:4] {
		for id, c := range reading.Conditions {
			c.PCIe.Generation = 5
			reading.Conditions[id] = c
		}
	}
	return s, r
}

// change changes the condition of GPU 1, from a reading on.
func (s Observations) change(from int, do func(c *gpu.Condition)) {
	for _, reading := range s.Readings[from:] {
		c := reading.Conditions[gputest.GPU(1)]
		do(&c)
		reading.Conditions[gputest.GPU(1)] = c
	}
}

// setAnswer sets the recovery for which GPU 1's driver asks after the samples.
func (s *Observations) setAnswer(wanted gpu.RecoveryAction) {
	s.After = s.Snapshot
	s.After.Devices = slices.Clone(s.Snapshot.Devices)
	s.After.Devices[1].Recovery = wanted
}

func reasons(list []Finding) []gpu.Reason {
	var all []gpu.Reason
	for _, f := range list {
		all = append(all, f.Reason)
	}
	return all
}

func TestTheGPUsConditionIsJudged(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(s *Observations)
		want  []gpu.Reason
		says  string
		notes []string
	}{
		"healthy": {do: func(*Observations) {}},
		"an XID that the device plugin recorded": {func(s *Observations) {
			s.Recorded = []nodestate.Fault{{GPU: gputest.GPU(1), Reason: gpu.ReasonXID, XID: 79, Message: "XID 79 (the GPU no longer answers on PCIe)"}}
		}, []gpu.Reason{gpu.ReasonXID}, "XID 79 (the GPU no longer answers on PCIe), recorded by the device plugin at ", nil},
		"ECC errors before the run": {func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.ECC.Volatile, c.ECC.Aggregate = 2, 9 }) },
			[]gpu.Reason{gpu.ReasonECC}, "2 uncorrectable memory errors since the driver was loaded", nil},
		"ECC errors during the run": {func(s *Observations) { s.change(3, func(c *gpu.Condition) { c.ECC.Volatile = 1 }) },
			[]gpu.Reason{gpu.ReasonECC}, "1 of them during the run", nil},
		"ECC errors in its life": {do: func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.ECC.Aggregate = 9 }) },
			notes: []string{"9 uncorrectable memory errors in its life, none since the driver was loaded"}},
		"a row waits": {func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.Rows.Pending = true }) },
			[]gpu.Reason{gpu.ReasonResetNeeded}, "wait to be remapped", nil},
		"no row is left": {func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.Rows.Failed = true }) },
			[]gpu.Reason{gpu.ReasonRowRemap}, "failed", nil},
		"rows were remapped": {do: func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.Rows.Uncorrected = 3 }) },
			notes: []string{"3 rows of memory were remapped after uncorrectable errors"}},
		"held down for a moment": {func(s *Observations) {
			s.change(2, func(c *gpu.Condition) { c.Throttle = []gpu.Throttle{gpu.ThrottleHeat, gpu.ThrottleHardware} })
			s.change(3, func(c *gpu.Condition) { c.Throttle = nil })
		}, []gpu.Reason{ReasonThrottled}, "HWThermalSlowdown, HWSlowdown", nil},
		"held down by the power limit": {do: func(s *Observations) {
			s.change(2, func(c *gpu.Condition) { c.Throttle = []gpu.Throttle{gpu.ThrottlePowerCap} })
		}, notes: []string{"the clocks were held down: SWPowerCap"}},
		"half of the lanes": {func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.PCIe.Width = 8 }) },
			[]gpu.Reason{ReasonPCIe}, "×8, and GPU and slot support ×16", nil},
		"half of the lanes, and the first reading has no width": {func(s *Observations) {
			s.change(0, func(c *gpu.Condition) { c.PCIe.Width = 8 })
			s.Readings[0].Conditions[gputest.GPU(1)] = gpu.Condition{}
		}, []gpu.Reason{ReasonPCIe}, "×8, and GPU and slot support ×16", nil},
		"an old generation": {func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.PCIe.Generation = 3 }) },
			[]gpu.Reason{ReasonPCIe}, "generation 3 under load, and GPU and slot support 5", nil},
		"too few readings to tell": {do: func(s *Observations) {
			s.change(0, func(c *gpu.Condition) { c.PCIe.Generation = 3 })
			s.Readings[1].Loaded, s.Readings[2].Loaded = false, false
		}},
		"NVLinks down": {func(s *Observations) {
			s.change(0, func(c *gpu.Condition) { c.NVLinks = gpu.NVLinks{Up: []int{0, 3}, Down: []int{1, 2}} })
		},
			[]gpu.Reason{ReasonNVLink}, "2 of 4 NVLinks are up; down: 1, 2", nil},
		"NVLinks whose state cannot be read": {do: func(s *Observations) { s.change(0, func(c *gpu.Condition) { c.NVLinks = gpu.NVLinks{} }) }},
		"an XID that is the GPU's": {func(s *Observations) {
			s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 79}, {Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 79}}
		},
			[]gpu.Reason{gpu.ReasonXID}, "XID 79", nil},
		"an XID that is a program's": {do: func(s *Observations) { s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 13}} },
			notes: []string{gpu.XIDText(13) + " was reported during the run"}},
		"an XID that nobody knows": {func(s *Observations) { s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 9999}} },
			[]gpu.Reason{gpu.ReasonXID}, "XID 9999", nil},
		"an XID after which the driver wants nothing": {do: func(s *Observations) {
			s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 9999}, {Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 149}}
			s.setAnswer(gpu.RecoverNothing)
		}, notes: []string{gpu.XIDText(9999) + " was reported during the run; the driver asks for no recovery", gpu.XIDText(149) + " was reported during the run; the driver asks for no recovery"}},
		"an XID after which the driver wants a reset": {func(s *Observations) {
			s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 149}}
			s.setAnswer(gpu.RecoverReset)
		}, []gpu.Reason{gpu.ReasonXID}, "XID 149", nil},
		"an XID that is the GPU's, whatever the driver wants": {func(s *Observations) {
			s.Events = []gpu.Event{{Kind: gpu.EventXID, UUID: gputest.GPU(1), XID: 79}}
			s.setAnswer(gpu.RecoverNothing)
		}, []gpu.Reason{gpu.ReasonXID}, "XID 79", nil},
		"lost": {func(s *Observations) {
			s.Events = []gpu.Event{{Kind: gpu.EventLost, UUID: gputest.GPU(1), Message: "fell"}}
		}, []gpu.Reason{gpu.ReasonLost}, "fell", nil},
		"a fault from before": {func(s *Observations) {
			s.Snapshot.Devices[1].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "lost"}
		}, []gpu.Reason{gpu.ReasonLost}, "lost", nil},
		"does not answer": {func(s *Observations) { s.Readings[4].Errors[gputest.GPU(1)] = "nvmlX: unknown error" },
			[]gpu.Reason{ReasonNotRead}, "nvmlX", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := node("h100-sxm", 4)
			c.do(&s)
			Judge(&r, s, table(t))
			require.Equal(t, c.want, reasons(r.GPUs[1].Findings))
			require.Equal(t, c.notes, r.GPUs[1].Notes)
			if len(c.want) > 0 {
				require.Contains(t, r.GPUs[1].Findings[0].Message, c.says)
				require.Equal(t, Unhealthy, r.Verdict)
			}
			for _, i := range []int{0, 2, 3} {
				require.Equal(t, OK, r.GPUs[i].Verdict, "its neighbours are not blamed")
				require.Empty(t, r.GPUs[i].Notes)
			}
		})
	}
}

// A device plugin that does not run records no end of a fault: after a reset, only its start ends the finding.
func TestAFaultWhoseRecorderIsGoneHasItsStartAsAction(t *testing.T) {
	for _, gone := range []bool{false, true} {
		s, r := node("h100-sxm", 2)
		s.Recorded, s.RecorderGone = []nodestate.Fault{{GPU: gputest.GPU(1), Reason: gpu.ReasonXID, XID: 48, Message: "XID 48"}}, gone
		Judge(&r, s, table(t))
		f := r.GPUs[1].Findings[0]
		require.Equal(t, gone, strings.Contains(f.Message, "which does not run now"), f)
		require.Equal(t, gone, strings.Contains(f.Action, "; then start gpu-device-plugin"), f)
	}
}

// Nothing is run on partitions of claims, so a GPU that has some is as untested as one that has none; and a
// MIG device that somebody creates by hand is lost for claims.
func TestAGPUThatIsPartitionedForClaimsIsNotTested(t *testing.T) {
	for _, parts := range [][]gpu.MIGDevice{nil, {{UUID: "MIG-0"}}} {
		s, r := node("h100-sxm", 2)
		s.OnDemand = true
		s.Snapshot.Devices[1].MIGEnabled, s.Snapshot.Devices[1].MIG = true, parts
		Judge(&r, s, table(t))
		require.Equal(t, []gpu.Reason{ReasonNoMIG}, reasons(r.GPUs[1].Findings))
		require.Equal(t, NotRun, r.Verdict)
		require.NotContains(t, r.GPUs[1].Findings[0].Action, "create")
		require.Contains(t, r.GPUs[1].Findings[0].Action, "turn MIG mode off")
		require.Equal(t, OK, r.GPUs[0].Verdict)
	}
}

// A GPU that is idle lowers its link's generation while samples run on the others.
func TestTheLinkOfAGPUOnWhichNothingRanIsNotJudged(t *testing.T) {
	failed := func(id gpu.UUID) SampleRun {
		return SampleRun{Sample: "vectoradd", Device: id, SampleResult: probe.SampleResult{Outcome: probe.SampleFailed, Message: "error 46"}}
	}
	for name, c := range map[string]struct {
		do   func(s *Observations)
		want []gpu.Reason
	}{
		"partitioned as claims need it": {func(s *Observations) { s.Snapshot.Devices[1].MIGEnabled, s.OnDemand = true, true }, []gpu.Reason{ReasonNoMIG}},
		"without MIG devices":           {func(s *Observations) { s.Snapshot.Devices[1].MIGEnabled = true }, []gpu.Reason{ReasonNoMIG}},
		"left out for its fault": {func(s *Observations) {
			s.Snapshot.Devices[1].Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "m"}
		},
			[]gpu.Reason{gpu.ReasonResetNeeded}},
		"no sample passed": {func(s *Observations) { s.Runs = append(s.Runs, failed(gputest.GPU(1))) }, []gpu.Reason{ReasonSample}},
		"one passed": {func(s *Observations) {
			s.Runs = append(s.Runs, failed(gputest.GPU(1)), passedRun("gemm", gputest.GPU(1)))
		},
			[]gpu.Reason{ReasonPCIe, ReasonSample}},
		"one passed on a MIG device": {func(s *Observations) {
			s.Snapshot.Devices[1] = gputest.WithMIG(s.Snapshot.Devices[1], "1g.10gb")
			s.Runs = append(s.Runs, passedRun("gemm", s.Snapshot.Devices[1].MIG[0].UUID))
		}, []gpu.Reason{ReasonPCIe}},
	} {
		for _, port := range []*Port{nil, {MaxGeneration: 5, MaxWidth: 16}} {
			s, r := node("h100-sxm", 4)
			for i := range r.GPUs {
				r.GPUs[i].Port = port
				s.Runs = append(s.Runs, passedRun("vectoradd", gputest.GPU(i)))
			}
			s.Runs = slices.DeleteFunc(s.Runs, func(run SampleRun) bool { return run.Device == gputest.GPU(1) })
			s.change(0, func(c *gpu.Condition) { c.PCIe.Generation = 1 })
			c.do(&s)
			Judge(&r, s, table(t))
			require.Equal(t, c.want, reasons(r.GPUs[1].Findings), "%s, port %v: %+v", name, port, r.GPUs[1].Findings)
		}
	}
}

// Workstations have slots of 16, 8 and 4 lanes.
func TestGPUsInSlotsOfDifferentKindsAreNotCompared(t *testing.T) {
	s, r := node("h100-sxm", 5)
	for i, width := range []int{16, 16, 16, 8, 16} {
		r.GPUs[i].Port = &Port{MaxGeneration: 5, MaxWidth: width}
		for _, reading := range s.Readings {
			c := reading.Conditions[gputest.GPU(i)]
			c.PCIe.Width = width
			reading.Conditions[gputest.GPU(i)] = c
		}
		rate := 55e9 * float64(width) / 16
		if i == 4 {
			rate = 48e9 // above the limit, and below its equals
		}
		s.Runs = append(s.Runs, passedRun("bandwidth", gputest.GPU(i), probe.Figure{Name: figureHostToDevice, Unit: "B/s", Value: rate}))
	}
	Judge(&r, s, table(t))
	for i, want := range [][]gpu.Reason{nil, nil, nil, nil, {ReasonOutlier}} {
		require.Equal(t, want, reasons(r.GPUs[i].Findings), "GPU %d: %+v", i, r.GPUs[i].Findings)
	}
}

func passedRun(name string, id gpu.UUID, figures ...probe.Figure) SampleRun {
	yes := true
	return SampleRun{Sample: name, Device: id, SampleResult: probe.SampleResult{Outcome: probe.SamplePassed, Answer: probe.SampleAnswer{Passed: &yes, UUID: string(id), Figures: figures}}}
}

func TestSpeedsAreJudgedByLimitAndByTheirEquals(t *testing.T) {
	s, r := node("h100-sxm", 4)
	figures := map[string][4]float64{
		"copy":         {3.1e12, 2.3e12, 3.1e12, 3.1e12}, // 1 below 0.70 of the peak
		"triad":        {3e12, 3e12, 2.6e12, 3e12},       // 2 an outlier
		"hostToDevice": {55e9, 55e9, 55e9, 12e9},
		"bf16":         {600e12, 600e12, 600e12, 500e12},
	}
	for _, name := range []string{"copy", "triad", "hostToDevice", "bf16"} {
		for i, v := range figures[name] {
			f := probe.Figure{Name: name, Unit: "B/s", Value: v}
			if name == "copy" || name == "triad" {
				f.Peak = 3.35e12
			}
			s.Runs = append(s.Runs, passedRun("bandwidth", gputest.GPU(i), f))
		}
	}
	Judge(&r, s, table(t))
	require.Equal(t, Slow, r.Verdict)
	require.Empty(t, r.GPUs[0].Findings)
	require.Equal(t, []gpu.Reason{ReasonSlow}, reasons(r.GPUs[1].Findings))
	require.Equal(t, "copy: measured 2300 GB/s, expected 3350 GB/s (driver attributes), limit 2345 GB/s", r.GPUs[1].Findings[0].Message)
	require.Equal(t, []gpu.Reason{ReasonOutlier}, reasons(r.GPUs[2].Findings))
	require.Contains(t, r.GPUs[2].Findings[0].Message, "13 % below the median of its equals here, 3000 GB/s")
	require.Equal(t, []gpu.Reason{ReasonSlow, ReasonSlow}, reasons(r.GPUs[3].Findings))
	require.Contains(t, r.GPUs[3].Findings[0].Message, "expected 63.0 GB/s (PCIe generation 5 ×16)")
}

func TestASlowHostLinkIsMeasuredAlone(t *testing.T) {
	g := GPU{Product: "NVIDIA H200", Compute: "9.0", Condition: &gpu.Condition{}, link: hostLink{generation: 5, width: 16}}
	figures := func(copied, host, device float64) []probe.Figure {
		return []probe.Figure{{Name: "copy", Unit: "B/s", Value: copied, Peak: 4.8e12}, {Name: "hostToDevice", Unit: "B/s", Value: host}, {Name: "deviceToHost", Unit: "B/s", Value: device}}
	}
	require.False(t, HostLinkMissed(g, figures(1e12, 55e9, 55e9), table(t)), "copy is not the link")
	require.True(t, HostLinkMissed(g, figures(4.5e12, 55e9, 30e9), table(t)))
	require.False(t, HostLinkMissed(GPU{}, figures(4.5e12, 55e9, 30e9), table(t)), "nobody knows the limit")
	a := probe.SampleAnswer{Figures: figures(4.5e12, 55e9, 30e9)}
	MergeHostLink(&a, probe.SampleAnswer{Figures: figures(4.6e12, 54e9, 56e9)})
	require.Equal(t, figures(4.5e12, 55e9, 56e9), a.Figures)
	require.Equal(t, []string{"deviceToHost: measured alone; 30.0 GB/s while all GPUs used their links"}, a.Notes)
}

func TestAnUnknownProductIsShownAndNotJudged(t *testing.T) {
	s, r := node("h100-sxm", 1)
	r.GPUs[0].Product = "NVIDIA Future"
	s.Runs = []SampleRun{passedRun("compute", gputest.GPU(0), probe.Figure{Name: "fp32", Unit: "FLOP/s", Value: 1})}
	Judge(&r, s, table(t))
	require.Equal(t, OK, r.Verdict)
	require.Equal(t, Figure{Name: "fp32", Unit: "FLOP/s", Value: 1, Verdict: OK}, r.GPUs[0].Figures[0])
	require.Contains(t, r.GPUs[0].Notes[0], `"NVIDIA Future" is not in the table of thresholds`)
}

func TestASimulatedDriverHasNoSpeeds(t *testing.T) {
	s, r := node("h100-sxm", 1)
	r.Simulated = true
	run := passedRun("compute", gputest.GPU(0), probe.Figure{Name: "fp32", Unit: "FLOP/s", Value: 1e12, Peak: 6e13})
	run.Answer.Simulated = true
	s.Runs = []SampleRun{run}
	Judge(&r, s, table(t))
	require.Equal(t, []Figure{{Name: "fp32", Unit: "FLOP/s"}}, r.GPUs[0].Figures)
	require.Equal(t, "PASSED (SIMULATED)", r.Word())

	r.GPUs[0] = GPU{UUID: gputest.GPU(0)}
	s.Runs[0].Answer.Simulated = false
	Judge(&r, s, table(t))
	require.Contains(t, r.GPUs[0].Findings[0].Message, "of different drivers")
	require.Empty(t, r.GPUs[0].Figures)
}

func TestTheSamplesOutcomeIsAVerdict(t *testing.T) {
	for outcome, want := range map[probe.SampleOutcome]Verdict{
		probe.SampleFailed: Unhealthy, probe.SampleWrong: Wrong, probe.SampleNoResult: NotRun, probe.SampleImpossible: OK,
	} {
		s, r := node("h100-sxm", 2)
		s.Runs = []SampleRun{{Sample: "gemm", Device: gputest.GPU(1), SampleResult: probe.SampleResult{Outcome: outcome, Message: "why"}}, passedRun("gemm", gputest.GPU(0))}
		Judge(&r, s, table(t))
		require.Equal(t, want, r.GPUs[1].Verdict, outcome)
		require.Equal(t, OK, r.GPUs[0].Verdict, outcome)
	}
	s, r := node("h100-sxm", 2)
	for i := range 2 {
		s.Runs = append(s.Runs, SampleRun{Sample: "gemm", Device: gputest.GPU(i), SampleResult: probe.SampleResult{Outcome: probe.SampleMissing, Message: "not here"}})
	}
	Judge(&r, s, table(t))
	require.Equal(t, []gpu.Reason{ReasonNoSample}, reasons(r.Findings), "said once")
	require.Equal(t, NotRun, r.Verdict)
}

// That others use a GPU, or that nobody may, is no fault of it.
func TestASampleThatFindsNoRoomIsNoFault(t *testing.T) {
	failed := func(id gpu.UUID, code int) SampleRun {
		answer := probe.SampleAnswer{Code: code, Error: "cuDevicePrimaryCtxRetain failed"}
		return SampleRun{Sample: "gemm", Device: id, SampleResult: probe.SampleResult{Outcome: probe.SampleFailed, Answer: answer, Message: answer.Error}}
	}
	for name, c := range map[string]struct {
		code int
		mode gpu.ComputeMode
		want gpu.Reason
	}{
		"no memory":             {code: 2, want: ReasonInUse},
		"exclusive, and taken":  {code: 46, mode: gpu.ComputeExclusive, want: ReasonInUse},
		"no room for a client":  {code: 808, want: ReasonInUse},
		"ended with its server": {code: 810, want: ReasonInUse},
		"prohibited":            {code: 999, mode: gpu.ComputeProhibited, want: ReasonForbidden},
		"an illegal address":    {code: 700, want: ReasonSample},
	} {
		s, r := node("h100-sxm", 2)
		s.Snapshot.Devices[1].ComputeMode = c.mode
		s.Runs = []SampleRun{passedRun("gemm", gputest.GPU(0)), failed(gputest.GPU(1), c.code)}
		Judge(&r, s, table(t))
		require.Equal(t, []gpu.Reason{c.want}, reasons(r.GPUs[1].Findings), name)
		require.Equal(t, c.want == ReasonSample, r.Verdict == Unhealthy, name)
	}
	s, r := node("h100-sxm", 2)
	s.Runs = []SampleRun{failed("", 2)}
	Judge(&r, s, table(t))
	require.Equal(t, []gpu.Reason{ReasonInUse}, reasons(r.Findings), "from GPU to GPU")
	require.Equal(t, NotRun, r.Verdict)
}

// ways returns a run of bandwidth between all GPUs, with the speeds of speed.
func ways(s Observations, speed func(from, to int) float64) SampleRun {
	run := passedRun("bandwidth", "")
	for i, a := range s.Snapshot.Devices {
		for k, b := range s.Snapshot.Devices {
			if i != k {
				run.Answer.Peers = append(run.Answer.Peers, probe.Peer{From: a.UUID, To: b.UUID, Access: true, Unit: "B/s", Value: speed(i, k)})
			}
		}
	}
	return run
}

func TestTheCommonGPUOfSlowPathsIsNamed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 8).Draw(t, "GPUs")
		sick := rapid.IntRange(0, n-1).Draw(t, "sick")
		s, r := node("h100-sxm", n)
		s.Runs = []SampleRun{ways(s, func(from, to int) float64 {
			if from == sick || to == sick {
				return 100e9
			}
			return 390e9
		})}
		Judge(&r, s, table(t))
		for i, g := range r.GPUs {
			require.Equal(t, i == sick, g.Verdict == Slow, "GPU %d", i)
		}
	})
}

func TestASingleSlowPathNamesBothEnds(t *testing.T) {
	s, r := node("h100-sxm", 4)
	s.Runs = []SampleRun{ways(s, func(from, to int) float64 {
		if from == 1 && to == 2 {
			return 100e9
		}
		return 390e9
	})}
	Judge(&r, s, table(t))
	require.Equal(t, []gpu.Reason{ReasonSlowPeer}, reasons(r.GPUs[1].Findings))
	require.Equal(t, "slow to GPU 2 (NV18): measured 100 GB/s, expected 450 GB/s, limit 333 GB/s", r.GPUs[1].Findings[0].Message)
	require.Contains(t, r.GPUs[2].Findings[0].Message, "from GPU 1")
	require.Empty(t, r.GPUs[0].Findings)
}

func TestPCIePathsAreNotJudged(t *testing.T) {
	s, r := node("l40s", 2)
	s.Runs = []SampleRun{ways(s, func(int, int) float64 { return 1 })}
	Judge(&r, s, table(t))
	require.Equal(t, OK, r.Verdict)
	require.Equal(t, s.Snapshot.Links[0].Kind.String(), r.Peers[0].Link)
}

// The attributes give the highest clock, and the datasheet the boost clock: power may allow neither.
func TestRatesThatPowerLimitsAreComparedOnly(t *testing.T) {
	rate := func(name string, value, peak float64) probe.Figure {
		return probe.Figure{Name: name, Unit: "FLOP/s", Value: value, Peak: peak}
	}
	s, r := node("h100-sxm", 1)
	r.GPUs[0].Product = "NVIDIA Future"
	s.Runs = []SampleRun{passedRun("compute", gputest.GPU(0), rate("fp32", 1e12, 6e13))}
	Judge(&r, s, table(t))
	require.Equal(t, Figure{Name: "fp32", Unit: "FLOP/s", Value: 1e12, Expected: 6e13, Source: "driver attributes", Verdict: OK}, r.GPUs[0].Figures[0])

	own := table(t).overriddenBy(Thresholds{Products: []Product{{Names: []string{"NVIDIA Future"}, Limits: map[string]float64{"fp32": 0.5}}}})
	s, r = node("h100-sxm", 1)
	r.GPUs[0].Product = "NVIDIA Future"
	s.Runs = []SampleRun{passedRun("compute", gputest.GPU(0), rate("fp32", 1e12, 6e13))}
	Judge(&r, s, own)
	require.Equal(t, Slow, r.Verdict, "whoever gives a limit wants it")

	for throttle, by := range map[gpu.Throttle]string{gpu.ThrottlePowerCap: "the power limit", gpu.ThrottleApplication: "clocks that somebody set"} {
		s, r = node("h100-sxm", 4)
		for i, value := range []float64{40e12, 40e12, 40e12, 30e12} {
			s.Runs = append(s.Runs, passedRun("compute", gputest.GPU(i), rate("fp32", value, 0)))
			for _, reading := range s.Readings[2:4] {
				c := reading.Conditions[gputest.GPU(i)]
				c.Throttle = []gpu.Throttle{throttle}
				reading.Conditions[gputest.GPU(i)] = c
			}
		}
		Judge(&r, s, table(t))
		require.Equal(t, OK, r.GPUs[0].Verdict, throttle)
		require.Contains(t, r.GPUs[0].Notes[1], "limit 56.9 TFLOP/s: not judged, since "+by+" held the clocks down")
		require.Equal(t, []gpu.Reason{ReasonOutlier}, reasons(r.GPUs[3].Findings))
	}
}
