package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/deployments/release/publish"
	"github.com/gpuready/gpuready/internal/program"
)

const pushUsage = `Push a release, as release build made it, to its registry. What the registry has is not pushed
again, so a run that was killed goes on. A tag that the registry has with another digest is an
error, and then nothing is pushed: released versions do not change. Credentials are those of
docker login (config.json in the folder DOCKER_CONFIG).

Examples:
  release push --dir bin/release/v0.2.0
  release push --dir bin/release/v0.2.0 --dry-run
  release push --dir bin/release/v0.2.0 --dry-run -o json
`

// push is the command push.
func push(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("release push", pushUsage, exitCodes, stdout)
	o := publish.Options{Logf: newProgress(stderr)}
	f.StringVar(&o.Dir, "dir", "", "folder of the release")
	dryRun := f.Bool("dry-run", false, "only list what would be pushed")
	f.BoolVar(&o.Insecure, "insecure", false, "allow plain HTTP to a registry on another host")
	f.IntVar(&o.Jobs, "jobs", 4, "number of concurrent uploads")
	timeout := f.Duration("timeout", 2*time.Hour, "for the whole command")
	output := f.StringP("output", "o", "table", "of --dry-run: table or json")
	f.Env["dir"] = "RELEASE_DIR"
	if err := f.Read(args); err != nil {
		return err
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	switch {
	case o.Dir == "":
		return program.UsageErrorf("--dir: name the folder of a release, as bin/release/v0.2.0")
	case *output != "table" && *output != "json":
		return program.UsageErrorf("--output is %q; say table or json", *output)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done after --timeout=%s; run it again to go on", *timeout))
	defer cancel()
	return withCause(ctx, pushRelease(ctx, o, *dryRun, *output, stdout))
}

func pushRelease(ctx context.Context, o publish.Options, dryRun bool, output string, stdout io.Writer) error {
	p, err := publish.New(o)
	if err != nil {
		return err
	}
	items, err := p.Plan(ctx, dryRun)
	if err != nil {
		return err
	}
	if !dryRun {
		return p.Push(ctx, items)
	}
	if err := listItems(stdout, items, output); err != nil {
		return err
	}
	return publish.MovedError(items)
}

// listItems prints a plan.
func listItems(w io.Writer, items []publish.Item, output string) error {
	if output == "json" {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		return out.Encode(items)
	}
	var bytes, absent int64
	out := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(out, "ARTIFACT\tTAG\tDIGEST\tREGISTRY\tBLOBS\tSIZE\tTO PUSH")
	for _, i := range items {
		fmt.Fprintf(out, "%s\t%s\t%.19s\t%s\t%d\t%s\t%s\n", i.Name, i.Tag, i.Digest, i.State, len(i.Blobs), publish.FormatBytes(i.Bytes), publish.FormatBytes(i.Absent))
		bytes, absent = bytes+i.Bytes, absent+i.Absent
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s in total, %s to push; blobs that several artifacts have are pushed once.\n", publish.FormatBytes(bytes), publish.FormatBytes(absent))
	return err
}

// newProgress returns a function that prints lines of progress, with the seconds since now.
func newProgress(w io.Writer) func(string, string, ...any) {
	began := time.Now()
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %5.1fs  %-16s  %s\n", time.Since(began).Seconds(), filepath.Base(name), fmt.Sprintf(format, args...))
	}
}
