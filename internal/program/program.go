// Package program is the frame of our programs of several commands: which command is
// meant, its flags and their environment variables, help, the log, how errors are told,
// and which exit code the program ends with.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/version"
)

// Exit codes that every program has; they stand in its --help and are a contract.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
)

// Program is a program of several commands.
type Program struct {
	Name     string // before what it says on stderr, and before its version
	Help     string // what it prints for --help, exit codes included
	Commands []Command
	First    string // the command that is meant where none is named; "": one has to be
	// Advise, which may be nil, is what is told after an error's text; "": nothing.
	Advise func(text string) string
}

// Command is one of a program's commands. Hidden ones are not among those that a person
// is told of.
type Command struct {
	Name   string
	Run    func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	Hidden bool
}

// Signalled runs main until it returns, and has its context end with SIGINT or SIGTERM.
func Signalled(main func(context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return main(ctx)
}

// Run runs the command that the arguments name, tells of its error in one line on
// stderr, and returns the exit code.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := p.dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return OK
	}
	if !errors.Is(err, ErrSaid) {
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, p.tell(err))
	}
	if c, is := errors.AsType[*coded](err); is {
		return c.code
	}
	return Failed
}

// tell is an error in one line.
func (p Program) tell(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if p.Advise != nil {
		if advice := p.Advise(text); advice != "" {
			text += ": " + advice
		}
	}
	return text
}

func (p Program) dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	switch name {
	case "--version", "version":
		fmt.Fprintln(stdout, p.Name, version.String())
		return nil
	case "--help", "-h", "help":
		fmt.Fprint(stdout, p.Help)
		return nil
	}
	if p.First != "" && (name == "" || strings.HasPrefix(name, "-")) {
		name, args = p.First, append([]string{p.First}, args...)
	}
	if i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name }); i >= 0 {
		return p.Commands[i].Run(ctx, args[1:], stdout, stderr)
	}
	if len(args) == 0 {
		return Wrong("no command; say %s", p.choice())
	}
	return Wrong("no command %q; say %s", name, p.choice())
}

// choice are the commands that a person has.
func (p Program) choice() string {
	var names []string
	for _, c := range p.Commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ") + " or version, or --help"
}

// A coded error carries the exit code that it ends the program with.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

// ErrSaid ends a program when all has been said: End(code, ErrSaid).
var ErrSaid = errors.New("all has been said")

// End is an error that ends the program with a code.
func End(code int, err error) error { return &coded{code, err} }

// Wrong is an error that ends the program with Usage: what the person wrote cannot be.
func Wrong(format string, args ...any) error {
	return End(Usage, fmt.Errorf(format, args...))
}
