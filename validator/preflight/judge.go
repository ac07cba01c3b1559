package preflight

// This file and health.go, link.go, nvlink.go, speed.go and peer.go derive the result of a preflight, with pure
// functions, from readings of NVML, answers of the samples, and thresholds.

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/probe"
)

// Reasons of findings, besides those of package gpu.
const (
	ReasonThrottled gpu.Reason = "ClocksHeldDown"
	ReasonPCIe      gpu.Reason = "PCIeLinkDegraded"
	ReasonNVLink    gpu.Reason = "NVLinkDown"
	ReasonSample    gpu.Reason = "SampleFailed"
	ReasonWrong     gpu.Reason = "WrongResult"
	ReasonMemory    gpu.Reason = "MemoryWrong"
	ReasonNoResult  gpu.Reason = "NoResultInTime"
	ReasonNoSample  gpu.Reason = "SampleMissing"
	ReasonSlow      gpu.Reason = "BelowLimit"
	ReasonOutlier   gpu.Reason = "Outlier"
	ReasonSlowPeer  gpu.Reason = "PeerBelowLimit"
	ReasonNotRead   gpu.Reason = "ConditionNotRead"
	ReasonNoMIG     gpu.Reason = "NoMIGDevices"
	ReasonInUse     gpu.Reason = "GPUInUse"
	ReasonForbidden gpu.Reason = "ComputeProhibited"
)

// Observations holds the observations of a preflight.
type Observations struct {
	Snapshot gpu.Snapshot
	Readings []Reading // in the order of time, the first before the samples, the last after them
	Events   []gpu.Event
	Runs     []SampleRun // in the order in which they were started
	// After is the snapshot after the samples; empty unless an XID was reported of which the driver decides.
	After       gpu.Snapshot
	EventsError string            // why events were not received; "" if they were
	Recorded    []nodestate.Fault // earlier faults of which the device plugin has seen no end
	// RecorderGone means that the device plugin does not run, so that it sees no end.
	RecorderGone bool
	// OnDemand means that GPUs in MIG mode are partitioned as claims need it: nothing is run on them.
	OnDemand bool
}

// Reading is the condition of all GPUs at one moment.
type Reading struct {
	Loaded     bool // a sample was running
	Conditions map[gpu.UUID]gpu.Condition
	Errors     map[gpu.UUID]string // of the GPUs that could not be read
}

// SampleRun is the result of a sample on a GPU or MIG device; Device is "" if it ran on all of
// them.
type SampleRun struct {
	Sample string
	Device gpu.UUID
	probe.SampleResult
}

// Judge adds findings, figures and verdicts to a result that lists the devices.
func Judge(r *Result, s Observations, t Thresholds) {
	for i := range r.GPUs {
		r.GPUs[i].link = hostLinkOf(s.Readings, r.GPUs[i].UUID)
		if s.isIdle(r.GPUs[i].UUID) {
			r.GPUs[i].link.generation, r.GPUs[i].link.loaded = 0, 0
		}
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		device, _ := s.Snapshot.Device(g.UUID) // none for a MIG device, which has no compute mode
		if g.Parent == "" {                    // not a MIG device
			judgeHealth(g, s, r.GPUs, t)
		}
		for _, run := range s.Runs {
			if run.Device == g.UUID {
				judgeRun(g, run, device.ComputeMode, r.Simulated)
			}
		}
		judgeFigures(g, s, t, r.Simulated)
	}
	for _, run := range s.Runs {
		switch {
		case run.Outcome == probe.SampleMissing:
			addMissingSample(r, run)
		case run.Device == "":
			judgePeers(r, run, s, t)
		}
	}
	findOutliers(r, t.BelowMedian())
	if s.EventsError != "" {
		r.Notes = append(r.Notes, "XIDs were not watched: "+s.EventsError)
	}
	r.Settle()
}

// isIdle reports whether nothing has run on a GPU, so that its readings under load say nothing: it was left out,
// or no sample passed on it or its MIG devices.
func (s Observations) isIdle(id gpu.UUID) bool {
	device, _ := s.Snapshot.Device(id)
	if device.Fault != (gpu.Fault{}) || device.MIGEnabled && (s.OnDemand || len(device.MIG) == 0) {
		return true
	}
	tried := false
	for _, run := range s.Runs {
		if run.Device != id && !slices.ContainsFunc(device.MIG, func(m gpu.MIGDevice) bool { return m.UUID == run.Device }) {
			continue
		}
		if run.Outcome == probe.SamplePassed {
			return false
		}
		tried = true
	}
	return tried
}

