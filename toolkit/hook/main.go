// Gpu-cdi-hook is the hook that CDI specifications name. The container runtime runs it while
// it creates a container with a GPU. It is static and small because every such container
// waits for it, and it does not trust the container's image: see package rootfs. Hooks and
// flags have the names of nvidia-cdi-hook, so that specifications made for that work with
// it.
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

// maxTime limits hooks that an image or a hanging file system blocks. All hooks of a
// container together take a few milliseconds.
const maxTime = 5 * time.Second

// maxMemory is the threshold for garbage collection. Below it the end of the process frees
// the memory, and a hook takes a third less time.
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
		case err = <-done: // both are ready: the machine was suspended
		default:
			err = fmt.Errorf("not done after %v, given up", maxTime)
		}
	}
	if err != nil {
		report(os.Stderr, err.Error())
		os.Exit(1)
	}
}

// maxMessage limits a message, in bytes: runtimes and kubelets keep the output of hooks.
const maxMessage = 2000

// report writes one line of bounded length, whatever an image's file names contain.
func report(w io.Writer, message string) {
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
		_, err := fmt.Fprintln(stdout, version.Get("gpu-cdi-hook").Line())
		return err
	}
	hooks, ok := joined.Hooks(append([]string{name}, args...))
	if !ok {
		return fmt.Errorf("%s: no hooks; put -- before each hook", name)
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
