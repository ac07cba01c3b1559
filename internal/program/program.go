// Package program is the command-line framework of programs with several commands. It
// selects the command, reads its flags and their environment variables, and handles
// help, the log, errors and the exit code.
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

// Exit codes of every program; they are listed in its --help and are a contract.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
)

// Program is a program of several commands.
type Program struct {
	Name           string // prefix of errors on stderr and of the version
	Help           string // the text for --help, exit codes included
	Commands       []Command
	DefaultCommand string // the default command; "": a command is required
	// Advise returns advice to append to an error's text, or "". It may be nil.
	Advise func(text string) string
}

// Command is one command of a program. Errors do not list hidden commands.
type Command struct {
	Name   string
	Run    func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	Hidden bool
}

// RunWithSignals runs main with a context that ends on SIGINT or SIGTERM.
func RunWithSignals(main func(context.Context) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return main(ctx)
}

// Run runs the command that the arguments name, prints its error in one line on
// stderr, and returns the exit code.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := p.dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return OK
	}
	if !errors.Is(err, ErrReported) {
		fmt.Fprintf(stderr, "%s: %s\n", p.Name, p.errorLine(err))
	}
	if c, ok := errors.AsType[*coded](err); ok {
		return c.code
	}
	return Failed
}

// errorLine returns the text of an error in one line, with advice.
func (p Program) errorLine(err error) string {
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
	if p.DefaultCommand != "" && (name == "" || strings.HasPrefix(name, "-")) {
		name, args = p.DefaultCommand, append([]string{p.DefaultCommand}, args...)
	}
	if i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name }); i >= 0 {
		return p.Commands[i].Run(ctx, args[1:], stdout, stderr)
	}
	if len(args) == 0 {
		return UsageErrorf("no command; say %s", p.listCommands())
	}
	return UsageErrorf("no command %q; say %s", name, p.listCommands())
}

// listCommands lists the commands that are not hidden.
func (p Program) listCommands() string {
	var names []string
	for _, c := range p.Commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, ", ") + " or version, or --help"
}

// A coded error carries the exit code of the program.
type coded struct {
	code int
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

// ErrReported ends a program that has already printed its error: WithExitCode(code, ErrReported).
var ErrReported = errors.New("the error was already reported")

// WithExitCode returns an error that ends the program with an exit code.
func WithExitCode(code int, err error) error { return &coded{code, err} }

// UsageErrorf returns an error that ends the program with Usage: the command line is invalid.
func UsageErrorf(format string, args ...any) error {
	return WithExitCode(Usage, fmt.Errorf(format, args...))
}
