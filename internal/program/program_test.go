package program_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/program"
)

// sample is a program with a command of each kind.
func sample(first string) program.Program {
	return program.Program{
		Name: "gpu-sample", Help: "the help\n", DefaultCommand: first,
		Advise: func(text string) string {
			if strings.Contains(text, "EOF") {
				return "write it whole"
			}
			return ""
		},
		Commands: []program.Command{
			{Name: "greet", Run: greet},
			{Name: "fail", Run: func(context.Context, []string, io.Writer, io.Writer) error {
				return program.WithExitCode(7, errors.Join(errors.New("one"), errors.New("two")))
			}},
			{Name: "quiet", Run: func(context.Context, []string, io.Writer, io.Writer) error {
				return program.WithExitCode(3, program.ErrReported)
			}},
			{Name: "break", Run: func(context.Context, []string, io.Writer, io.Writer) error { return io.ErrUnexpectedEOF }},
			{Name: "child", Hidden: true, Run: greet},
		},
	}
}

func greet(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("gpu-sample greet", "Greet.\n", "\nExit codes:\n  0  done\n", stdout)
	var format, level string
	whom := f.String("whom", "world", "who is greeted")
	f.Env["whom"] = "WHOM"
	f.AddLogFormat(&format)
	f.AddLogLevel(&level)
	if err := errors.Join(f.Read(args), f.RefuseArgs()); err != nil {
		return err
	}
	log, err := program.NewLog(stderr, "sample", format, level)
	if err != nil {
		return err
	}
	log.Debug("greeted", "whom", *whom)
	_, err = fmt.Fprintln(stdout, "hello", *whom)
	return err
}

func TestTheCommandIsRunAndItsErrorIsToldWithItsCode(t *testing.T) {
	for _, c := range []struct {
		args, first    string
		code           int
		stdout, stderr string // what they contain; "": nothing is there
	}{
		{args: "greet", stdout: "hello world\n"},
		{args: "greet --whom=you", stdout: "hello you\n"},
		{args: "--whom=you", first: "greet", stdout: "hello you\n"},
		{args: "", first: "greet", stdout: "hello world\n"},
		{args: "child", stdout: "hello world\n"},
		{args: "greet --log-level=debug --log-format=json", stdout: "hello", stderr: `"msg":"greeted","component":"sample","whom":"world"`},
		{args: "fail", code: 7, stderr: "gpu-sample: one; two\n"},
		{args: "quiet", code: 3},
		{args: "break", code: program.Failed, stderr: "gpu-sample: unexpected EOF: write it whole\n"},
		{args: "", code: program.Usage, stderr: "no command (known here: greet, fail, quiet, break, completion, help, version); " +
			"see gpu-sample --help\n"},
		{args: "walk", code: program.Usage, stderr: `unknown command "walk" (known here: greet, fail`},
		{args: "walk", first: "greet", code: program.Usage, stderr: `unknown command "walk"`},
		{args: "gret", code: program.Usage, stderr: "gpu-sample: unknown command \"gret\", did you mean \"greet\"? See gpu-sample --help\n"},
		{args: "greet --frobnicate", code: program.Usage, stderr: "gpu-sample: unknown flag --frobnicate; see gpu-sample greet --help\n"},
		{args: "greet --whm=you", code: program.Usage, stderr: "unknown flag --whm, did you mean \"--whom\"? See gpu-sample greet --help\n"},
		{args: "greet you all", code: program.Usage, stderr: `greet takes no arguments, but was given "you all"`},
		{args: "greet --log-level=loud", code: program.Usage, stderr: "want debug, info"},
		{args: "greet --log-format=xml", code: program.Usage, stderr: "want text or json"},
		{args: "--help", first: "greet", stdout: "the help\n"},
		{args: "help", stdout: "the help\n"},
		{args: "help greet", first: "greet", stdout: "Greet.\n\nFlags"},
		{args: "help gret", code: program.Usage, stderr: "did you mean \"greet\"?"},
		{args: "help version", stdout: "Print the version"},
		{args: "--version", first: "greet", stdout: "gpu-sample "},
		{args: "greet --help", stdout: "Greet.\n\nFlags (each with its environment variable; the command line wins):\n      --whom string"},
		{args: "greet --help", stdout: "[$LOG_LEVEL] (default \"info\")\n\nExit codes:\n  0  done\n"},
	} {
		t.Run(c.first+" "+c.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := sample(c.first).Run(t.Context(), strings.Fields(c.args), &stdout, &stderr)
			require.Equal(t, c.code, code, stderr.String())
			for _, out := range []struct {
				is   string
				want string
			}{{stdout.String(), c.stdout}, {stderr.String(), c.stderr}} {
				if out.want == "" {
					require.Empty(t, out.is)
				} else {
					require.Contains(t, out.is, out.want)
				}
			}
		})
	}
}

func TestAVariableCountsWhereTheFlagIsNotGiven(t *testing.T) {
	t.Setenv("WHOM", "you")
	var stdout bytes.Buffer
	require.Zero(t, sample("").Run(t.Context(), []string{"greet"}, &stdout, io.Discard))
	require.Zero(t, sample("").Run(t.Context(), []string{"greet", "--whom=me"}, &stdout, io.Discard))
	require.Equal(t, "hello you\nhello me\n", stdout.String())
	t.Setenv("LOG_LEVEL", "loud")
	require.Equal(t, program.Usage, sample("").Run(t.Context(), []string{"greet"}, &stdout, io.Discard))
}

func TestASignalEndsTheContext(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		code := program.RunWithSignals(func(ctx context.Context) int {
			require.NoError(t, syscall.Kill(syscall.Getpid(), s))
			<-ctx.Done()
			return 5
		})
		require.Equal(t, 5, code)
	}
}
