package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
)

const reportUsage = `Show a report that gpu-provision measure has written.

Usage:
  gpu-provision report FILE [-o text|json|csv|svg|html]
  gpu-provision report A B -o html      # two stacks side by side

Examples:
  gpu-provision report run/report.json
  gpu-provision report ours/report.json theirs/report.json -o html >compare.html
`

func runReport(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := program.NewFlags("gpu-provision report", reportUsage, exitCodes, stdout)
	output := f.StringP("output", "o", "text", "text, json, csv, svg or html")
	if err := f.Read(args); err != nil {
		return err
	}
	if err := checkOutput(*output, "text", "json", "csv", "svg", "html"); err != nil {
		return err
	}
	if n := f.NArg(); n != 1 && (n != 2 || *output != "html") {
		return program.UsageErrorf("report takes one file, or two with -o html, not %d", n)
	}
	all, err := readReports(f.Args())
	if err != nil {
		return err
	}
	if *output == "html" {
		return report.Page(stdout, all...)
	}
	return writeReport(stdout, all[0], *output)
}

// writeReport writes a report in an output format.
func writeReport(w io.Writer, r *report.Report, output string) error {
	switch output {
	case "json":
		return r.Write(w)
	case "csv":
		return r.CSV(w)
	case "svg":
		return r.SVG(w)
	case "html":
		return report.Page(w, r)
	}
	return r.Text(w)
}

const compareUsage = `Compare two reports: the ratio of samples with the same number, and where it lies.

Samples are pairs: sample 2 of A with sample 2 of B. Measure the two in alternation
(measure --append), so that what else the machines do meets both alike.

Usage:
  gpu-provision compare A B [--span FROM:TO]... [-o text|json|html]

Examples:
  gpu-provision compare ours.json theirs.json
  gpu-provision compare ours.json theirs.json --span driver-ready:allocatable -o json
`

func runCompare(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := program.NewFlags("gpu-provision compare", compareUsage, exitCodes, stdout)
	output := f.StringP("output", "o", "text", "text, json or html")
	texts := f.StringSlice("span", nil, "from which step to which, as FROM:TO (default: those that people ask about; gpu-provision steps lists them)")
	if err := f.Read(args); err != nil {
		return err
	}
	if err := checkOutput(*output, "text", "json", "html"); err != nil {
		return err
	}
	if f.NArg() != 2 {
		return program.UsageErrorf("compare takes two reports, not %d", f.NArg())
	}
	spans, err := parseSpans(*texts)
	if err != nil {
		return err
	}
	all, err := readReports(f.Args())
	if err != nil {
		return err
	}
	found := report.Compare(all[0], all[1], spans)
	switch *output {
	case "json":
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		err = e.Encode(found)
	case "html":
		err = report.Page(stdout, all...)
	default:
		err = report.CompareText(stdout, all[0], all[1], found)
	}
	if err == nil && len(found) == 0 {
		err = program.WithExitCode(exitNothing, program.ErrReported)
	}
	return err
}

func parseSpans(texts []string) ([]report.Span, error) {
	if len(texts) == 0 {
		return report.DefaultSpans(), nil
	}
	var spans []report.Span
	for _, text := range texts {
		from, to, found := strings.Cut(text, ":")
		for _, id := range []string{from, to} {
			if _, known := step.Find(step.ID(id)); !found || !known {
				return nil, program.UsageErrorf("--span %q: want FROM:TO of the steps that gpu-provision steps lists", text)
			}
		}
		spans = append(spans, report.Span{From: step.ID(from), To: step.ID(to)})
	}
	return spans, nil
}

const historyUsage = `List reports, oldest first, with the times of each.

Usage:
  gpu-provision history FILE... [-o text|json]

Examples:
  gpu-provision history runs/*/report.json
`

func runHistory(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := program.NewFlags("gpu-provision history", historyUsage, exitCodes, stdout)
	output := f.StringP("output", "o", "text", "text or json")
	if err := f.Read(args); err != nil {
		return err
	}
	if err := checkOutput(*output, "text", "json"); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return program.UsageErrorf("history takes at least one report")
	}
	names := f.Args()
	all, err := readReports(names)
	if err != nil {
		return err
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return all[a].Began.Compare(all[b].Began) })
	sorted, sortedNames := make([]*report.Report, len(all)), make([]string, len(all))
	for i, from := range order {
		sorted[i], sortedNames[i] = all[from], names[from]
	}
	if *output == "text" {
		return report.HistoryText(stdout, sortedNames, sorted)
	}
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(report.History(sortedNames, sorted))
}

const stepsUsage = `List the steps, and what in the Kubernetes API shows each.

Usage:
  gpu-provision steps
`

func runSteps(_ context.Context, args []string, stdout, _ io.Writer) error {
	f := program.NewFlags("gpu-provision steps", stepsUsage, exitCodes, stdout)
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "STEP\tSHOWN BY")
	for _, s := range step.Steps() {
		fmt.Fprintf(t, "%s\t%s\n", s.ID, s.From)
	}
	return t.Flush()
}
