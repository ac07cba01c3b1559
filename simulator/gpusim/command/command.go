// Package command is gpusim's command line, one file for each command.
package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/state"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitHeld   = 3 // of serve: another driver is running there; of reset: the GPU is open
)

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
		profiles(), up(), serving(), status(), logging(), xid(), ecc(), remap(), lose(), restore(), reset(), partition(), memfault(), wrong(), degrade(), fail(), cost(), recording(), down(),
	}
}

// call is one run of a command.
type call struct {
	flags  *pflag.FlagSet
	env    map[string]string // names of the environment variables of flags
	out    io.Writer
	err    io.Writer
	line   string // the command line, for the one who waits for it
	root   *string
	gpu    *string
	output *string
}

// usageError is an error in the command line.
type usageError struct{ error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// Run runs gpusim with the given arguments and returns its exit code.
func Run(args []string, out, err io.Writer) int {
	switch {
	case len(args) == 0 || args[0] == "help" || args[0] == "-h" || args[0] == "--help":
		usage(out)
		if len(args) == 0 {
			return exitUsage
		}
		return 0
	case args[0] == "--version":
		fmt.Fprintln(out, "gpusim", version.String())
		return 0
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		fmt.Fprintf(err, "gpusim: there is no command %q; gpusim --help lists them\n", args[0])
		return exitUsage
	}
	return all[i].run(args, out, err)
}

func (cmd command) run(args []string, out, errOut io.Writer) int {
	c := &call{
		flags: pflag.NewFlagSet("gpusim "+cmd.name, pflag.ContinueOnError),
		env:   map[string]string{}, out: out, err: errOut, line: "gpusim " + strings.Join(args, " "),
	}
	c.flags.SortFlags = false
	c.flags.SetOutput(errOut)
	c.flags.Usage = func() {} // a mistake gets one line, not a page
	run := cmd.begin(c)
	config.Describe(c.flags, c.env)
	err := c.flags.Parse(args[1:])
	if errors.Is(err, pflag.ErrHelp) {
		cmd.help(c)
		return 0
	}
	if err == nil {
		err = config.Env(c.flags, c.env)
	}
	if err == nil && c.flags.NArg() > 0 {
		err = fmt.Errorf("%q is one argument too many", c.flags.Arg(0))
	}
	if err != nil {
		err = usageError{err}
	} else {
		err = run()
	}
	var mistake usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &mistake):
		fmt.Fprintf(errOut, "gpusim %s: %v; see gpusim %s --help\n", cmd.name, err, cmd.name)
		return exitUsage
	}
	fmt.Fprintf(errOut, "gpusim %s: %v\n", cmd.name, oneLine(err))
	if errors.Is(err, host.ErrHeld) || errors.Is(err, state.ErrHeld) {
		return exitHeld
	}
	return exitFailed
}

// oneLine joins the lines of errors that were joined.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func usage(out io.Writer) {
	fmt.Fprint(out, "gpusim makes, breaks and mends a simulated NVIDIA driver with no GPU under it.\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(out, "  %-9s %s\n", c.name, c.summary)
	}
	fmt.Fprint(out, `
Example:
  gpusim up --root /tmp/driver --profile h100-sxm
  gpusim xid --root /tmp/driver --gpu 3 --xid 79
  gpusim down --root /tmp/driver

gpusim COMMAND --help tells more. gpusim --version prints the version.
`)
}

func (cmd command) help(c *call) {
	fmt.Fprintf(c.out, "gpusim %s: %s\n\n%s\n\nFlags:\n%s", cmd.name, cmd.summary, strings.TrimSpace(cmd.text), c.flags.FlagUsages())
	fmt.Fprintf(c.out, "\nExamples:\n%s\n", indent(cmd.example))
	exits := cmd.exits
	if exits == "" {
		exits = "0  done\n1  failed; the reason is on standard error\n2  wrong use of the command line"
	}
	fmt.Fprintf(c.out, "\nExit codes:\n%s\n", indent(exits))
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// rootFlag declares --root.
func (c *call) rootFlag() {
	c.root = c.flags.String("root", root.Default, "the driver root, the folder of the simulated driver")
	c.env["root"] = "GPUSIM_ROOT"
}

// gpuFlag declares --gpu.
func (c *call) gpuFlag() {
	c.gpu = c.flags.String("gpu", "", "the GPU: its number in gpusim status, or its UUID")
}

// outputFlag declares -o.
func (c *call) outputFlag() {
	c.output = c.flags.StringP("output", "o", "text", "text or json")
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
	err = f.Update(func(s *state.State) error {
		index, err := c.find(s)
		if err != nil {
			return err
		}
		events, err = change(s, index)
		return err
	}, func() []state.Event { return events })
	return errors.Join(err, f.Close())
}
