package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/cmdline"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/version"
	"github.com/gpuready/gpuready/toolkit/daemon"
)

// runCommand runs gpu-toolkit with the arguments after its name, and returns its exit code.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == nvml.ReaderCommand {
		if err := nvml.PrintDevice(ctx, args[1:], stdout); err != nil {
			fmt.Fprintln(stderr, "gpu-toolkit:", err)
			return program.Failed
		}
		return 0
	}
	if program.HasBuiltin(args) {
		return asProgram().Run(ctx, args, stdout, stderr)
	}
	o, err := parse(args)
	switch {
	case err != nil:
		fmt.Fprintln(stderr, "gpu-toolkit:", cmdline.AddHelp(err, "gpu-toolkit"))
		return program.Usage
	case o.help:
		fmt.Fprint(stdout, o.usage())
		return 0
	case o.version:
		fmt.Fprintln(stdout, version.Get("gpu-toolkit").Line())
		return 0
	}
	err = run(ctx, o, stdout, stderr)
	if errors.Is(err, daemon.ErrReplaced) {
		// Replace only the program's image, and keep the process ID and container.
		err = fmt.Errorf("restart: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	if err != nil {
		_, message := o.config.Explain(err)
		fmt.Fprintln(stderr, "gpu-toolkit:", strings.ReplaceAll(message, "\n", "; "))
		return program.Failed
	}
	return 0
}

// asProgram returns the program with the commands of every program: help, version and completion. All
// of its own share one help.
func asProgram() program.Program {
	o, _ := parse([]string{"--help"})
	p := program.Program{Name: "gpu-toolkit", Help: o.usage()}
	for _, name := range commands {
		p.Commands = append(p.Commands, program.Command{Name: name, Run: func(_ context.Context, _ []string, stdout, _ io.Writer) error {
			_, err := io.WriteString(stdout, p.Help)
			return err
		}})
	}
	return p
}
