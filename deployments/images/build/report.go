package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// report prints the results.
func report(w io.Writer, results []result, format string) error {
	switch format {
	case "json":
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(results)
	case "name":
		for _, r := range results {
			if _, err := fmt.Fprintln(w, r.Archive); err != nil {
				return err
			}
		}
		return nil
	}
	var shared int64
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(out, "IMAGE\tARCH\tSIZE\tGOAL\tID\tARCHIVE")
	for _, r := range results {
		shared = max(shared, r.BaseBytes)
		goal := "-"
		if r.Goal > 0 {
			goal = "≤ " + megabytes(r.Goal)
			if r.Bytes > r.Goal {
				goal += ": " + megabytes(r.Bytes-r.Goal) + " OVER"
			}
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%.19s\t%s\n", r.Reference, r.Arch, megabytes(r.Bytes), goal, r.ID, r.Archive)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "Sizes are uncompressed; %s of each are the base, which a node stores once.\n", megabytes(shared))
	return err
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/megabyte) }
