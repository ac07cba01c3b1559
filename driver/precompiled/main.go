// Command precompiled builds and pushes images of precompiled drivers. The Makefiles in the
// folders beside it run it, one folder for each operating system.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/gpuready/gpuready/driver/precompiled/recipe"
	"github.com/gpuready/gpuready/internal/program"
)

func main() {
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return program.Program{
			Name: "precompiled", Help: help,
			Commands: []program.Command{
				{Name: "image", Run: run(makeUsage, (*recipe.Settings).Build)},
				{Name: "push", Run: run(pushUsage, (*recipe.Settings).Push)},
			},
		}.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}

// run returns a command that reads the settings, calls do, and prints the images that do returns.
func run(usage string, do func(*recipe.Settings, context.Context) ([]recipe.Image, error)) func(context.Context, []string, io.Writer, io.Writer) error {
	return func(ctx context.Context, args []string, stdout, stderr io.Writer) error {
		o := newOptions(usage, stdout)
		if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
			return err
		}
		s, err := o.settings(stderr)
		if err != nil {
			return err
		}
		images, err := do(s, ctx)
		if err != nil {
			return err
		}
		return print(stdout, o.output, images)
	}
}

func print(w io.Writer, format string, images []recipe.Image) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(images)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, i := range images {
		size := ""
		if i.LayerSize > 0 {
			size = fmt.Sprintf("%.2f MB for this kernel", float64(i.LayerSize)/1e6)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", i.Name, i.Digest, size)
	}
	return t.Flush()
}
