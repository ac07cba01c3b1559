// Package report holds the results of a measurement and renders them as tables, JSON, CSV,
// pictures and a page. It does no I/O beyond the readers and writers that callers pass.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/provision/step"
)

// Schema is the format of a report.
const Schema = "gpuready.io/provision/v1"

// Report holds the results of one run. Times are in seconds.
type Report struct {
	Schema string `json:"schema"`
	// Notice names what was simulated. It is the first line of every output.
	Notice  string    `json:"notice,omitempty"`
	Stack   string    `json:"stack"` // the GPU stack, as the user calls it
	Test    string    `json:"test"`
	Tool    string    `json:"tool"` // version of gpu-provision
	Began   time.Time `json:"began"`
	Cluster Cluster   `json:"cluster"`
	// Images holds the images of the stack's pods, by operand.
	Images  map[step.Operand][]string `json:"images,omitempty"`
	Samples []Sample                  `json:"samples"`
	// Ended is the reason why the run ended early; "" for a complete run.
	Ended string `json:"ended,omitempty"`
	// Jumps lists when the observer's time of day was set. No time in the report depends
	// on it.
	Jumps []Jump `json:"jumps,omitempty"`
	// Requests counts the requests that watched the cluster.
	Requests          int64   `json:"requests"`
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// Cluster describes the measured cluster.
type Cluster struct {
	Version string `json:"version"` // of the API server
	Nodes   int    `json:"nodes"`
	Kubelet string `json:"kubelet,omitempty"` // version on the measured nodes, as the fields below
	Runtime string `json:"runtime,omitempty"`
	System  string `json:"system,omitempty"`
	Kernel  string `json:"kernel,omitempty"`
}

// Outcome is the outcome of a sample.
type Outcome string

// The outcomes.
const (
	Complete    Outcome = "complete"
	TimedOut    Outcome = "timed-out"
	Failed      Outcome = "failed"
	Interrupted Outcome = "interrupted"
)

// Sample is one measurement, from the request for GPUs to the result.
type Sample struct {
	Number  int       `json:"number"` // from 1
	Began   time.Time `json:"began"`
	WarmUp  bool      `json:"dropped,omitempty"` // a warm-up, which is in no figure
	Outcome Outcome   `json:"outcome"`
	Reason  string    `json:"reason,omitempty"` // why it is not complete
	// PrepareSeconds is the time until nothing of the GPU stack was left.
	PrepareSeconds float64 `json:"prepareSeconds,omitempty"`
	// RemoveSeconds is the time from the end of the workload until the node was gone.
	RemoveSeconds float64         `json:"removeSeconds,omitempty"`
	Timelines     []step.Timeline `json:"timelines"` // one for each node
	Gaps          []Gap           `json:"gaps,omitempty"`
}

// Gap is a time in which the API server did not respond, in seconds since the sample began.
type Gap struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// Jump is a change of the time of day.
type Jump struct {
	At time.Time `json:"at"` // by the new time of day
	By float64   `json:"by"`
}

// Counted reports whether the sample is included in the figures.
func (s Sample) Counted() bool { return !s.WarmUp && s.Outcome == Complete }

// Total returns the seconds until the last node of the sample was done.
func (s Sample) Total() float64 {
	total := 0.0
	for _, t := range s.Timelines {
		total = max(total, t.Total())
	}
	return total
}

// Counted returns the samples that are included in the figures.
func (r *Report) Counted() []Sample {
	var all []Sample
	for _, s := range r.Samples {
		if s.Counted() {
			all = append(all, s)
		}
	}
	return all
}

// maxReport bounds a report file, in bytes.
const maxReport = 64 << 20

// Read reads a report. name is the file's name, for errors.
func Read(r io.Reader, name string) (*Report, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxReport {
		return nil, fmt.Errorf("%s is larger than %d MiB; is it a report?", name, maxReport>>20)
	}
	var of struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(data, &of); err != nil {
		return nil, fmt.Errorf("%s is not a report of gpu-provision measure: %w", name, err)
	}
	if of.Schema != Schema {
		return nil, fmt.Errorf("%s: schema is %q; this version reads %s", name, of.Schema, Schema)
	}
	rep := &Report{}
	if err := json.Unmarshal(data, rep); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	rep.sanitizeTexts()
	return rep, rep.checkValues(name)
}

// sanitizeTexts sanitizes texts of other origin for one line of a terminal, table or picture.
func (r *Report) sanitizeTexts() {
	texts := []*string{&r.Notice, &r.Stack, &r.Test, &r.Tool, &r.Ended, &r.Cluster.Version, &r.Cluster.Kubelet, &r.Cluster.Runtime, &r.Cluster.System, &r.Cluster.Kernel}
	for i := range r.Samples {
		texts = append(texts, &r.Samples[i].Reason)
		for j := range r.Samples[i].Timelines {
			texts = append(texts, &r.Samples[i].Timelines[j].Node)
		}
	}
	for _, images := range r.Images {
		for i := range images {
			texts = append(texts, &images[i])
		}
	}
	const most = 1024
	for _, text := range texts {
		*text = record.Clean(*text, most)
	}
}

// maxSeconds bounds a time in a report: a month.
const maxSeconds = 31 * 24 * 3600

// checkValues rejects values that no measurement writes, so that other code need not handle them.
func (r *Report) checkValues(name string) error {
	for i, s := range r.Samples {
		for _, t := range s.Timelines {
			for _, reached := range t.Steps {
				if _, known := step.Find(reached.Step); !known {
					return fmt.Errorf("%s: samples[%d]: unknown step %.40q", name, i, reached.Step)
				}
				if least, most := min(reached.At, reached.Took, reached.Late), max(reached.At, reached.Took, reached.Late); least < 0 || most > maxSeconds {
					return fmt.Errorf("%s: samples[%d]: step %s has a time that is negative or longer than a month", name, i, reached.Step)
				}
			}
		}
		if !slices.Contains([]Outcome{Complete, TimedOut, Failed, Interrupted}, s.Outcome) {
			return fmt.Errorf("%s: samples[%d]: unknown outcome %.40q", name, i, s.Outcome)
		}
	}
	return nil
}

// Write writes the report as JSON.
func (r *Report) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
