package cmdline

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("sample", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.String("context", "", "")
	f.StringP("output", "o", "", "")
	f.Int("gpus", 0, "")
	f.Uint32("gpu", 0, "")
	f.IntSlice("cores", nil, "")
	f.Float64("watts", 0, "")
	f.Bool("dry-run", false, "")
	f.Duration("timeout", time.Second, "")
	f.StringToString("variable", nil, "")
	f.Func("size", "", func(value string) error { return fmt.Errorf("%q is no size", value) })
	f.String("secret", "", "")
	f.Lookup("secret").Hidden = true
	return f
}

func TestErrorsOfCommandLinesSayWhatIsMeant(t *testing.T) {
	for arg, want := range map[string]string{
		"--contxt=a":       `unknown flag --contxt, did you mean "--context"?`,
		"-context=a":       `unknown flag -context, did you mean "--context"?`,
		"--frobnicate":     "unknown flag --frobnicate",
		"--\x1b[2J":        `unknown flag "--\x1b[2J"`,
		"-x":               "unknown flag -x",
		"--secre=a":        "unknown flag --secre",
		"--context":        "--context needs a value",
		"-o":               "--output needs a value",
		"--gpus=abc":       `--gpus: "abc" is not a number`,
		"--gpus=1e99":      `--gpus: "1e99" is not a number`,
		"--gpu=-1":         `--gpu: "-1" is below 0`,
		"--gpu=abc":        `--gpu: "abc" is not a number`,
		"--gpu=4294967296": `--gpu: "4294967296" is out of range`,
		"--cores=1,b":      `--cores: "1,b" is not a number`,
		"--watts=much":     `--watts: "much" is not a number`,
		"--dry-run=maybe":  `--dry-run: "maybe" is neither true nor false`,
		"--variable=a":     `--variable: "a": a must be formatted as key=value`,
		"--size=1x":        `--size: "1x" is no size`,
		"--timeout=5":      `--timeout: "5" is not a duration, such as 30s or 5m`,
	} {
		require.EqualError(t, Parse(flags(), []string{arg}), want, arg)
	}
	require.ErrorIs(t, Parse(flags(), []string{"--help"}), pflag.ErrHelp)
	require.NoError(t, Parse(flags(), []string{"--gpus=2", "-o", "json"}))
}

func TestErrorsOfVariablesNameTheFlag(t *testing.T) {
	f := flags()
	require.EqualError(t, SetFromVariable(f, "gpus", "GPUS", "abc"), `environment variable GPUS, for --gpus: "abc" is not a number`)
	require.NoError(t, SetFromVariable(f, "gpus", "GPUS", "2"))
	require.True(t, f.Changed("gpus"))
}

func TestUnknownCommandsAreSuggestedOrListed(t *testing.T) {
	known := []string{"status", "explain"}
	require.EqualError(t, UnknownCommand("statsu", known), `unknown command "statsu", did you mean "status"?`)
	require.EqualError(t, UnknownCommand("frobnicate", known), `unknown command "frobnicate" (known here: status, explain)`)
	require.EqualError(t, NoCommand(known), "no command (known here: status, explain)")
}

func TestTheHelpIsNamedAfterAnError(t *testing.T) {
	require.EqualError(t, AddHelp(errors.New(`did you mean "x"?`), "sample run"), `did you mean "x"? See sample run --help`)
	require.EqualError(t, AddHelp(errors.New("no command"), "sample"), "no command; see sample --help")
}

func TestArgumentsAreCounted(t *testing.T) {
	require.NoError(t, CountArguments("explain", 1, "NODE"))
	require.EqualError(t, CountArguments("explain", 0, "NODE"), "explain takes 1 argument (NODE), not 0")
	require.EqualError(t, CountArguments("serve", 1, "NODE", "BY"), "serve takes 2 arguments (NODE BY), not 1")
	require.EqualError(t, CountArguments("plan", 2), "plan takes no arguments, not 2")
}
