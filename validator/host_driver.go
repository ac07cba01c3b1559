package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/validator/probe"
	"github.com/gpuready/gpuready/validator/workload"
)

const hostDriverUsage = `Report whether the host has an NVIDIA driver of its own, for the init container of a
driver container: exit code 0, it has none (or the loaded one is a driver container's),
3, it has one. The last line, also the termination message, is then

  HostDriver: 580.95.05 at /

It only reads files of the host: it needs no other privilege, and
no GPU.

Example:
  gpu-validator host-driver --host-root /host
`

func hostDriver(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := command("host-driver", hostDriverUsage, stdout)
	var messagePath string
	o.flags.StringVar(&o.hostRoot, "host-root", "/", "where the host's root is seen")
	o.flags.StringVar(&messagePath, "termination-log", workload.TerminationLog, "the container's termination message file, written if it exists")
	o.bindEnv("host-root", "HOST_ROOT")
	o.bindEnv("termination-log", "TERMINATION_LOG")
	rest, err := o.parse(args)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return program.UsageErrorf("host-driver takes no arguments, but was given %q", rest[0])
	}
	root, err := host.Open(o.hostRoot)
	if err != nil {
		return program.UsageErrorf("--host-root %s: %w", o.hostRoot, err)
	}
	defer func() { _ = root.Close() }()
	kernel := root
	// Use this process's /proc and /sys if the host's root is mounted without its mounts.
	if !probe.HasProc(root) {
		if kernel, err = host.Open("/"); err != nil {
			return err
		}
		defer func() { _ = kernel.Close() }()
	}
	found, err := probe.InspectHost(root, kernel)
	if err != nil {
		return errors.Join(err, writeMessage(messagePath, err.Error()))
	}
	if !found.Exists() {
		fmt.Fprintln(stdout, found)
		return nil
	}
	fmt.Fprintf(stdout, "%s\n%s\n", found.Why, found)
	if err := writeMessage(messagePath, found.String()); err != nil {
		return err
	}
	return program.WithExitCode(exitHostDriver, program.ErrReported)
}

// writeMessage writes a container's termination message if its file exists, which the kubelet
// mounts.
func writeMessage(messagePath, text string) error {
	info, err := os.Stat(messagePath)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(messagePath, []byte(text), 0o644)
}
