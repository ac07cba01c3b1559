package judge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/preflight/result"
)

// health judges what a GPU told of itself before, while and after the samples
// ran. all are the node's devices.
func health(g *result.GPU, s Seen, all []result.GPU) {
	device, _ := s.Snapshot.Device(g.UUID)
	if f := device.Fault; f != (gpu.Fault{}) {
		find(g, result.Unhealthy, f.Reason, f.Message, "look for Xid lines in dmesg; reset the GPU, or have it replaced where that does not mend it")
	}
	if device.MIGEnabled && len(device.MIG) == 0 {
		find(g, result.NotRun, ReasonNothingRuns, "it is in MIG mode and has no MIG devices, so nothing can run on it", "create MIG devices, or turn MIG mode off")
	}
	heard(g, s.Events)
	var own []gpu.Condition
	for _, r := range s.Readings {
		if why := r.Errors[g.UUID]; why != "" && device.Fault == (gpu.Fault{}) {
			find(g, result.Unhealthy, ReasonNotRead, why, "look for NVRM and Xid lines in dmesg; a GPU that does not answer needs a reset")
			break
		}
		if c, has := r.Conditions[g.UUID]; has {
			own = append(own, c)
		}
	}
	if len(own) == 0 {
		return
	}
	last := own[len(own)-1]
	g.Condition = &last
	memory(g, own[0], last, device.Fault)
	throttled(g, s.Readings)
	link(g, s.Readings, own)
	if !device.MIGEnabled { // NVLink is off in MIG mode
		nvlinks(g, last, s, all)
	}
}

// heard are the errors that the driver reported while the preflight ran.
func heard(g *result.GPU, events []gpu.Event) {
	var told []string
	for _, e := range events {
		if e.UUID != g.UUID && e.UUID != "" {
			continue
		}
		text := fmt.Sprint(e.Kind, e.XID, e.UUID)
		if slices.Contains(told, text) {
			continue
		}
		told = append(told, text)
		const action = "look for Xid lines in dmesg; docs/xids.md says what each asks for"
		switch e.Kind {
		case gpu.EventXID:
			if info, known := gpu.XID(e.XID); known && info.Action == gpu.ActionIgnore {
				g.Notes = append(g.Notes, gpu.XIDText(e.XID)+" was reported during the run")
				continue
			}
			find(g, result.Unhealthy, gpu.ReasonXID, gpu.XIDText(e.XID)+" was reported during the run", action)
		case gpu.EventECC:
			find(g, result.Unhealthy, gpu.ReasonECC, "an uncorrectable memory error was reported during the run", action)
		case gpu.EventLost:
			find(g, result.Unhealthy, gpu.ReasonLost, e.Message, action)
		case gpu.EventUnwatched:
			g.Notes = append(g.Notes, "XIDs were not listened for: "+e.Message)
		}
	}
}

// memory judges memory errors. What happened earlier in the GPU's life and was
// mended is no fault.
func memory(g *result.GPU, first, last gpu.Condition, fault gpu.Fault) {
	e := last.ECC
	const reset = "end the programs on the GPU, then reset it (nvidia-smi --gpu-reset); if it comes again, have the GPU replaced"
	switch {
	case e.On && e.Volatile > 0:
		message := fmt.Sprintf("%d uncorrectable memory errors since the driver was loaded", e.Volatile)
		if now := e.Volatile - min(first.ECC.Volatile, e.Volatile); now > 0 {
			message += fmt.Sprintf(", %d of them during the run", now)
		}
		find(g, result.Unhealthy, gpu.ReasonECC, message, reset)
	case e.On && e.Aggregate > 0:
		g.Notes = append(g.Notes, fmt.Sprintf("%d uncorrectable memory errors in its life, none since the driver was loaded", e.Aggregate))
	}
	switch {
	case last.Rows.Failed && fault.Reason != gpu.ReasonRowRemap:
		find(g, result.Unhealthy, gpu.ReasonRowRemap, "remapping a row of faulty memory failed", "have the GPU replaced")
	case last.Rows.Pending && fault.Reason != gpu.ReasonResetNeeded:
		find(g, result.Unhealthy, gpu.ReasonResetNeeded, "rows of faulty memory wait to be remapped", reset)
	case last.Rows.Uncorrected > 0:
		g.Notes = append(g.Notes, fmt.Sprintf("%d rows of memory were remapped after uncorrectable errors", last.Rows.Uncorrected))
	}
}

