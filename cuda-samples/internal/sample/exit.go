package sample

import (
	"context"
	"errors"
	"fmt"
)

// The exit codes of all samples; 0: passed.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitWrong       = 3
	exitTime        = 4
	ExitNotPossible = 5
)

const exitHelp = `Exit codes:
  0  passed
  1  a call of the driver failed
  2  bad usage
  3  a wrong result; the first one is named
  4  no result in time, or interrupted
  5  not possible on this device
`

var (
	errDone    = errors.New("nothing more to do") // after --help or --version
	errTimeout = errors.New("no result in time")
)

type notPossibleError struct{ text string }

func (e *notPossibleError) Error() string { return e.text }

// NotPossible returns an error for work that this device cannot do: exit code 5.
func NotPossible(format string, args ...any) error {
	return &notPossibleError{fmt.Sprintf(format, args...)}
}

// nextAction returns what to do about the error with which a sample ended; "": the error says it.
func nextAction(err error) string {
	switch exitCode(err) {
	case exitWrong:
		return "take the GPU out of service and look for Xid lines in dmesg"
	case exitTime:
		if errors.Is(err, errTimeout) {
			return "a GPU that hangs needs a reset: look for Xid lines in dmesg, or give more time with --timeout"
		}
	}
	return ""
}

// exitCode returns the exit code for the error with which a sample ended. Errors of usage, and
// errDone, are handled before.
func exitCode(err error) int {
	wrong, impossible := new(WrongError), new(notPossibleError)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		return exitWrong
	case errors.As(err, &impossible):
		return ExitNotPossible
	case errors.Is(err, errTimeout), errors.Is(err, context.Canceled):
		return exitTime
	}
	return exitFailed
}
