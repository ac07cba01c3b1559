package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/audit"
	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// command is one run of the program.
type command struct {
	o              *options
	t              *setup.Toolkit
	log            *slog.Logger
	stdout, stderr io.Writer
}

// steps are the messages about the steps of configuring the runtime.
var steps = map[string]string{
	"write":   "wrote the container runtime's configuration",
	"restart": "had the container runtime started anew",
	"verify":  "verified the container runtime's abilities",
	"undo":    "restored the container runtime's old configuration",
}

func (c command) step(name string, took time.Duration) {
	fmt.Fprintf(c.stderr, "gpu-toolkit: %s (%v)\n", steps[name], took.Round(time.Millisecond))
}

func (c command) plan(ctx context.Context) error {
	changes, w, err := c.t.Once(ctx, true)
	o, configErr := c.t.ConfigureRuntime(ctx, c.t.Configurer(c.step), true)
	printed := apply.Print(c.stdout, append(changes, o.Changes...))
	printReasons(c.stdout, o)
	if configErr != nil {
		return errors.Join(err, printed, c.explain(configErr))
	}
	if len(o.Edits) > 0 { // the edits already show what the runtime lacks
		return errors.Join(err, printed)
	}
	return errors.Join(err, printed, c.warn(c.t.WithRuntime(ctx, c.o.config.State(w, err), nil)))
}

// explain returns an error of configuring the runtime with its explanation.
func (c command) explain(err error) error {
	_, message := c.o.config.ProblemOf(err)
	return errors.New(message)
}

func (c command) apply(ctx context.Context) error {
	changes, w, err := c.t.Once(ctx, false)
	o, configErr := c.t.ConfigureRuntime(ctx, c.t.Configurer(c.step), false)
	if !o.Undone && configErr == nil {
		changes = append(changes, o.Changes...)
	}
	for _, one := range changes {
		fmt.Fprintln(c.stdout, one.Verb+"d", one.Path)
	}
	if configErr == nil {
		printReasons(c.stdout, o)
	}
	state := c.t.WithRuntime(ctx, c.o.config.State(w, err), configErr)
	published := c.t.Publish(state)
	if configErr != nil {
		return errors.Join(err, c.explain(configErr), published)
	}
	return errors.Join(err, c.warn(state), published)
}

// printReasons prints why the runtime's configuration is changed.
func printReasons(w io.Writer, o configure.Outcome) {
	for _, e := range o.Edits {
		fmt.Fprintln(w, "    because the container runtime needs", e)
	}
}

// warn prints the message of a degraded state. That of a failed one is printed at the end.
func (c command) warn(s nodestate.State) error {
	message := s.Message
	if s.Phase == nodestate.Failed || s.Phase == nodestate.Waiting {
		message = ""
		if s.Toolkit != nil && s.Toolkit.Runtime != nil {
			message = s.Toolkit.Runtime.Message
		}
	}
	if message == "" {
		return nil
	}
	_, err := fmt.Fprintln(c.stderr, "gpu-toolkit:", message)
	return err
}

func (c command) restore(ctx context.Context) error {
	first, err := c.t.RestoreRuntime(ctx, c.o.dryRun, func(did string) { fmt.Fprintln(c.stderr, "gpu-toolkit:", did) })
	rest, left := first.Changes, first.Left
	if err == nil {
		var more []apply.Change
		more, left, err = c.t.Uninstall(c.o.dryRun)
		left = slices.Compact(append(first.Left, left...))
		rest = union(first.Changes, more)
	}
	for _, l := range left {
		fmt.Fprintln(c.stderr, "gpu-toolkit: left:", l)
	}
	if c.o.dryRun && err == nil {
		return apply.Print(c.stdout, rest)
	}
	for _, one := range rest {
		fmt.Fprintln(c.stdout, one.Verb+"d", one.Path)
	}
	return err
}

// union appends the changes of paths that the first list lacks. In a dry run both lists
// contain the same ones.
func union(first, second []apply.Change) []apply.Change {
	for _, c := range second {
		if !slices.ContainsFunc(first, func(f apply.Change) bool { return f.Path == c.Path }) {
			first = append(first, c)
		}
	}
	return first
}

func (c command) verify(ctx context.Context) error {
	checks := checkHost(ctx, c.t)
	write := writeChecks
	if c.o.output == "json" {
		write = func(w io.Writer, checks []check) error { return writeJSON(w, checks) }
	}
	err := write(c.stdout, checks)
	wrong := 0
	for _, one := range checks {
		if !one.OK {
			wrong++
		}
	}
	if wrong > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d checks failed", wrong, len(checks)))
	}
	return err
}

func (c command) status(ctx context.Context) error {
	s, err := readStatus(ctx, c.t)
	if err != nil {
		return err
	}
	if c.o.output == "json" {
		return writeJSON(c.stdout, s)
	}
	return writeStatus(c.stdout, s)
}

func (c command) audit(ctx context.Context) error {
	at := runtime.FindSocket(c.t.Root, c.t.RuntimeSockets())
	if at == "" {
		return fmt.Errorf("no container runtime listens at %v; say with --runtime-socket where it does", c.t.RuntimeSockets())
	}
	kind, _, err := c.o.config.Runtime.Kind()
	if err != nil {
		return err
	}
	findings, err := audit.Run(ctx, c.t.Root, at, audit.Options{Runtime: kind})
	if err != nil {
		return err
	}
	if c.o.output == "json" {
		err = writeJSON(c.stdout, map[string][]audit.Finding{"findings": findings})
	} else {
		err = writeFindings(c.stdout, findings)
	}
	lose := 0
	for _, f := range findings {
		if f.Verdict == audit.Loses {
			lose++
		}
	}
	if lose > 0 {
		err = errors.Join(err, fmt.Errorf("%d containers would lose their GPUs", lose))
	}
	return err
}
