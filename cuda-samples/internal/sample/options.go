package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/version"
)

type options struct {
	device   string
	json     bool
	report   string        // a file for what -o json prints; "": none
	timeout  time.Duration // of each run
	duration time.Duration // of --for; 0: run once
	every    time.Duration
}

// helpWidth limits the lines of --help, in columns.
const helpWidth = 100

// parse reads the command line, and then the environment for flags that the command line does not
// set. It answers --help and --version itself: then it returns errDone, and the program should exit
// with code 0.
func (s Sample) parse(args []string, env func(string) string, stdout io.Writer) (options, error) {
	var o options
	var output string
	var wantHelp, wantVersion bool
	f := pflag.NewFlagSet(s.Name, pflag.ContinueOnError)
	f.Usage = func() {}
	f.SortFlags = false
	if s.Flags != nil {
		s.Flags(f)
	}
	f.StringVar(&o.device, "device", "", "index or UUID among the visible devices (default: the first)")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "give up on a run after this long")
	f.DurationVar(&o.duration, "for", 0, "run again and again for this long")
	f.DurationVar(&o.every, "every", time.Second, "time between the runs of --for")
	f.StringVarP(&output, "output", "o", "text", "text, or json: result, device and seconds of each phase")
	f.BoolVar(&o.json, "json", false, "the same as -o json")
	f.StringVar(&o.report, "report", "", "write the JSON report to this file")
	var withVariable []*pflag.Flag // flags that an environment variable can set, too
	f.VisitAll(func(flag *pflag.Flag) {
		withVariable = append(withVariable, flag)
		flag.Usage += " [" + s.variable(flag) + "]"
	})
	f.BoolVarP(&wantHelp, "help", "h", false, "this text")
	f.BoolVar(&wantVersion, "version", false, "the version; with -o json for programs")
	if len(args) > 0 && (args[0] == "help" || args[0] == "version") { // commands of the project's other programs
		args = append([]string{"--" + args[0]}, args[1:]...)
	}
	if err := cmdline.Parse(f, args); err != nil {
		return o, err
	}
	switch {
	case wantHelp:
		fmt.Fprint(stdout, s.help(f.FlagUsagesWrapped(helpWidth)))
		return o, errDone
	case wantVersion && f.NArg() == 0 && (o.json || output == "json"):
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return o, errors.Join(errDone, e.Encode(version.Get(s.Name)))
	case wantVersion && f.NArg() == 0 && output == "text":
		fmt.Fprintln(stdout, version.Get(s.Name).Line())
		return o, errDone
	}
	for _, flag := range withVariable {
		name := s.variable(flag)
		if v := env(name); v != "" && !flag.Changed {
			if err := cmdline.SetFromVariable(f, flag.Name, name, v); err != nil {
				return o, err
			}
		}
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case output != "json" && output != "text":
		return o, fmt.Errorf("--output is %q: it must be text or json", output)
	case o.timeout <= 0:
		return o, fmt.Errorf("--timeout is %v: it must be positive", o.timeout)
	case o.duration < 0 || o.every < 0:
		return o, fmt.Errorf("--for is %v, --every is %v: they must not be negative", o.duration, o.every)
	}
	o.json = o.json || output == "json"
	if s.Check != nil {
		return o, s.Check()
	}
	return o, nil
}

// variable returns the environment variable of a flag: VECTORADD_FOR for --for.
func (s Sample) variable(flag *pflag.Flag) string {
	return strings.ToUpper(s.Name + "_" + strings.ReplaceAll(flag.Name, "-", "_"))
}

func (s Sample) help(flags string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n", s.About)
	examples := append([]Example{
		{s.Name, "on the first GPU that CUDA sees"},
		{s.Name + " --device GPU-7c9d…", "on the GPU with this UUID"},
		{"CUDA_VISIBLE_DEVICES=MIG-3f… " + s.Name, "on this MIG device"},
		{s.Name + " -o json", "for programs"},
		{s.Name + " --for 1h --every 10s", "again and again, until the first failure"},
	}, s.Examples...)
	for _, e := range examples {
		fmt.Fprintf(&b, "  %-42s %s\n", e.Command, e.Meaning)
	}
	fmt.Fprintf(&b, "\nFlags (each also by the environment variable in brackets; the command line wins):\n%s\n%s", flags, exitHelp)
	return b.String()
}
