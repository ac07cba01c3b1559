package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gpuready/gpuready/toolkit/audit"
)

// writeFindings writes the findings of an audit for people.
func writeFindings(w io.Writer, findings []audit.Finding) error {
	if len(findings) == 0 {
		_, err := fmt.Fprintln(w, "No running container asks for GPUs or has any.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "VERDICT\tCONTAINER\tIMAGE\t"+audit.Variable+"\tPRIVILEGED\tHANDLER\tGPU NODES")
	for _, f := range findings {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Verdict, f.Where(), f.Image, value(f), yesNo(f.Privileged), handler(f), nodes(f))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	losing := 0
	for _, f := range findings {
		if f.Verdict != audit.Loses {
			continue
		}
		losing++
		fmt.Fprintf(&b, "\n%s: %s.\n  %s.\n", f.Where(), f.Reason, f.Advice)
	}
	fmt.Fprintf(&b, "\n%d of %d would lose their GPUs at their next start without %s.\n", losing, len(findings), audit.Accept)
	_, err := io.WriteString(w, b.String())
	return err
}

func value(f audit.Finding) string {
	switch {
	case f.Value == "":
		return "-"
	case f.FromImage:
		return f.Value + " (image)"
	}
	return f.Value
}

func handler(f audit.Finding) string {
	switch {
	case f.Handler == "":
		return "-"
	case f.Default:
		return f.Handler + " (default)"
	}
	return f.Handler
}

func nodes(f audit.Finding) string {
	switch {
	case len(f.Devices) > 0:
		return strings.Join(f.Devices, ",")
	case f.Inspected:
		return "none"
	}
	return "not known"
}
