// The command line, one file for each command.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/state"
)

// exitHeld is an exit code of this program, besides those of every program: another driver is
// running (serve), or the GPU is open (reset).
const exitHeld = 3

// command is one command of gpusim.
type command struct {
	name    string
	summary string
	text    string // what it does, for --help
	example string
	exits   string // exit codes; "": those that all have
	// begin declares the command's flags and returns the function that runs it.
	begin func(c *call) func() error
}

func commands() []command {
	return []command{
		profiles(), up(), serving(), status(), logging(), xid(), ecc(), remap(), lose(), restore(), reset(), partition(),
		memfault(), wrong(), degrade(), fabric(), load(), computeMode(), process(), fail(), refuse(), cost(), recording(), down(),
	}
}

// call is one run of a command.
type call struct {
	*program.Flags
	ctx    context.Context
	out    io.Writer
	err    io.Writer
	line   string // the command line, shown to those who wait for this process
	root   *string
	gpu    *string
	output *string
}

var usagef = program.UsageErrorf

// run runs the command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p := program.Program{Name: "gpusim"}
	var list strings.Builder
	for _, c := range commands() {
		fmt.Fprintf(&list, "  %-9s %s\n", c.name, c.summary)
		p.Commands = append(p.Commands, program.Command{Name: c.name, Run: c.run})
	}
	p.Help = "gpusim makes, breaks and mends a simulated NVIDIA driver with no GPU under it.\n\nCommands:\n" + list.String() + `
Example:
  gpusim up --root /tmp/driver --profile h100-sxm
  gpusim xid --root /tmp/driver --gpu 3 --xid 79
  gpusim down --root /tmp/driver

gpusim COMMAND --help has the flags, examples and exit codes of a command.
gpusim completion SHELL prints a script for bash, zsh or fish; gpusim version the version.

Exit codes:
  0  done
  1  failed; the reason is on standard error
  2  wrong use of the command line
  3  serve: another driver is running; reset: the GPU is open
`
	return p.Run(ctx, args, stdout, stderr)
}

func (cmd command) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	exits := cmd.exits
	if exits == "" {
		exits = "0  done\n1  failed; the reason is on standard error\n2  wrong use of the command line"
	}
	c := &call{ctx: ctx, out: stdout, err: stderr, line: strings.Join(append([]string{"gpusim", cmd.name}, args...), " ")}
	c.Flags = program.NewFlags("gpusim "+cmd.name,
		fmt.Sprintf("gpusim %s: %s\n\n%s\n\nExamples:\n%s\n", cmd.name, cmd.summary, strings.TrimSpace(cmd.text), indent(cmd.example)),
		"\nExit codes:\n"+indent(exits)+"\n", stdout)
	run := cmd.begin(c)
	if err := c.Read(args); err != nil {
		return err
	}
	if err := c.RefuseArgs(); err != nil {
		return err
	}
	err := run()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, host.ErrHeld) || errors.Is(err, state.ErrHeld):
		err = program.WithExitCode(exitHeld, err)
	}
	return fmt.Errorf("%s: %w", cmd.name, err)
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// rootFlag declares --root.
func (c *call) rootFlag() {
	c.root = c.String("root", root.Default, "the driver root, the folder of the simulated driver")
	c.Env["root"] = "GPUSIM_ROOT"
}

// gpuFlag declares --gpu.
func (c *call) gpuFlag() {
	c.gpu = c.String("gpu", "", "the GPU: its number in gpusim status, or its UUID")
}

// outputFlag declares -o.
func (c *call) outputFlag() {
	c.output = c.StringP("output", "o", "text", "text or json")
}

// driver returns the root that --root names.
func (c *call) driver() *root.Root {
	return &root.Root{Dir: *c.root, Command: c.line, Logf: func(format string, a ...any) {
		fmt.Fprintf(c.err, "gpusim: "+format+"\n", a...)
	}}
}

// print writes value as JSON, or calls text, depending on -o.
func (c *call) print(value any, text func(io.Writer)) error {
	switch *c.output {
	case "text":
		text(c.out)
		return nil
	case "json":
		e := json.NewEncoder(c.out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	return usagef("--output: %q is neither text nor json", *c.output)
}

// find returns the index of the GPU that --gpu names.
func (c *call) find(s *state.State) (int, error) {
	if *c.gpu == "" {
		return 0, usagef("--gpu is missing")
	}
	for i, g := range s.GPUs() {
		if *c.gpu == strconv.Itoa(i) || *c.gpu == state.Text(g.Uuid[:]) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("there is no GPU %s; gpusim status --root %s lists the %d there are", *c.gpu, *c.root, s.Ngpus)
}

// change changes the GPU that --gpu names and raises the events that change
// returns, in one step.
func (c *call) change(change func(s *state.State, index int) ([]state.Event, error)) error {
	f, err := c.driver().Open()
	if err != nil {
		return err
	}
	// The events follow from the change, so they are known only once it is made.
	var events []state.Event
	var changed state.GPU
	err = f.Update(func(s *state.State) error {
		index, err := c.find(s)
		if err != nil {
			return err
		}
		if events, err = change(s, index); err != nil {
			return err
		}
		changed = s.Gpu[index]
		return nil
	}, func() []state.Event { return events })
	if err == nil {
		err = c.driver().ShowOnBus(changed)
	}
	return errors.Join(err, f.Close())
}
