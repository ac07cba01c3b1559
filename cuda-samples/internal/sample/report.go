package sample

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/cuda-samples/driver"
	"github.com/gpuready/gpuready/internal/version"
)

// Report is the output of -o json: these fields, then the sample's own (Run.Field).
type Report struct {
	Sample     string             `json:"sample"`
	Version    string             `json:"version"`
	Passed     bool               `json:"passed"`
	Error      string             `json:"error,omitempty"`
	Next       string             `json:"next,omitempty"` // what to do about the error
	Code       int                `json:"code,omitempty"` // CUresult of the driver's call that failed (cuda.h)
	Simulated  bool               `json:"simulated"`
	CUDA       string             `json:"cuda,omitempty"` // the newest that the driver supports
	Device     string             `json:"device,omitempty"`
	UUID       string             `json:"uuid,omitempty"`
	PCI        string             `json:"pci,omitempty"`
	Capability string             `json:"capability,omitempty"`
	Runs       int                `json:"runs"`
	Seconds    map[string]float64 `json:"seconds"` // of each phase, of the last run
	Figures    []Figure           `json:"figures,omitempty"`
	Peers      []Peer             `json:"peers,omitempty"`
	Wrong      []Wrong            `json:"wrong,omitempty"` // the first ones
	WrongCount int                `json:"wrongCount,omitempty"`
	Notes      []string           `json:"notes,omitempty"` // skipped work, with the reason

	own map[string]any
}

// Figure is a measured speed. With a simulated driver it has no value.
type Figure struct {
	Name  string  `json:"name"`            // "copy", "fp32"
	Value float64 `json:"value,omitempty"` // in Unit
	Unit  string  `json:"unit"`            // "B/s" or "FLOP/s"
	Peak  float64 `json:"peak,omitempty"`  // computed from the device's attributes; 0: unknown
}

// Peer is the link from one device to another.
type Peer struct {
	From   string  `json:"from"` // UUIDs
	To     string  `json:"to"`
	Access bool    `json:"access"`          // directly, not through the host's memory
	Value  float64 `json:"value,omitempty"` // in Unit
	Unit   string  `json:"unit"`
}

// Wrong is one wrong result: an element, or a word of memory.
type Wrong struct {
	Index   []int  `json:"index,omitempty"`   // of an element: [i], [row, column]
	Address string `json:"address,omitempty"` // of a word, in the device's address space: "0x7f…"
	Offset  uint64 `json:"offset,omitempty"`  // of a word, in bytes from the start of the memory that is tested
	Want    string `json:"want"`
	Got     string `json:"got"`
	Pattern string `json:"pattern,omitempty"` // what was written
	Bits    []int  `json:"bits,omitempty"`    // of a word, that differ
}

func newReport(name string) *Report {
	return &Report{Sample: name, Version: version.String(), Seconds: map[string]float64{}, own: map[string]any{}}
}

// clone returns a copy that the running sample no longer changes. conclude sets Wrong later.
func (r *Report) clone() *Report {
	c := *r
	c.Seconds, c.own = maps.Clone(r.Seconds), maps.Clone(r.own)
	c.Figures, c.Peers, c.Notes = slices.Clone(r.Figures), slices.Clone(r.Peers), slices.Clone(r.Notes)
	return &c
}

// conclude records the outcome.
func (r *Report) conclude(err error) {
	r.Passed = err == nil
	if err == nil {
		return
	}
	r.Error, r.Next = strings.ReplaceAll(err.Error(), "\n", "; "), nextAction(err)
	if wrong, ok := errors.AsType[*WrongError](err); ok {
		r.Wrong, r.WrongCount = wrong.Wrong, wrong.Count
	}
	if failed, ok := errors.AsType[*driver.Error](err); ok {
		r.Code = failed.Code
	}
}

// errorLine returns the error and what to do about it, for people.
func (r *Report) errorLine() string {
	if r.Next == "" {
		return r.Error
	}
	return r.Error + "; next: " + r.Next
}

// writeFile writes the report to a file or a named pipe.
func (r *Report) writeFile(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// MarshalJSON writes the sample's own fields after those of all samples.
func (r *Report) MarshalJSON() ([]byte, error) {
	type plain Report
	common, err := json.Marshal((*plain)(r))
	if err != nil || len(r.own) == 0 {
		return common, err
	}
	own, err := json.Marshal(r.own)
	if err != nil {
		return nil, err
	}
	// Drop the closing brace of the one and the opening brace of the other.
	return bytes.Join([][]byte{common[:len(common)-1], own[1:]}, []byte(",")), nil
}