// throttled judges why clocks were held down at any moment.
func throttled(g *result.GPU, readings []Reading) {
	var bad, harmless []string
	for _, r := range readings {
		for _, t := range r.Conditions[g.UUID].Throttle {
			list := &harmless
			if t.Bad() {
				list = &bad
			}
			if word := string(t); t != gpu.ThrottleIdle && !slices.Contains(*list, word) {
				*list = append(*list, word)
			}
		}
	}
	if len(bad) > 0 {
		find(g, result.Unhealthy, ReasonThrottled, "the clocks are held down: "+strings.Join(bad, ", "),
			"look at temperature, airflow and power supply of this slot: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i "+string(g.UUID))
	}
	if len(harmless) > 0 {
		g.Notes = append(g.Notes, "the clocks were held down: "+strings.Join(harmless, ", "))
	}
}

// enough is how many readings under load it takes to say that a generation is not
// reached: one may be of the moment before the GPU woke.
const enough = 3

// link judges the PCIe link: the width at any moment, the generation only where
// a sample was running, since an idle GPU lowers it to save power.
func link(g *result.GPU, readings []Reading, own []gpu.Condition) {
	width, highest, loaded := own[0].PCIe, 0, 0
	for _, c := range own {
		if c.PCIe.Width > 0 && c.PCIe.Width < width.Width {
			width = c.PCIe
		}
	}
	for _, r := range readings {
		if c, has := r.Conditions[g.UUID]; has && r.Loaded {
			highest = max(highest, c.PCIe.Generation)
			loaded++
		}
	}
	const action = "seat the GPU anew, look at riser and cable, and compare lspci -vv (LnkSta, LnkCap) with its neighbours"
	if width.Width > 0 && width.Width < width.MaxWidth {
		find(g, result.Unhealthy, ReasonPCIe, fmt.Sprintf("the PCIe link is ×%d, and GPU and slot can ×%d", width.Width, width.MaxWidth), action)
	}
	if can := own[0].PCIe.MaxGeneration; loaded >= enough && highest > 0 && highest < can {
		find(g, result.Unhealthy, ReasonPCIe, fmt.Sprintf("the PCIe link is of generation %d under load, and GPU and slot can %d", highest, can), action)
	}
}

// nvlinks compares the links that are up with those of the node's equal GPUs: how
// many a board connects is not something that NVML tells.
func nvlinks(g *result.GPU, c gpu.Condition, s Seen, all []result.GPU) {
	most := 0
	for _, other := range all {
		if other.Product == g.Product && other.Parent == "" && len(s.Readings) > 0 {
			most = max(most, len(s.Readings[len(s.Readings)-1].Conditions[other.UUID].NVLinks.Up))
			most = max(most, len(s.Readings[0].Conditions[other.UUID].NVLinks.Up))
		}
	}
	up := len(c.NVLinks.Up)
	switch {
	case up < most:
		find(g, result.Unhealthy, ReasonNVLink, fmt.Sprintf("%d of %d NVLinks are up; down: %s", up, most, numbers(c.NVLinks.Down)),
			"see nvidia-smi nvlink -s -i "+string(g.UUID)+" and the fabric manager's log; reset the GPU; if it stays so, look at bridge or baseboard")
	case up == 0 && len(c.NVLinks.Down) > 0:
		g.Notes = append(g.Notes, "no NVLink is up, as on its equals here: there is no bridge, or nothing at the other end")
	}
}

func numbers(list []int) string {
	words := make([]string, len(list))
	for i, n := range list {
		words[i] = fmt.Sprint(n)
	}
	if len(words) > 18 { // NVML_NVLINK_MAX_LINKS
		words = append(words[:18], "…")
	}
	return strings.Join(words, ", ")
}
