package program

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/inotify"
)

// Flags are the flags of a command.
type Flags struct {
	*pflag.FlagSet
	Env map[string]string // by flag, the environment variable used if the flag is not given
}

// lineLength limits the lines of --help, in columns.
const lineLength = 100

// NewFlags returns the flags of a command; call is its command line: "gpu-validator
// run". Its help is usage, with examples, then the flags and the exit codes.
func NewFlags(call, usage, exitCodes string, stdout io.Writer) *Flags {
	f := &Flags{pflag.NewFlagSet(call, pflag.ContinueOnError), map[string]string{}}
	f.SortFlags = false
	f.SetOutput(io.Discard) // Program.Run prints the error
	f.Usage = func() {
		heading := "Flags:"
		if len(f.Env) > 0 {
			heading = "Flags (each with its environment variable; the command line wins):"
		}
		fmt.Fprint(stdout, usage+"\n"+heading+"\n"+FlagHelp(f.FlagSet)+exitCodes)
	}
	return f
}

// FlagHelp returns the lines about flags for --help: each with its description beside it or, if the
// names are long, below it.
func FlagHelp(f *pflag.FlagSet) string {
	lines := slices.Collect(strings.Lines(f.FlagUsages()))
	widest := 0
	for _, line := range lines {
		widest = max(widest, strings.LastIndex(line, "   ")+len("   "))
	}
	if widest <= lineLength/2 {
		return f.FlagUsagesWrapped(lineLength)
	}
	var help strings.Builder
	for _, line := range lines {
		part := flagLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if part == nil {
			help.WriteString(line)
			continue
		}
		name := strings.TrimRight(strings.TrimSuffix(strings.TrimSuffix(line, "\n"), part[4]), " ")
		help.WriteString(name)
		column := lineLength
		for word := range strings.FieldsSeq(part[4]) {
			if column+1+len(word) > lineLength {
				help.WriteString("\n         ")
				column = len("         ")
			}
			help.WriteString(" " + word)
			column += 1 + len(word)
		}
		help.WriteString("\n")
	}
	return help.String()
}

// Command returns the command's name, without the program's.
func (f *Flags) Command() string {
	return f.Name()[strings.LastIndex(f.Name(), " ")+1:]
}

// Read reads the command line and, for flags that are not given, the environment.
func (f *Flags) Read(args []string) error {
	config.Describe(f.FlagSet, f.Env)
	err := cmdline.Parse(f.FlagSet, args)
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if err == nil {
		err = config.Env(f.FlagSet, f.Env)
	}
	if err != nil {
		return WithExitCode(Usage, cmdline.AddHelp(err, f.Name()))
	}
	return nil
}

// RefuseArgs returns an error if there are arguments besides the flags.
func (f *Flags) RefuseArgs() error {
	if f.NArg() > 0 {
		return UsageErrorf("%s takes no arguments, but was given %q", f.Command(), strings.Join(f.Args(), " "))
	}
	return nil
}

// AddLogFormat adds the flag --log-format.
func (f *Flags) AddLogFormat(format *string) {
	f.StringVar(format, "log-format", "text", "of the log on stderr: text or json")
	f.Env["log-format"] = "LOG_FORMAT"
}

// AddLogLevel adds the flag --log-level.
func (f *Flags) AddLogLevel(level *string) {
	f.StringVar(level, "log-level", "info", "of the log: debug, info, warn or error")
	f.Env["log-level"] = "LOG_LEVEL"
}

// NewLog returns the logger of a component in the given format, from the given level
// ("": info), and makes it inotify's logger.
func NewLog(w io.Writer, component, format, level string) (*slog.Logger, error) {
	var o slog.HandlerOptions
	if level != "" {
		var l slog.Level
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, UsageErrorf("--log-level %q: want debug, info, warn or error", level)
		}
		o.Level = l
	}
	var handler slog.Handler
	switch format {
	case "text":
		handler = slog.NewTextHandler(w, &o)
	case "json":
		handler = slog.NewJSONHandler(w, &o)
	default:
		return nil, UsageErrorf("--log-format %q: want text or json", format)
	}
	log := slog.New(handler).With("component", component)
	inotify.SetLogger(log)
	return log, nil
}
