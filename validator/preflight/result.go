package preflight

import (
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// ResultSchema is the version of the JSON. A reader accepts this version and none newer.
const ResultSchema = 1

// Verdict is the outcome for a GPU or a MIG device, or for the node.
type Verdict string

// The verdicts, from best to worst.
const (
	OK        Verdict = "ok"
	NotRun    Verdict = "not run"   // some checks could not be run
	Slow      Verdict = "slow"      // a figure is below its limit, or far below that of its equals
	Wrong     Verdict = "wrong"     // it computed or stored a wrong value
	Unhealthy Verdict = "unhealthy" // it, or its driver, reports a fault
)

var verdictOrder = []Verdict{OK, NotRun, Slow, Wrong, Unhealthy}

// Worse returns the worse of two verdicts.
func Worse(a, b Verdict) Verdict {
	if slices.Index(verdictOrder, a) >= slices.Index(verdictOrder, b) {
		return a
	}
	return b
}

// Result is one run on one node.
type Result struct {
	Schema    int       `json:"schema"`
	Verdict   Verdict   `json:"verdict"`
	Simulated bool      `json:"simulated"` // there is no GPU under the driver: nothing here says how fast or healthy one is
	Node      string    `json:"node"`
	Version   string    `json:"version"` // of gpu-validator
	Time      time.Time `json:"time"`
	Seconds   float64   `json:"seconds"`
	Driver    string    `json:"driver"`
	CUDA      string    `json:"cuda,omitempty"`
	GPUs      []GPU     `json:"gpus"`
	Peers     []Peer    `json:"peers,omitempty"`
	Findings  []Finding `json:"findings,omitempty"` // of the node as a whole
	Notes     []string  `json:"notes,omitempty"`
}

// GPU is a GPU, or a MIG device of one; a MIG device follows its GPU, which
// itself can then run nothing.
type GPU struct {
	Index     string         `json:"index"` // "3", or "3:1" for a MIG device
	UUID      gpu.UUID       `json:"uuid"`
	Parent    gpu.UUID       `json:"gpu,omitempty"` // of a MIG device
	Profile   string         `json:"profile,omitempty"`
	Product   string         `json:"product"`
	PCI       gpu.PCIAddress `json:"pci"`
	Slot      string         `json:"slot,omitempty"`
	Port      *Port          `json:"port,omitempty"` // that it is plugged into; nil if not visible
	Compute   string         `json:"capability"`
	Verdict   Verdict        `json:"verdict"`
	Findings  []Finding      `json:"findings,omitempty"`
	Notes     []string       `json:"notes,omitempty"`
	Runs      []JudgedRun    `json:"runs,omitempty"`
	Figures   []Figure       `json:"figures,omitempty"`
	Condition *gpu.Condition `json:"condition,omitempty"` // at the end

	link      hostLink
	linksTold bool // the thresholds say how many NVLinks are up
	migMode   bool
	limitedBy string // what held the clocks down under load, in good order; "": nothing
}

// Finding describes a problem.
type Finding struct {
	Verdict Verdict    `json:"verdict"`
	Reason  gpu.Reason `json:"reason"`
	Message string     `json:"message"`
	Action  string     `json:"action"`
	Sample  string     `json:"sample,omitempty"` // what it was found by; "" with "" below: by asking the driver
	Figure  string     `json:"figure,omitempty"`
}

// JudgedRun is one sample on one device.
type JudgedRun struct {
	Sample  string  `json:"sample"`
	Verdict Verdict `json:"verdict"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"`
}

// Figure is a speed. Units are B/s and FLOP/s.
type Figure struct {
	Name     string  `json:"name"`
	Unit     string  `json:"unit"`
	Value    float64 `json:"value,omitempty"` // 0: not measured, on a simulated driver
	Expected float64 `json:"expected,omitempty"`
	Limit    float64 `json:"limit,omitempty"` // below it is slow; 0: not judged
	Source   string  `json:"source,omitempty"`
	Median   float64 `json:"median,omitempty"` // of the node's equal GPUs
	Last     float64 `json:"last,omitempty"`   // of the run before, on this GPU
	Best     float64 `json:"best,omitempty"`   // of all runs that are kept, on this GPU
	Verdict  Verdict `json:"verdict,omitempty"`
}

// Peer is the path from one GPU to another.
type Peer struct {
	From     gpu.UUID `json:"from"`
	To       gpu.UUID `json:"to"`
	Access   bool     `json:"access"`
	Link     string   `json:"link,omitempty"` // as nvidia-smi topo -m has it: NV18, PIX, SYS
	Unit     string   `json:"unit,omitempty"`
	Value    float64  `json:"value,omitempty"`
	Expected float64  `json:"expected,omitempty"`
	Limit    float64  `json:"limit,omitempty"`
	Verdict  Verdict  `json:"verdict,omitempty"`
}

// Name returns the name of the device for people.
func (g GPU) Name() string {
	what := "GPU "
	if g.Parent != "" {
		what = "MIG device "
	}
	where := string(g.UUID) + ", " + string(g.PCI)
	if g.Slot != "" {
		where += ", slot " + g.Slot
	}
	return what + g.Index + " (" + where + ")"
}

// Find returns the figure of a name.
func (g GPU) Find(name string) (Figure, bool) {
	i := slices.IndexFunc(g.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return g.Figures[i], true
}

// Word returns the verdict for people, which always marks a simulated driver.
func (r Result) Word() string {
	word := map[Verdict]string{OK: "PASSED", NotRun: "NOT RUN", Slow: "SLOW", Wrong: "WRONG", Unhealthy: "UNHEALTHY"}[r.Verdict]
	if r.Simulated {
		word += " (SIMULATED)"
	}
	return word
}

// Worst returns the first of the worst findings, and its device (nil: the node); nil if
// there is no finding.
func (r Result) Worst() (*GPU, *Finding) {
	var worst *Finding
	var of *GPU
	consider := func(g *GPU, list []Finding) {
		for i := range list {
			if worst == nil || slices.Index(verdictOrder, list[i].Verdict) > slices.Index(verdictOrder, worst.Verdict) {
				of, worst = g, &list[i]
			}
		}
	}
	for i := range r.GPUs {
		consider(&r.GPUs[i], r.GPUs[i].Findings)
	}
	consider(nil, r.Findings)
	return of, worst
}

// Settle sets the verdicts of GPUs and node to the worst of their findings.
func (r *Result) Settle() {
	worst := func(list []Finding) Verdict {
		v := OK
		for _, f := range list {
			v = Worse(v, f.Verdict)
		}
		return v
	}
	r.Verdict = worst(r.Findings)
	for i := range r.GPUs {
		r.GPUs[i].Verdict = worst(r.GPUs[i].Findings)
		r.Verdict = Worse(r.Verdict, r.GPUs[i].Verdict)
	}
}
