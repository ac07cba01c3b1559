package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// judgeHealth judges the state that a GPU reported before, during and after the samples. The parameter all
// lists the node's devices, for comparison.
func judgeHealth(g *GPU, s Observations, all []GPU, t Thresholds) {
	judgeRecorded(g, s.Recorded, s.RecorderGone)
	device, _ := s.Snapshot.Device(g.UUID)
	if f := device.Fault; f != (gpu.Fault{}) {
		addFinding(g, Unhealthy, f.Reason, f.Message, "look for Xid lines in dmesg; reset the GPU, or have it replaced if that does not help")
	}
	switch {
	case device.MIGEnabled && s.OnDemand:
		addFinding(g, NotRun, ReasonNoMIG, "it is partitioned as claims need it, so nothing was run on it", "for a preflight, drain the node and turn MIG mode off: nvidia-smi -i "+string(g.UUID)+" -mig 0")
	case device.MIGEnabled && len(device.MIG) == 0:
		addFinding(g, NotRun, ReasonNoMIG, "it is in MIG mode and has no MIG devices, so nothing can run on it", "create MIG devices, or turn MIG mode off")
	}
	after, _ := s.After.Device(g.UUID)
	judgeEvents(g, s.Events, after.Recovery)
	var conditions []gpu.Condition // the GPU's, of each reading that has one
	for _, r := range s.Readings {
		if why := r.Errors[g.UUID]; why != "" && device.Fault == (gpu.Fault{}) {
			addFinding(g, Unhealthy, ReasonNotRead, why, "look for NVRM and Xid lines in dmesg; a GPU that does not answer needs a reset")
			break
		}
		if c, ok := r.Conditions[g.UUID]; ok {
			conditions = append(conditions, c)
		}
	}
	if len(conditions) == 0 {
		return
	}
	last := conditions[len(conditions)-1]
	g.Condition, g.migMode = &last, device.MIGEnabled
	judgeMemory(g, conditions[0], last, device.Fault)
	judgeThrottle(g, s.Readings)
	judgeLink(g, all, t)
	if !device.MIGEnabled { // NVLink is off in MIG mode
		judgeNVLinks(g, s, all, t)
	}
}

// judgeRecorded adds the faults for which the device plugin withholds a GPU. NVML may not report them any
// more, and they are the cause of what it reports.
func judgeRecorded(g *GPU, faults []nodestate.Fault, recorderGone bool) {
	for _, f := range faults {
		if f.GPU != g.UUID {
			continue
		}
		where := ""
		if f.GPUInstance != nil {
			where = fmt.Sprintf("GPU instance %d: ", *f.GPUInstance)
		}
		fault := gpu.Fault{Reason: f.Reason, Message: f.Message, XID: f.XID}
		message := fmt.Sprintf("%s%s, recorded by the device plugin at %s", where, cmp.Or(f.Message, string(f.Reason)), f.Since.UTC().Format(time.RFC3339))
		action := cmp.Or(fault.NextAction(g.UUID), "see the log of gpu-device-plugin on this node")
		if recorderGone {
			message += ", which does not run now"
			action += "; then start gpu-device-plugin, which alone sees that the fault has ended"
		}
		addFinding(g, Unhealthy, f.Reason, message, action)
	}
}

// driverDecides reports whether an event is an XID of which the driver decides whether it asks for a recovery.
func driverDecides(e gpu.Event) bool {
	info, known := gpu.XID(e.XID)
	return e.Kind == gpu.EventXID && (!known || info.Action == gpu.ActionAsk)
}

