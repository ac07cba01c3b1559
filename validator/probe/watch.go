package probe

import (
	"bufio"
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
	"sync"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
)

// WatchCommand is the hidden subcommand of the child that watches.
const WatchCommand = "nvml-watch"

// between is the time between two readings of the child that watches.
const between = 250 * time.Millisecond

// Told is what the child that watches has to tell: one of these.
type Told struct {
	Conditions map[gpu.UUID]gpu.Condition `json:"conditions,omitempty"` // a reading
	Errors     map[gpu.UUID]string        `json:"errors,omitempty"`     // of GPUs that could not be read in it
	Event      *gpu.Event                 `json:"event,omitempty"`
	Unheard    string                     `json:"unheard,omitempty"` // why events are not heard, or no more
	Ready      bool                       `json:"ready,omitempty"`   // after the first reading: events are heard from now on
}

// Watch runs a child that reads the GPUs' condition again and again and listens
// for events, until ctx ends; it then reads once more. told is called for each
// thing that it tells, one at a time. Watch returns once the child has ended, or
// after patience from the end of ctx.
func Watch(ctx context.Context, node check.Node, patience time.Duration, told func(Told)) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	cmd := exec.CommandContext(life, "/proc/self/exe", WatchCommand, node.Root.Dir(), node.DriverRoot)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = grace
	var stderr bytes.Buffer
	cmd.Stderr = &limited{&stderr, 64 << 10}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the process that watches NVML: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = stdin.Close() // it ends by itself, unless NVML hangs
		select {
		case <-time.After(patience):
			end()
		case <-life.Done():
		}
	})
	defer stop()
	if err = follow(stdout, told); err != nil {
		end()
	}
	if waited := cmd.Wait(); waited != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return fmt.Errorf("the process that watches NVML ended with %w: %s", waited, record.Clean(lines[len(lines)-1], 1000))
	}
	return err
}

// follow reads what the child tells, a line each.
func follow(from io.Reader, told func(Told)) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxOutput)
	for lines.Scan() {
		var t Told
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return fmt.Errorf("the process that watches NVML said %q: %w", record.Clean(lines.Text(), 200), err)
		}
		told(t)
	}
	return lines.Err()
}

// WatchChild is the subcommand: args are the host root and the driver root; it
// ends when stdin does.
func WatchChild(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	if len(args) != 2 || !filepath.IsAbs(args[0]) || !filepath.IsAbs(args[1]) {
		return errors.New("want the host root and the driver root, both absolute")
	}
	source, err := nvml.Open(nvml.Options{HostRoot: args[0], DriverRoot: args[1], Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	snapshot, err := source.Snapshot(ctx)
	if err != nil {
		return err
	}
	w := &watcher{source: source, devices: snapshot.Devices, out: json.NewEncoder(stdout)}
	return w.run(ctx, stdin)
}

type watcher struct {
	source  *nvml.Source
	devices []gpu.Device

	mu  sync.Mutex
	out *json.Encoder
}

func (w *watcher) tell(t Told) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(t) // who does not listen any more kills us
}

func (w *watcher) run(ctx context.Context, stdin io.Reader) error {
	ctx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer func() { stop(); group.Wait() }()
	w.read(ctx)
	group.Go(func() {
		err := w.source.Watch(ctx, func() { w.tell(Told{Ready: true}) }, func(e gpu.Event) { w.tell(Told{Event: &e}) })
		if ctx.Err() == nil && err != nil {
			w.tell(Told{Unheard: err.Error(), Ready: true})
		}
	})
	over := make(chan struct{})
	go func() { // it ends with the process: nothing interrupts a read of stdin
		defer close(over)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.read(ctx)
		case <-over:
			w.read(ctx)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// read reads the condition of all GPUs at once: one that hangs keeps no other waiting.
func (w *watcher) read(ctx context.Context) {
	t := Told{Conditions: map[gpu.UUID]gpu.Condition{}, Errors: map[gpu.UUID]string{}}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, d := range w.devices {
		if d.UUID == "" {
			continue
		}
		group.Go(func() {
			c, err := w.source.Condition(ctx, d.UUID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errors[d.UUID] = err.Error()
				return
			}
			t.Conditions[d.UUID] = c
		})
	}
	group.Wait()
	w.tell(t)
}
