// Package report formats the results of run and preflight: as text for a terminal, as JSON,
// as JUnit XML for a CI system, and that of a preflight also as an HTML page. It also makes the
// reports of explain: from the files of a node's components, or from the API server.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/internal/suggest"
	"github.com/gpuready/gpuready/validator/check"
)

// Report is one run of the validator.
type Report struct {
	Node     string // host name
	Version  string // of the validator
	Time     time.Time
	Outcomes []check.Outcome
}

// Formats returns the formats of Write and WritePreflight.
func Formats() []string { return []string{"text", "json", "junit"} }

// Write writes the report. color is for text on a terminal.
func (r Report) Write(w io.Writer, format string, color bool) error {
	switch format {
	case "text":
		return r.writeText(w, color)
	case "json":
		return r.writeJSON(w)
	case "junit":
		return r.writeJUnit(w)
	}
	return fmt.Errorf("unknown format %q%s", format, suggest.Hint(format, Formats()))
}

// Result returns the result of the run: PASSED, PASSED (SIMULATED), FAILED, or NO GPU
// where there was nothing to prove.
func (r Report) Result() string {
	result := "PASSED"
	absent, passed := false, false
	for _, o := range r.Outcomes {
		switch {
		case o.Kind == check.Failed || o.Kind == check.NotRun:
			return "FAILED"
		case o.Simulated():
			result = "PASSED (SIMULATED)"
		}
		absent = absent || o.Kind == check.Absent
		passed = passed || o.Kind == check.Passed && o.Proof.GPUs > 0 // for example GPUs passed through to virtual machines
	}
	if absent && !passed {
		return "NO GPU"
	}
	return result
}

// Failed returns the first layer that failed, nil if none did.
func (r Report) Failed() *check.Outcome {
	for i, o := range r.Outcomes {
		if o.Kind == check.Failed {
			return &r.Outcomes[i]
		}
	}
	return nil
}

type runJSON struct {
	Result    string      `json:"result"`
	Simulated bool        `json:"simulated"`
	Node      string      `json:"node"`
	Version   string      `json:"version"`
	Time      time.Time   `json:"time"`
	Layers    []layerJSON `json:"layers"`
}

type layerJSON struct {
	Layer     readiness.Layer      `json:"layer"`
	Outcome   check.Kind           `json:"outcome"`
	Seconds   float64              `json:"seconds"`
	Summary   string               `json:"summary,omitempty"`
	GPUs      int                  `json:"gpus,omitempty"`
	PerGPU    map[gpu.UUID]float64 `json:"secondsByGPU,omitempty"`
	Resources map[string]int       `json:"resources,omitempty"`
	Driver    string               `json:"driver,omitempty"`
	Reason    gpu.Reason           `json:"reason,omitempty"`
	Message   string               `json:"message,omitempty"`
	Action    string               `json:"action,omitempty"`
	Notes     []string             `json:"notes,omitempty"`
	Unproven  []unprovenJSON       `json:"unproven,omitempty"`
}

// unprovenJSON is a GPU or MIG device that is not proven now, since others use it.
type unprovenJSON struct {
	GPU       gpu.UUID   `json:"gpu"`
	Reason    gpu.Reason `json:"reason"`
	Code      int        `json:"code,omitempty"` // CUresult of the sample
	Message   string     `json:"message"`
	Pods      []string   `json:"pods,omitempty"`
	Processes []uint32   `json:"processes,omitempty"`
}

func (r Report) writeJSON(w io.Writer) error {
	d := runJSON{Result: r.Result(), Node: r.Node, Version: r.Version, Time: r.Time.UTC()}
	for _, o := range r.Outcomes {
		l := layerJSON{Layer: o.Layer, Outcome: o.Kind, Seconds: seconds(o.Elapsed), Notes: o.Notes}
		if p := o.Proof; p != nil {
			l.Summary, l.GPUs, l.PerGPU, l.Resources = p.Summary, p.GPUs, p.Seconds, p.Resources
			if p.Driver != nil {
				l.Driver = p.Driver.Version
			}
		}
		if f := o.NotReady; f != nil {
			l.Reason, l.Message, l.Action = f.Reason, f.Message, f.Action
		}
		for _, u := range o.Unproven {
			one := unprovenJSON{GPU: u.Unit.UUID, Reason: u.Reason, Code: u.Code, Message: u.Message, Pods: u.Pods}
			for _, p := range u.Processes {
				one.Processes = append(one.Processes, p.PID)
			}
			l.Unproven = append(l.Unproven, one)
		}
		d.Simulated = d.Simulated || o.Simulated()
		d.Layers = append(d.Layers, l)
	}
	return encodeJSON(w, d)
}

func encodeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// seconds rounds to milliseconds: finer figures mean nothing here.
func seconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}
