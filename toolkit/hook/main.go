// Gpu-cdi-hook is what the container runtime runs, as the CDI specifications of
// the toolkit ask it to, while it creates a container with a GPU. It is static
// and small because that is on the way of every such container, and it believes
// nothing that the container's image says: see package host.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/toolkit/hook/bundle"
)

const usage = `Run by a container runtime as an OCI hook; the container's state is read from standard input.

Usage:
  gpu-cdi-hook create-symlinks --link target::path ...
  gpu-cdi-hook update-ldcache --folder path ...

Both work below the container's root file system only. Hooks of other names are
passed over with a warning, so that a newer specification does not stop containers.

Exit codes: 0 done, or nothing to do; 1 failed, the reason is on standard error.
`

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-cdi-hook:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] == "--help" || args[0] == "-h" {
		_, err := io.WriteString(stdout, usage)
		return err
	}
	if args[0] == "--version" {
		_, err := fmt.Fprintln(stdout, "gpu-cdi-hook", version.String())
		return err
	}
	hooks := map[string]struct {
		flag string
		do   func(root *host.Root, values []string, b bundle.Bundle, stderr io.Writer) error
	}{
		"create-symlinks": {"--link", createSymlinks},
		"update-ldcache":  {"--folder", updateLDCache},
	}
	hook, ok := hooks[args[0]]
	if !ok {
		fmt.Fprintf(stderr, "gpu-cdi-hook: %q is not a hook that this version has; nothing done\n", args[0])
		return nil
	}
	values, err := parseFlags(args[1:], hook.flag)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	b, err := bundle.Read(stdin)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	root, err := host.Open(b.Root)
	if err != nil {
		return fmt.Errorf("%s: container's root file system: %w", args[0], err)
	}
	defer root.Close()
	if err := hook.do(root, values, b, stderr); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}
