package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/validator/check"
)

// UsageCommand is the hidden subcommand of the child that reads who uses the GPUs.
const UsageCommand = "nvml-usage"

// usageTimeout bounds the child. The driver was initialised by a reading a moment ago.
const usageTimeout = 30 * time.Second

// ReadUsage runs the child, and returns who uses each GPU and MIG device. A device that the driver
// does not report on is absent.
func ReadUsage(ctx context.Context, node check.Node) (map[gpu.UUID]gpu.Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	cmd, stderr := newChild(ctx, UsageCommand, node, maxOutput)
	var stdout bytes.Buffer
	cmd.Stdout = &limited{&stdout, maxOutput}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("the process that asked NVML who uses the GPUs ended with %w: %s", err, lastLine(stderr.String()))
	}
	var usage map[gpu.UUID]gpu.Usage
	if err := json.Unmarshal(stdout.Bytes(), &usage); err != nil {
		return nil, fmt.Errorf("the process that asked NVML who uses the GPUs gave no answer: %w", err)
	}
	return usage, nil
}

// UsageChild runs the subcommand: args are the host root and the driver root.
func UsageChild(ctx context.Context, args []string, stdout io.Writer) (err error) {
	if err := checkArgs(args); err != nil {
		return err
	}
	source, err := openNVML(args)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	snapshot, err := source.Snapshot(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(source.ReadUsage(ctx, snapshot.Devices))
}