// judgeEvents adds the errors that the driver reported during the preflight. wanted is the recovery that the
// driver asked for after them, "" if it is not known.
func judgeEvents(g *GPU, events []gpu.Event, wanted gpu.RecoveryAction) {
	var reported []string
	for _, e := range events {
		if e.UUID != g.UUID && e.UUID != "" {
			continue
		}
		text := fmt.Sprint(e.Kind, e.XID, e.UUID)
		if slices.Contains(reported, text) {
			continue
		}
		reported = append(reported, text)
		const action = "look for Xid lines in dmesg; docs/reasons.md says what each asks for"
		switch e.Kind {
		case gpu.EventXID:
			if info, known := gpu.XID(e.XID); known && info.Action == gpu.ActionIgnore {
				g.Notes = append(g.Notes, gpu.XIDText(e.XID)+" was reported during the run")
				continue
			}
			if driverDecides(e) && wanted == gpu.RecoverNothing {
				g.Notes = append(g.Notes, gpu.XIDText(e.XID)+" was reported during the run; the driver asks for no recovery")
				continue
			}
			addFinding(g, Unhealthy, gpu.ReasonXID, gpu.XIDText(e.XID)+" was reported during the run", action)
		case gpu.EventECC:
			addFinding(g, Unhealthy, gpu.ReasonECC, "an uncorrectable memory error was reported during the run", action)
		case gpu.EventLost:
			addFinding(g, Unhealthy, gpu.ReasonLost, e.Message, action)
		case gpu.EventUnwatched:
			g.Notes = append(g.Notes, "XIDs were not watched: "+e.Message)
		}
	}
}

// judgeMemory judges memory errors. An earlier error that was repaired is no fault; the fault that the
// device reports is judged already.
func judgeMemory(g *GPU, first, last gpu.Condition, fault gpu.Fault) {
	e := last.ECC
	const reset = "end the programs on the GPU, then reset it (nvidia-smi --gpu-reset); if it comes again, have the GPU replaced"
	switch {
	case e.On && e.Volatile > 0:
		message := countNoun(e.Volatile, "uncorrectable memory error") + " since the driver was loaded"
		if now := e.Volatile - min(first.ECC.Volatile, e.Volatile); now > 0 { // a reset clears the counter
			message += fmt.Sprintf(", %d of them during the run", now)
		}
		addFinding(g, Unhealthy, gpu.ReasonECC, message, reset)
	case e.On && e.Aggregate > 0:
		g.Notes = append(g.Notes, countNoun(e.Aggregate, "uncorrectable memory error")+" in its life, none since the driver was loaded")
	}
	switch {
	case last.Rows.Failed && fault.Reason != gpu.ReasonRowRemap:
		addFinding(g, Unhealthy, gpu.ReasonRowRemap, "remapping a row of faulty memory failed", "have the GPU replaced")
	case last.Rows.Pending && fault.Reason != gpu.ReasonResetNeeded:
		addFinding(g, Unhealthy, gpu.ReasonResetNeeded, "rows of faulty memory wait to be remapped", reset)
	case last.Rows.Uncorrected > 0:
		remapped := countNoun(last.Rows.Uncorrected, "row") + " of memory were remapped after uncorrectable errors"
		if last.Rows.Uncorrected == 1 {
			remapped = "1 row of memory was remapped after an uncorrectable error"
		}
		g.Notes = append(g.Notes, remapped)
	}
}

// countNoun returns a number of things: "1 error", "2 errors".
func countNoun[N ~int | ~uint32 | ~uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// clockLimits describes what holds clocks down because somebody wants it.
var clockLimits = map[gpu.Throttle]string{gpu.ThrottlePowerCap: "the power limit", gpu.ThrottleApplication: "clocks that somebody set"}

// judgeThrottle judges the reasons for throttled clocks in all readings.
func judgeThrottle(g *GPU, readings []Reading) {
	var bad, harmless []string
	for _, r := range readings {
		for _, t := range r.Conditions[g.UUID].Throttle {
			list := &harmless
			if t.Bad() {
				list = &bad
			}
			if r.Loaded && g.limitedBy == "" {
				g.limitedBy = clockLimits[t]
			}
			if word := string(t); t != gpu.ThrottleIdle && !slices.Contains(*list, word) {
				*list = append(*list, word)
			}
		}
	}
	if len(bad) > 0 {
		addFinding(g, Unhealthy, ReasonThrottled, "the clocks are held down: "+strings.Join(bad, ", "),
			"look at temperature, airflow and power supply of this slot: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i "+string(g.UUID))
	}
	if len(harmless) > 0 {
		g.Notes = append(g.Notes, "the clocks were held down: "+strings.Join(harmless, ", "))
	}
}
