// Vectoradd adds two vectors on a GPU and checks every sum: the smallest proof
// that driver, libraries, device nodes and GPU work together.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	o, err := parse(args, env, stdout)
	if errors.Is(err, errDone) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "vectoradd: %v; see vectoradd --help\n", err)
		return 2
	}
	lines := stdout
	if o.json {
		lines = io.Discard
	}
	r, err := repeat(ctx, o, lines)
	return conclude(r, err, o.json, stdout, stderr)
}

// conclude says how it ended, in the exit code, too.
func conclude(r *report, err error, asJSON bool, stdout, stderr io.Writer) int {
	r.Passed = err == nil
	if err != nil {
		r.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
		fmt.Fprintln(stderr, "vectoradd:", r.Error)
	}
	switch {
	case asJSON:
		if e := json.NewEncoder(stdout).Encode(r); e != nil {
			return 1
		}
	case r.Passed && r.Simulated:
		fmt.Fprint(stdout, "Test PASSED (SIMULATED)\nDone\n")
	case r.Passed:
		fmt.Fprint(stdout, "Test PASSED\nDone\n")
	default:
		fmt.Fprintln(stdout, "Test FAILED")
	}
	return exitCode(err)
}
