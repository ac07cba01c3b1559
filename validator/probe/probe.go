// Package probe finds out about a node's driver: by NVML, which it reads in a separate
// process; by the CUDA samples, which are separate programs; and by the host's files,
// whether the host has a driver of its own.
//
// A process can load only one libnvidia-ml in its life. A library of another driver version
// can lack a symbol, which ends the process. A call into a driver whose GPU hangs does not
// return. A validator has to survive all three and report which it was, so it runs its own
// binary for each reading: the child opens NVML, prints the reading as JSON, and ends.
package probe

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
	"strings"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
)

// Command is the hidden subcommand of the child.
const Command = "nvml-reading"

const (
	// timeout is generous: without persistence mode a driver initialises every GPU when
	// NVML opens it, which takes some seconds each.
	timeout   = 2 * time.Minute
	grace     = 2 * time.Second
	maxOutput = 8 << 20
)

// message is the output of the child.
type message struct {
	Snapshot gpu.Snapshot `json:"snapshot"`
	Library  string       `json:"library"`
	Error    string       `json:"error,omitempty"`
	Kind     string       `json:"kind,omitempty"` // of the error, a key of sentinels
}

var sentinels = map[string]error{
	"NoDriver":        gpu.ErrNoDriver,
	"NoPermission":    gpu.ErrNoPermission,
	"VersionMismatch": gpu.ErrVersionMismatch,
}

// childError holds the text of the child's error and its sentinel.
type childError struct {
	text     string
	sentinel error
}

func (e *childError) Error() string { return e.text }
func (e *childError) Unwrap() error { return e.sentinel }

// newChild returns a child process, which is killed when this one ends, and its stderr, of
// which at most so many bytes are kept.
func newChild(ctx context.Context, command string, node check.Node, stderrBytes int) (*exec.Cmd, *bytes.Buffer) {
	// Not the path of the binary, which an upgrade may have replaced.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", command, node.Root.Dir(), node.DriverRoot)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = grace
	stderr := &bytes.Buffer{}
	cmd.Stderr = &limited{stderr, stderrBytes}
	return cmd, stderr
}

// lastLine returns the last line of a program's output, cleaned for a terminal.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return record.Clean(lines[len(lines)-1], 1000)
}

// openNVML opens NVML in a child. args are the host root and the driver root.
func openNVML(args []string) (*nvml.Source, error) {
	return nvml.Open(nvml.Options{HostRoot: args[0], DriverRoot: args[1], Log: slog.New(slog.DiscardHandler)})
}

func checkArgs(args []string) error {
	if len(args) != 2 || !filepath.IsAbs(args[0]) || !filepath.IsAbs(args[1]) {
		return errors.New("want the host root and the driver root, both absolute")
	}
	return nil
}

// Read is a step.ReadNVML that runs the child.
func Read(ctx context.Context, node check.Node) (check.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd, stderr := newChild(ctx, Command, node, maxOutput)
	var stdout bytes.Buffer
	cmd.Stdout = &limited{&stdout, maxOutput}
	err := cmd.Run()
	if ctx.Err() != nil {
		return check.Reading{}, fmt.Errorf("NVML did not answer within %v: a GPU or its driver hangs", timeout)
	}
	if err != nil {
		return check.Reading{}, fmt.Errorf("the process that asked NVML ended with %w: %s", err, lastLine(stderr.String()))
	}
	return decode(stdout.Bytes())
}

func decode(data []byte) (check.Reading, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return check.Reading{}, fmt.Errorf("the process that asked NVML gave no answer: %w", err)
	}
	if m.Error != "" {
		return check.Reading{}, &childError{text: record.Clean(m.Error, 4096), sentinel: sentinels[m.Kind]}
	}
	return check.Reading{Snapshot: m.Snapshot, Library: m.Library}, nil
}

// Child runs the subcommand: args are the host root and the driver root.
func Child(ctx context.Context, args []string, stdout io.Writer) error {
	if err := checkArgs(args); err != nil {
		return err
	}
	m := message{}
	source, err := openNVML(args)
	if err == nil {
		m.Snapshot, err = source.Snapshot(ctx)
		m.Library = source.Library()
		err = errors.Join(err, source.Close())
	}
	if err != nil {
		m.Error = err.Error()
		for kind, sentinel := range sentinels {
			if errors.Is(err, sentinel) {
				m.Kind = kind
			}
		}
	}
	return json.NewEncoder(stdout).Encode(m)
}

// limited is a writer that drops output beyond room. The buffer is not embedded: its ReadFrom, which
// io.Copy prefers to Write, has no bound.
type limited struct {
	to   *bytes.Buffer
	room int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.room - l.to.Len(); room > 0 {
		l.to.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
