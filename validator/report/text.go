package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/gpuready/gpuready/validator/check"
)

// Words and colours (ANSI) of each kind of outcome that a finished report has.
var (
	kindWords  = map[check.Kind]string{check.Passed: "ok", check.Failed: "FAILED", check.NotRun: "not run", check.Absent: "no GPU", check.NotWanted: "skipped"}
	kindColors = map[check.Kind]string{check.Passed: "32", check.Failed: "31;1", check.NotRun: "2", check.Absent: "2", check.NotWanted: "2"}
)

// writeText writes a line for each layer, below it its notes and, if it failed, what to do, and at the end
// one line for the layers that were not asked for.
func (r Report) writeText(w io.Writer, color bool) error {
	paint := func(code, s string) string { return paint(color, code, s) }
	var b strings.Builder
	var skipped []string
	for i, o := range r.Outcomes {
		if o.Kind == check.NotWanted {
			skipped = append(skipped, string(o.Layer))
			continue
		}
		if o.Kind == check.Absent && i > 0 {
			continue // without a GPU all layers are absent: the first line says so
		}
		took := fmt.Sprintf("%.2f s", o.Elapsed.Seconds())
		if o.Kind == check.NotRun || o.Kind == check.Absent {
			took = ""
		}
		fmt.Fprintf(&b, "%s %-8s %8s  %s\n", paint(kindColors[o.Kind], fmt.Sprintf("%-8s", kindWords[o.Kind])), o.Layer, took, headline(o))
		for _, n := range o.Notes {
			fmt.Fprintf(&b, "%28s%s %s\n", "", paint("33", "!"), n)
		}
		if o.Kind == check.Failed {
			fmt.Fprintf(&b, "%28s%s %s\n", "", paint("36", "→"), o.NotReady.Action)
		}
	}
	if len(skipped) > 0 {
		fmt.Fprintf(&b, "%s not asked for: %s\n", paint(kindColors[check.NotWanted], fmt.Sprintf("%-8s", kindWords[check.NotWanted])), strings.Join(skipped, ", "))
	}
	code := kindColors[check.Passed]
	if r.Failed() != nil {
		code = kindColors[check.Failed]
	}
	fmt.Fprintf(&b, "gpu-validator: %s\n", paint(code, r.lastLine()))
	_, err := io.WriteString(w, b.String())
	return err
}

// paint colours text, where color is set.
func paint(color bool, code, s string) string {
	if !color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func headline(o check.Outcome) string {
	switch {
	case o.Proof != nil:
		return o.Proof.Summary
	case o.Kind == check.Failed:
		return string(o.NotReady.Reason) + ": " + o.NotReady.Message
	}
	return strings.TrimPrefix(o.NotReady.Message, "not run: ")
}

func (r Report) lastLine() string {
	result := r.Result()
	if f := r.Failed(); f != nil {
		result += ": " + string(f.Layer) + ": " + string(f.NotReady.Reason)
	}
	return result
}
