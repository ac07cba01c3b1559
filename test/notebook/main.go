// Command notebook builds a notebook image, and takes pictures of pages with headless Chromium. Its
// tests apply deployments/static/examples/notebook.yaml: a person opens the notebook in a browser,
// enters the token and runs it on a simulated GPU. `make e2e-notebook` runs them.
//
//	go run ./test/notebook image --bin bin --out bin/notebook/notebook.tar vectoradd
//	go run ./test/notebook picture --out report.png report.html
//	go run ./test/notebook picture --scheme dark --width 800 --out dark.png report.html
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/pflag"
)

// usageError is an invalid command line.
type usageError struct{ error }

func main() {
	commands := map[string]func(context.Context, []string) error{"image": imageCommand, "picture": pictureCommand}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "notebook: name a command, image or picture")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := commands[os.Args[1]](ctx, os.Args[2:])
	stop()
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
	if _, usage := errors.AsType[usageError](err); usage {
		os.Exit(2)
	}
	os.Exit(1)
}