// addFinding adds a finding to a device.
func addFinding(g *GPU, v Verdict, reason gpu.Reason, message, action string) {
	g.Findings = append(g.Findings, Finding{Verdict: v, Reason: reason, Message: record.Clean(message, 2000), Action: action})
}

// judgeRun records how a sample ended on a device.
func judgeRun(g *GPU, run SampleRun, mode gpu.ComputeMode, simulated bool) {
	out := JudgedRun{Sample: run.Sample, Seconds: run.Elapsed.Round(time.Millisecond).Seconds(), Message: run.Message, Verdict: OK}
	bad := func(v Verdict, reason gpu.Reason, message, action string) {
		out.Verdict, out.Message = v, message
		addFinding(g, v, reason, run.Sample+": "+message, action)
		g.Findings[len(g.Findings)-1].Sample = run.Sample
	}
	switch {
	case run.Outcome == probe.SamplePassed && run.Answer.Simulated != simulated:
		bad(Unhealthy, ReasonSample, fmt.Sprintf("libcuda and libnvidia-ml are of different drivers: libcuda is simulated: %t, libnvidia-ml: %t", run.Answer.Simulated, simulated),
			"install all user libraries of one driver version")
	case run.Outcome == probe.SamplePassed:
		g.Notes = append(g.Notes, sampleNotes(run)...)
	case run.Outcome == probe.SampleImpossible:
		g.Notes = append(g.Notes, run.Sample+": "+run.Message)
	case run.Outcome == probe.SampleWrong && run.Sample == "memtest":
		bad(Wrong, ReasonMemory, badMemory(run), "take the GPU out of service; look for Xid lines in dmesg; if a reset does not mend it, have it replaced")
	case run.Outcome == probe.SampleWrong:
		bad(Wrong, ReasonWrong, run.Message,
			"take the GPU out of service; repeat by hand: CUDA_VISIBLE_DEVICES="+string(g.UUID)+" "+run.Sample)
	case run.Outcome == probe.SampleNoResult:
		bad(NotRun, ReasonNoResult, run.Message,
			"give more time with --timeout; a GPU that hangs needs a reset: look for Xid lines in dmesg")
	case run.Outcome == probe.SampleMissing: // reported once, for the node
		out.Verdict = NotRun
	case run.Outcome == probe.SampleFailed && mode == gpu.ComputeProhibited:
		bad(NotRun, ReasonForbidden, run.Message, "nothing, if that is intended; else: nvidia-smi -i "+string(g.UUID)+" -c DEFAULT")
	case run.MeansInUse():
		bad(NotRun, ReasonInUse, run.Message, actionInUse)
	default:
		bad(Unhealthy, ReasonSample, run.Message, "repeat by hand: CUDA_VISIBLE_DEVICES="+string(g.UUID)+" "+run.Sample)
	}
	g.Runs = append(g.Runs, out)
}

const actionInUse = "see who has its memory, or all of it (nvidia-smi on the host), and run again when it is idle; if nobody has, reset the GPU"

// addMissingSample adds a finding for a missing sample, once.
func addMissingSample(r *Result, run SampleRun) {
	if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Reason == ReasonNoSample && f.Sample == run.Sample }) {
		return
	}
	r.Findings = append(r.Findings, Finding{
		Verdict: NotRun, Reason: ReasonNoSample, Sample: run.Sample, Message: run.Message,
		Action: "install it on the node: the validator's image has all samples",
	})
}

func sampleNotes(run SampleRun) []string {
	var list []string
	for _, n := range run.Answer.Notes {
		list = append(list, run.Sample+": "+record.Clean(n, 500))
	}
	return list
}

// badMemory names the first words that a memory test did not read back as written.
func badMemory(run SampleRun) string {
	var words []string
	for _, w := range run.Answer.Wrong {
		if len(words) == 3 {
			words = append(words, "…")
			break
		}
		text := fmt.Sprintf("%s: wrote %v, read %v", w.Address, w.Want, w.Got)
		if w.Pattern != "" {
			text += " (" + w.Pattern + ")"
		}
		words = append(words, text)
	}
	if len(words) == 0 {
		return run.Message
	}
	count := max(run.Answer.WrongCount, uint64(len(run.Answer.Wrong)))
	what := "words are"
	if count == 1 {
		what = "word is"
	}
	return fmt.Sprintf("%d %s bad: %s", count, what, strings.Join(words, "; "))
}

// median returns the median of a list that is not empty.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
