package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/provision/step"
)

// Text writes a report for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	r.writeHead(&b)
	if rows := r.Rows(); len(rows) > 0 {
		b.WriteString("\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "AFTER p50\tp95\tmax\tTOOK p50\tp95\tmax\tSHARE\t  STEP")
		for _, row := range rows {
			s, _ := step.Find(row.Step)
			share := fmt.Sprintf("%.0f %%", 100*row.Share)
			if s.Aside {
				share = "–"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t  %s\n", formatSeconds(row.At.P50), formatSeconds(row.At.P95), formatSeconds(row.At.Max),
				formatSeconds(row.Took.P50), formatSeconds(row.Took.P95), formatSeconds(row.Took.Max), share, s.Title+describeLate(row.Late))
		}
		_ = t.Flush() // to memory
		total := r.Totals()
		fmt.Fprintf(&b, "\nIn all: p50 %s s, p95 %s s, max %s s, n = %d.\n", formatSeconds(total.P50), formatSeconds(total.P95), formatSeconds(total.Max), total.N)
		if total.N < 20 {
			b.WriteString("With fewer than 20 samples p95 is the slowest of them.\n")
		}
	}
	r.writeRemarks(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeHead writes the stack, the test and the cluster.
func (r *Report) writeHead(b *strings.Builder) {
	if r.Notice != "" {
		fmt.Fprintln(b, r.Notice)
	}
	fmt.Fprintf(b, "%s, test %s, %s, Kubernetes %s, %s, kubelet %s, %s\n", r.Stack, r.Test, r.Began.UTC().Format("2006-01-02 15:04 UTC"),
		r.Cluster.Version, countNodes(r.Cluster.Nodes), orUnknown(r.Cluster.Kubelet), orUnknown(r.Cluster.Runtime))
	fmt.Fprintln(b, "Seconds since GPUs were asked for, by the clock of the machine that measured.")
}

func countNodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func describeLate(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf(" (up to %s s earlier: the API server was away)", formatSeconds(seconds))
}

// writeRemarks writes the caveats of the figures.
func (r *Report) writeRemarks(b *strings.Builder) {
	for _, s := range r.Samples {
		switch {
		case s.Outcome != Complete:
			fmt.Fprintf(b, "Sample %d is not counted: %s: %s\n", s.Number, s.Outcome, s.Reason)
		case s.WarmUp:
			fmt.Fprintf(b, "Sample %d is not counted, as it came first: %s s\n", s.Number, formatSeconds(s.Total()))
		}
		for _, g := range s.Gaps {
			fmt.Fprintf(b, "Sample %d: the API server was away from %s s to %s s\n", s.Number, formatSeconds(g.From), formatSeconds(g.To))
		}
	}
	for _, j := range r.Jumps {
		fmt.Fprintf(b, "The time of day was set by %+.1f s at %s; no figure depends on it\n", j.By, j.At.UTC().Format("15:04:05 UTC"))
	}
	if len(r.Counted()) == 0 {
		b.WriteString("No sample counts: there are no figures.\n")
	}
	if r.Ended != "" {
		fmt.Fprintf(b, "PARTIAL: %s\n", r.Ended)
	}
}

func formatSeconds(s float64) string { return strconv.FormatFloat(s, 'f', 1, 64) }

// CSV writes one line for each step of each node of each sample.
func (r *Report) CSV(w io.Writer) error {
	if r.Notice != "" {
		if _, err := fmt.Fprintln(w, "# "+r.Notice); err != nil {
			return err
		}
	}
	c := csv.NewWriter(w)
	_ = c.Write([]string{"stack", "test", "sample", "began", "dropped", "outcome", "node", "step", "at_seconds", "took_seconds", "late_seconds", "before"})
	precise := func(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }
	for _, s := range r.Samples {
		for _, t := range s.Timelines {
			for _, reached := range t.Steps {
				_ = c.Write([]string{quotePlain(r.Stack), quotePlain(r.Test), strconv.Itoa(s.Number), s.Began.UTC().Format("2006-01-02T15:04:05.000Z"), strconv.FormatBool(s.WarmUp), string(s.Outcome),
					t.Node, string(reached.Step), precise(reached.At), precise(reached.Took), precise(reached.Late), strconv.FormatBool(reached.Before)})
			}
		}
	}
	c.Flush()
	return c.Error()
}

// quotePlain quotes a text that a spreadsheet would take for a formula.
func quotePlain(text string) string {
	if text != "" && strings.ContainsAny(text[:1], "=+-@") {
		return "'" + text
	}
	return text
}

// distinctNotices returns the distinct notices of the reports.
func distinctNotices(reports ...*Report) []string {
	var all []string
	for _, r := range reports {
		if r.Notice != "" && !slices.Contains(all, r.Notice) {
			all = append(all, r.Notice)
		}
	}
	return all
}

// CompareText writes comparisons for people.
func CompareText(w io.Writer, a, b *Report, all []Comparison) error {
	var out strings.Builder
	for _, notice := range distinctNotices(a, b) {
		fmt.Fprintln(&out, notice)
	}
	fmt.Fprintf(&out, "A: %s, %s, %s\nB: %s, %s, %s\nThe ratio is B/A of samples with the same number: the median, and where it lies with a probability of 95 %%.\n\n",
		a.Stack, a.Test, a.Began.UTC().Format("2006-01-02 15:04 UTC"), b.Stack, b.Test, b.Began.UTC().Format("2006-01-02 15:04 UTC"))
	if len(all) == 0 {
		out.WriteString("The two have no span in common.\n")
	}
	t := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	if len(all) > 0 {
		fmt.Fprintln(t, "FROM\tTO\tA p50\tp95\tB p50\tp95\tPAIRS\tRATIO\tINTERVAL\tVERDICT")
	}
	for _, c := range all {
		interval := "–"
		if c.Interval != nil {
			interval = fmt.Sprintf("%.2f–%.2f", c.Interval.Low, c.Interval.High)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%.2f\t%s\t%s\n", c.From, c.To, formatSeconds(c.A.P50), formatSeconds(c.A.P95), formatSeconds(c.B.P50), formatSeconds(c.B.P95), c.Pairs, c.Ratio, interval, c.Verdict)
	}
	_ = t.Flush() // to memory
	if a.Test != b.Test {
		fmt.Fprintf(&out, "\nThese are different tests, %s and %s: the ratio does not compare the stacks.\n", a.Test, b.Test)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// HistoryEntry is one entry of a history.
type HistoryEntry struct {
	Report      string       `json:"report"` // its file
	Began       time.Time    `json:"began"`
	Stack       string       `json:"stack"`
	Test        string       `json:"test"`
	Notice      string       `json:"notice,omitempty"`
	Ended       string       `json:"ended,omitempty"`
	Allocatable Distribution `json:"allocatable"` // since GPUs were asked for
	Total       Distribution `json:"total"`
}

// History summarizes several reports.
func History(names []string, reports []*Report) []HistoryEntry {
	all := make([]HistoryEntry, len(reports))
	for i, r := range reports {
		all[i] = HistoryEntry{names[i], r.Began, r.Stack, r.Test, r.Notice, r.Ended, r.Measure(Span{step.Asked, step.Allocatable}), r.Totals()}
	}
	return all
}

// HistoryText writes one line for each of several reports.
func HistoryText(w io.Writer, names []string, reports []*Report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "BEGAN\tSTACK\tTEST\tN\tALLOCATABLE p50\tp95\tIN ALL p50\tp95\tREPORT")
	for _, p := range History(names, reports) {
		note := ""
		if p.Notice != "" {
			note += " (SIMULATED)"
		}
		if p.Ended != "" {
			note += " (partial)"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", p.Began.UTC().Format("2006-01-02 15:04"), p.Stack, p.Test, p.Total.N,
			formatSeconds(p.Allocatable.P50), formatSeconds(p.Allocatable.P95), formatSeconds(p.Total.P50), formatSeconds(p.Total.P95), p.Report+note)
	}
	return t.Flush()
}
