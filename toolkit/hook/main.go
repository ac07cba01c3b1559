// Gpu-cdi-hook is what the container runtime runs, as CDI specifications ask it
// to, while it creates a container with a GPU. It is static and small because
// that is on the way of every such container, and it believes nothing that the
// container's image says: see package rootfs. Hooks and flags are named as
// nvidia-cdi-hook names them, so that specifications made for that work with it.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// maxTime ends hooks that an image, or a file system that does not answer, holds
// up. All hooks of a container together take a few milliseconds.
const maxTime = 5 * time.Second

// maxMemory is where collecting garbage begins; below, ending the process does
// it, in a third of the time that a hook else takes.
const maxMemory = 64 << 20

func main() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(maxMemory)
	done := make(chan error, 1)
	go func() { done <- run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr) }()
	var err error
	select {
	case err = <-done:
	case <-time.After(maxTime):
		select {
		case err = <-done: // both: the machine stood still
		default:
			err = fmt.Errorf("not done after %v, given up", maxTime)
		}
	}
	if err != nil {
		say(os.Stderr, err.Error())
		os.Exit(1)
	}
}

// maxMessage bounds a message in bytes: runtimes and kubelets keep what hooks write.
const maxMessage = 2000

// say writes one line of bounded length, whatever an image's file names hold.
func say(w io.Writer, message string) {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "") + "…"
	}
	message = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(message, "\n", "; "))
	fmt.Fprintln(w, "gpu-cdi-hook:", message)
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	name, args := hookName(args)
	switch name {
	case "", "--help", "-h", "help":
		_, err := io.WriteString(stdout, usage())
		return err
	case "--version", "-v":
		_, err := fmt.Fprintln(stdout, "gpu-cdi-hook", version.String())
		return err
	}
	hooks, ok := joined.Hooks(append([]string{name}, args...))
	if !ok {
		return fmt.Errorf("%s: hooks are wanted, with -- before each", name)
	}
	o := &opener{stdin: stdin}
	defer o.close()
	for _, args := range hooks {
		if err := runOne(args[0], args[1:], o, stdout, stderr); err != nil {
			return err
		}
	}
	return nil
}
