// Package program is the command-line framework of programs with several commands. It
// selects the command, reads its flags and their environment variables, and handles
// help, the log, errors and the exit code.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
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
	Call           string // how people call it, "kubectl gpu"; "": by its name
	Help           string // the text for --help, exit codes included
	Commands       []Command
	DefaultCommand string // the default command; "": a command is required
	// Globals are flags with a value, such as "--context", that may also stand before the command.
	Globals []string
	// Advise returns advice to append to an error's text, or "". It may be nil.
	Advise func(text string) string
}

// Command is one command of a program. Errors do not list hidden commands.
type Command struct {
	Name   string
	Run    func(ctx context.Context, args []string, stdout, stderr io.Writer) error
	Hidden bool
	// Complete returns the values that an argument may have, after the words given; nil: files.
	Complete func(ctx context.Context, words []string) []string
}

// RunWithSignals runs main with a context that ends on SIGINT or SIGTERM. The program outlives the
// readers of its output.
func RunWithSignals(main func(context.Context) int) int {
	OutliveReaders()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return main(ctx)
}

// OutliveReaders keeps the process running when nobody reads its output any more, so that it can end
// in order: writing then fails with EPIPE. Programs that it starts are not affected.
func OutliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// isUnread reports whether an error only means that nobody reads the output any more.
func isUnread(err error) bool {
	failed, is := errors.AsType[*fs.PathError](err)
	return is && failed.Path == os.Stdout.Name() && errors.Is(failed.Err, syscall.EPIPE)
}

// Run runs the command that the arguments name, prints its error in one line on
// stderr, and returns the exit code.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := p.dispatch(ctx, args, stdout, stderr)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return OK
	}
	if !errors.Is(err, ErrReported) && !isUnread(err) {
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
	args = p.moveGlobals(args)
	if HasBuiltin(args) {
		return p.runBuiltin(ctx, args, stdout, stderr)
	}
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	if p.DefaultCommand != "" && (name == "" || strings.HasPrefix(name, "-")) {
		name, args = p.DefaultCommand, append([]string{p.DefaultCommand}, args...)
	}
	if i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name }); i >= 0 {
		return p.Commands[i].Run(ctx, args[1:], stdout, stderr)
	}
	call := cmp.Or(p.Call, p.Name)
	if len(args) == 0 {
		return WithExitCode(Usage, cmdline.AddHelp(cmdline.NoCommand(p.commandNames()), call))
	}
	return WithExitCode(Usage, cmdline.AddHelp(cmdline.UnknownCommand(name, p.commandNames()), call))
}

// moveGlobals moves global flags from before the command to after it.
func (p Program) moveGlobals(args []string) []string {
	at := p.countGlobals(args)
	if at == 0 || at >= len(args) {
		return args
	}
	return slices.Concat(args[at:at+1], args[:at], args[at+1:])
}

// countGlobals returns the number of arguments before the command, 0 if they are not only global
// flags. It counts a value that is still missing.
func (p Program) countGlobals(args []string) (at int) {
	for at < len(args) && strings.HasPrefix(args[at], "-") {
		name, _, hasValue := strings.Cut(args[at], "=")
		if !slices.Contains(p.Globals, name) {
			return 0
		}
		if at++; !hasValue {
			at++
		}
	}
	return at
}

// commandNames returns the names of the commands that are not hidden, and of those that every program has.
func (p Program) commandNames() []string {
	var names []string
	for _, c := range p.Commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return append(names, "completion", "help", "version")
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
