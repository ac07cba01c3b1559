// Package cmdline reads command lines for all programs, and words their errors: an unknown command or flag,
// and a value of the wrong kind.
package cmdline

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/suggest"
)

// Parse parses a command line. It returns pflag.ErrHelp as it is.
func Parse(f *pflag.FlagSet, args []string) error {
	err := f.Parse(args)
	if unknown, is := errors.AsType[*pflag.NotExistError](err); is {
		return unknownFlag(f, unknown)
	}
	if missing, is := errors.AsType[*pflag.ValueRequiredError](err); is {
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	}
	if invalid, is := errors.AsType[*pflag.InvalidValueError](err); is {
		return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, wrongValue(invalid))
	}
	return err
}

// SetFromVariable sets a flag to the value of an environment variable.
func SetFromVariable(f *pflag.FlagSet, name, variable, value string) error {
	err := f.Set(name, value)
	if invalid, is := errors.AsType[*pflag.InvalidValueError](err); is {
		return fmt.Errorf("environment variable %s, for --%s: %w", variable, name, wrongValue(invalid))
	}
	return err
}

// UnknownCommand returns the error about a command that is not among those known.
func UnknownCommand(name string, known []string) error {
	return fmt.Errorf("unknown command %q%s", name, suggest.Hint(name, known))
}

// NoCommand returns the error about a command line without a command.
func NoCommand(known []string) error {
	return fmt.Errorf("no command%s", suggest.List(known))
}

// AddHelp adds to an error where the help is: after call, the command line of a program or of its command.
func AddHelp(err error, call string) error {
	if strings.HasSuffix(err.Error(), "?") {
		return fmt.Errorf("%w See %s --help", err, call)
	}
	return fmt.Errorf("%w; see %s --help", err, call)
}

// CountArguments returns an error unless given is the number of arguments named in want.
func CountArguments(command string, given int, want ...string) error {
	if given == len(want) {
		return nil
	}
	switch len(want) {
	case 0:
		return fmt.Errorf("%s takes no arguments, not %d", command, given)
	case 1:
		return fmt.Errorf("%s takes 1 argument (%s), not %d", command, want[0], given)
	}
	return fmt.Errorf("%s takes %d arguments (%s), not %d", command, len(want), strings.Join(want, " "), given)
}

// unknownFlag returns the error about a flag that does not exist: --contxt, -x, or -context for --context.
func unknownFlag(f *pflag.FlagSet, err *pflag.NotExistError) error {
	var known []string
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			known = append(known, "--"+flag.Name)
		}
	})
	word := "--" + err.GetSpecifiedName()
	if letters, _, _ := strings.Cut(err.GetSpecifiedShortnames(), "="); letters != "" {
		if word = "-" + letters; len(letters) == 1 {
			known = nil // each flag of one letter is similar to it
		}
	}
	word = fmt.Sprintf("%.80s", word)
	if quoted := strconv.Quote(word); quoted[1:len(quoted)-1] != word {
		word = quoted
	}
	return fmt.Errorf("unknown flag %s%s", word, suggest.Similar(word, known))
}

// wrongValue returns what is wrong with a value that a flag refuses.
func wrongValue(err *pflag.InvalidValueError) error {
	value, kind := err.GetValue(), strings.TrimRight(err.GetFlag().Value.Type(), "0123456789")
	kind = strings.TrimSuffix(kind, "Slice")
	switch {
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%q is out of range", value)
	case kind == "uint" && strings.HasPrefix(value, "-"):
		return fmt.Errorf("%q is below 0", value)
	case kind == "int" || kind == "uint" || kind == "float":
		return fmt.Errorf("%q is not a number", value)
	case kind == "bool":
		return fmt.Errorf("%q is neither true nor false", value)
	case kind == "duration":
		return fmt.Errorf("%q is not a duration, such as 30s or 5m", value)
	}
	if reason := err.Unwrap(); strings.Contains(reason.Error(), strconv.Quote(value)) {
		return reason
	}
	return fmt.Errorf("%q: %w", value, err.Unwrap())
}
