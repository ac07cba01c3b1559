package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// readingCommand is the hidden subcommand that reads one GPU and ends: this process
// holds no GPU open that waits for a reset, and so cannot see whether it came.
const readingCommand = "gpu-reading"

// readingTimeout is generous: without persistence mode a driver initialises a GPU
// when it is opened, which takes seconds.
const readingTimeout = time.Minute

// outside reads a GPU in a process of its own.
func (o *options) outside(driverRoot string) nvml.Outside {
	return func(ctx context.Context, index int) (d gpu.Device, err error) {
		ctx, cancel := context.WithTimeout(ctx, readingTimeout)
		defer cancel()
		// Not the path of the binary, which an upgrade may have replaced.
		cmd := exec.CommandContext(ctx, "/proc/self/exe", readingCommand, o.hostRoot, driverRoot, strconv.Itoa(index))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = time.Second
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return d, fmt.Errorf("the process that reads it ended with %w: %s", err, record.Clean(strings.TrimSpace(stderr.String()), 1000))
		}
		if err := json.Unmarshal(stdout.Bytes(), &d); err != nil {
			return d, fmt.Errorf("the process that reads it: %w", err)
		}
		return d, nil
	}
}

// printReading is the subcommand: the host root, the driver root and the index.
func printReading(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d, err := reading(ctx, args)
	if err == nil {
		err = json.NewEncoder(stdout).Encode(d)
	}
	if err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

func reading(ctx context.Context, args []string) (d gpu.Device, err error) {
	if len(args) != 3 || !filepath.IsAbs(args[0]) || !filepath.IsAbs(args[1]) {
		return d, errors.New("want the host root and the driver root, both absolute, and the index of a GPU")
	}
	index, err := strconv.Atoi(args[2])
	if err != nil || index < 0 {
		return d, fmt.Errorf("%q is no index of a GPU", args[2])
	}
	source, err := nvml.Open(nvml.Options{HostRoot: args[0], DriverRoot: args[1], Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return d, err
	}
	d, err = source.Device(ctx, index)
	return d, errors.Join(err, source.Close())
}
