package nvml

// This file reads a GPU in a separate process, which ends at once. A process that must
// not keep a GPU open, so that it can be reset, uses it to find out whether the reset
// has happened.

import (
	"bytes"
	"cmp"
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
	"sync"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// ReaderCommand is the hidden subcommand of a program that reads one GPU and ends. It passes
// its arguments to Print.
const ReaderCommand = "gpu-reading"

// readTimeout is generous: without persistence mode a driver initialises a GPU
// when it is opened, which takes seconds.
const readTimeout = time.Minute

// killGrace is the time for a killed process to end. One that hangs in the driver does not
// end before the driver returns.
const killGrace = 2 * time.Second

var errHangs = errors.New("the process that reads the GPU was killed but hangs in the driver; look for NVRM lines in the kernel log")

// NewOutsideReader returns a function that reads a GPU in a separate process, this program's
// Command. One process runs at a time for each GPU. So at most one hanging process, and
// the goroutine that waits for it, is left for each GPU.
func NewOutsideReader(hostRoot, driverRoot string) OutsideReader {
	var mu sync.Mutex
	busy := map[int]bool{}
	return func(ctx context.Context, index int) (gpu.Device, error) {
		mu.Lock()
		was := busy[index]
		busy[index] = true
		mu.Unlock()
		if was {
			return gpu.Device{}, errHangs
		}
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		type result struct {
			device gpu.Device
			err    error
		}
		results := make(chan result, 1)
		go func() {
			defer cancel()
			// Not the path of the binary, which an upgrade may have replaced.
			d, err := runReader(ctx, exec.CommandContext(ctx, "/proc/self/exe", ReaderCommand, hostRoot, driverRoot, strconv.Itoa(index)))
			mu.Lock()
			delete(busy, index)
			mu.Unlock()
			results <- result{d, err}
		}()
		select {
		case r := <-results:
			return r.device, r.err
		case <-ctx.Done():
		}
		late := time.NewTimer(killGrace)
		defer late.Stop()
		select {
		case r := <-results:
			return r.device, r.err
		case <-late.C:
			return gpu.Device{}, errHangs
		}
	}
}

// runReader runs the process that reads a GPU and waits for its end.
func runReader(ctx context.Context, cmd *exec.Cmd) (d gpu.Device, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return d, fmt.Errorf("the process that reads it ended with %w: %s", cmp.Or(ctx.Err(), err), record.Clean(strings.TrimSpace(stderr.String()), 1000))
	}
	if err := json.Unmarshal(stdout.Bytes(), &d); err != nil {
		return d, fmt.Errorf("the process that reads it: %w", err)
	}
	return d, nil
}

// PrintDevice implements the subcommand: it reads a GPU and writes it to out. args are the
// host root, the driver root and the index.
func PrintDevice(ctx context.Context, args []string, out io.Writer) error {
	d, err := readDevice(ctx, args)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(d)
}

func readDevice(ctx context.Context, args []string) (d gpu.Device, err error) {
	if len(args) != 3 || !filepath.IsAbs(args[0]) || !filepath.IsAbs(args[1]) {
		return d, errors.New("want the host root and the driver root, both absolute, and the index of a GPU")
	}
	index, err := strconv.Atoi(args[2])
	if err != nil || index < 0 {
		return d, fmt.Errorf("%q is no index of a GPU", args[2])
	}
	source, err := Open(Options{HostRoot: args[0], DriverRoot: args[1], Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return d, err
	}
	d, err = source.Device(ctx, index)
	return d, errors.Join(err, source.Close())
}
