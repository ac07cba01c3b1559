package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table prints findings for people.
func Table(w io.Writer, findings []Finding) error {
	if len(findings) == 0 {
		_, err := fmt.Fprintln(w, "No running container asks for GPUs or has any.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "VERDICT\tCONTAINER\tIMAGE\t"+Variable+"\tPRIVILEGED\tHANDLER\tGPU NODES")
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Verdict, f.Where(), f.Image, value(f), yes(f.Privileged), handler(f), nodes(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	losing := 0
	for _, f := range findings {
		if f.Verdict != Loses {
			continue
		}
		losing++
		fmt.Fprintf(&b, "\n%s: %s.\n  %s.\n", f.Where(), f.Reason, f.Advice)
	}
	fmt.Fprintf(&b, "\n%d of %d would lose their GPUs at their next start without %s.\n", losing, len(findings), Accept)
	_, err := io.WriteString(w, b.String())
	return err
}

// JSON prints findings for programs: one object with the key findings.
func JSON(w io.Writer, findings []Finding) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if findings == nil {
		findings = []Finding{}
	}
	return e.Encode(map[string][]Finding{"findings": findings})
}

func value(f Finding) string {
	switch {
	case f.Value == "":
		return "-"
	case f.FromImage:
		return f.Value + " (image)"
	}
	return f.Value
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func handler(f Finding) string {
	switch {
	case f.Handler == "":
		return "-"
	case f.Default:
		return f.Handler + " (default)"
	}
	return f.Handler
}

func nodes(f Finding) string {
	switch {
	case len(f.Devices) > 0:
		return strings.Join(f.Devices, ",")
	case f.Inspected:
		return "none"
	}
	return "not known"
}
