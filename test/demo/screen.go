package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// step is one displayed and measured step.
type step struct {
	Name    string  `json:"name"`
	Start   float64 `json:"start"`   // seconds since the first step began
	Seconds float64 `json:"seconds"` // how long it took
	Detail  string  `json:"detail"`
}

// result is the result of a whole run.
type result struct {
	Passed    bool    `json:"passed"`
	Simulated bool    `json:"simulated"`
	Driver    string  `json:"driver"`
	GPUs      int     `json:"gpus"`
	Seconds   float64 `json:"seconds"`
	Steps     []step  `json:"steps"`
	Output    string  `json:"output"` // of the CUDA job
	Error     string  `json:"error,omitempty"`
	Step      string  `json:"step,omitempty"` // that failed
	Next      string  `json:"next,omitempty"` // what to do about it
	Log       string  `json:"log,omitempty"`  // the last lines that the step's program logged
}

// stepError describes which step failed, why, and what to do.
type stepError struct {
	step string
	err  error
	next string
	log  string // the last lines of the program's log
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// screen shows the run: rewritten lines on a terminal, a plain log elsewhere, and only the result for
// programs.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	json  bool
	color bool

	verbose bool // the programs' logs are shown as they come
	began   time.Time
	steps   []step

	columns int // of the terminal; 0: lines are not wrapped
}

func newScreen(out io.Writer, o options, color bool, columns int) *screen {
	return &screen{out: out, json: o.output == "json", color: color, verbose: o.verbose, began: time.Now(), columns: columns}
}

// nameWidth is the width of a step's name.
const nameWidth = 14

// wrap breaks text between words into lines of the terminal that begin after indent columns.
func (s *screen) wrap(indent int, text string) string {
	if s.columns == 0 {
		return text
	}
	var b strings.Builder
	at := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > s.columns:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// cut cuts text to the rest of a line of the terminal.
func (s *screen) cut(indent int, text string) string {
	if letters := []rune(text); s.columns > 0 && len(letters) > max(s.columns-indent, 1) {
		return string(letters[:max(s.columns-indent-1, 0)]) + "…"
	}
	return text
}

// begin shows that a step has started; the returned function ends it.
func (s *screen) begin(name, doing string) (done func(detail string)) {
	started := time.Now()
	s.printf(s.color, "  \033[33m◌\033[0m %-*s %s", nameWidth, name, s.cut(nameWidth+5, doing+"…"))
	return func(detail string) {
		st := step{Name: name, Start: started.Sub(s.began).Seconds(), Seconds: time.Since(started).Seconds(), Detail: detail}
		s.mu.Lock()
		s.steps = append(s.steps, st)
		s.mu.Unlock()
		if s.color {
			s.printf(true, "\r\033[K  \033[32m✓\033[0m %-*s %s\n", nameWidth, name, s.wrap(nameWidth+5, fmt.Sprintf("%s (%.2f s)", detail, st.Seconds)))
		} else {
			s.printf(true, "%-*s %s\n", nameWidth, name, s.wrap(nameWidth+1, fmt.Sprintf("%s (%.2f s)", detail, st.Seconds)))
		}
	}
}

func (s *screen) printf(show bool, format string, args ...any) {
	if !show || s.json {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format, args...)
}

// timeline draws when each step ran.
func (s *screen) timeline(total float64) {
	width := 44
	if s.columns > 0 {
		width = max(min(width, s.columns-nameWidth-13), 10)
	}
	s.printf(true, "\ntimeline, %.2f s in all\n", total)
	for _, st := range s.steps {
		from := min(int(st.Start/total*float64(width)), width-1)
		long := max(1, min(int(st.Seconds/total*float64(width)+0.5), width-from))
		bar := strings.Repeat("·", from) + strings.Repeat("█", long) + strings.Repeat("·", width-from-long)
		s.printf(true, "  %-*s %s %6.2f s\n", nameWidth, st.Name, bar, st.Seconds)
	}
}

// countPassed shows the end of a successful run and returns the exit code.
func (s *screen) countPassed(r result) int {
	r.Steps, r.Seconds = s.steps, time.Since(s.began).Seconds()
	s.timeline(r.Seconds)
	s.printf(true, "\nthe CUDA job's own output\n%s\n", indent(r.Output))
	last := "gpuready: CUDA job PASSED"
	if r.Simulated {
		last += " (SIMULATED)"
	}
	s.printf(true, "%s\n", last)
	return s.printJSON(r, 0)
}

// failed shows the end of a failed run and returns the exit code.
func (s *screen) failed(r result, err error) int {
	r.Steps, r.Seconds, r.Error = s.steps, time.Since(s.began).Seconds(), err.Error()
	if errors.Is(err, context.Canceled) {
		s.printf(true, "\n")
		fmt.Fprintln(os.Stderr, "demo: interrupted; nothing is left behind")
		r.Error, r.Next = "interrupted", "run it again; nothing is left behind"
		return s.printJSON(r, exitInterrupted)
	}
	at := &stepError{step: "demo", err: err, next: "run it again with --verbose"}
	errors.As(err, &at)
	s.printf(s.color, "\r\033[K")
	if !s.json {
		const indent = len("  reason  ")
		// The last lines may be commands to paste: they are not wrapped.
		fmt.Fprintf(os.Stderr, "gpuready: CUDA job FAILED\n  step    %s\n  reason  %s\n  next    %s\n",
			at.step, s.wrap(indent, at.err.Error()), at.next)
		if at.log != "" && !s.verbose {
			fmt.Fprintf(os.Stderr, "  log     %s --verbose\n", strings.Join(os.Args, " "))
		}
	}
	r.Error, r.Step, r.Next, r.Log = at.err.Error(), at.step, at.next, at.log
	return s.printJSON(r, exitFailed)
}

func (s *screen) printJSON(r result, exit int) int {
	if !s.json {
		return exit
	}
	r.Passed = exit == 0
	e := json.NewEncoder(s.out)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		if !errors.Is(err, syscall.EPIPE) { // nobody reads it
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
		return exitFailed
	}
	return exit
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ")
}
