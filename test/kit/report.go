package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// pageName is the name of the page's files, without their endings.
const pageName = "gpu-kit"

// report holds the results of a run.
type report struct {
	Began     time.Time `json:"began"`
	Seconds   float64   `json:"seconds"`
	Simulated bool      `json:"simulated"`
	GPUs      []string  `json:"gpus"`
	Driver    string    `json:"driver"`
	Kernel    string    `json:"kernel"`
	Version   string    `json:"version"`
	Steps     []result  `json:"steps"`
	Figures   []figure  `json:"figures"`
}

// outcome names the end of a step.
type outcome string

const (
	passed  outcome = "passed"
	failed  outcome = "failed"
	skipped outcome = "skipped"
)

// result holds the result of one step.
type result struct {
	Step    string  `json:"step"`
	Expect  string  `json:"expect"`
	Outcome outcome `json:"outcome"`
	Seen    string  `json:"seen"` // or why it failed or was skipped
	Seconds float64 `json:"seconds"`
}

// figure is a measured value.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

func (r *report) hasPassed() bool { return len(r.Steps) > 0 && r.count(failed) == 0 }

func (r *report) count(o outcome) (n int) {
	for _, s := range r.Steps {
		if s.Outcome == o {
			n++
		}
	}
	return n
}

func (r *report) summary() string {
	return fmt.Sprintf("%d steps passed, %d failed, %d skipped, in %.0f s", r.count(passed), r.count(failed), r.count(skipped), r.Seconds)
}

func (r *report) measure(name string, value float64, unit string) {
	r.Figures = append(r.Figures, figure{name, value, unit})
}

// write writes the page, and its data.
func (r *report) write(folder string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(folder, pageName)
	return errors.Join(os.WriteFile(path+".json", append(data, '\n'), 0o644), os.WriteFile(path+".md", []byte(r.page()), 0o644))
}

// page returns the page.
func (r *report) page() string {
	var b strings.Builder
	driver := r.Driver
	if r.Simulated {
		driver += ", SIMULATED"
	}
	fmt.Fprintf(&b, "# gpuready on %s\n\n", strings.Join(r.GPUs, ", "))
	fmt.Fprintf(&b, "gpuready %s, driver %s, kernel %s, %s: %s.\n\n", r.Version, driver, r.Kernel, r.Began.Format("2 January 2006, 15:04 MST"), r.summary())
	b.WriteString("| step | expected | seen | | s |\n|---|---|---|---|---:|\n")
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.1f |\n", cell(s.Step), cell(s.Expect), cell(s.Seen), s.Outcome, s.Seconds)
	}
	b.WriteString("\n| figure | | |\n|---|---:|---|\n")
	for _, f := range r.Figures {
		fmt.Fprintf(&b, "| %s | %.4g | %s |\n", cell(f.Name), f.Value, f.Unit)
	}
	return b.String()
}

// cell returns a text as it may stand in a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
