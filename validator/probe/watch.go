package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/nvml"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/validator/check"
)

// WatchCommand is the hidden subcommand of the watching child.
const WatchCommand = "nvml-watch"

// readInterval is the time between two readings of the watching child.
const readInterval = 250 * time.Millisecond

// Message is a message of the watching child, with one of these fields set.
type Message struct {
	Conditions map[gpu.UUID]gpu.Condition `json:"conditions,omitempty"` // a reading
	Errors     map[gpu.UUID]string        `json:"errors,omitempty"`     // of GPUs that could not be read in it
	Event      *gpu.Event                 `json:"event,omitempty"`
	Unheard    string                     `json:"unheard,omitempty"` // why events are not, or no longer, received
	Ready      bool                       `json:"ready,omitempty"`   // after the first reading: events are received from now on
}

// maxWatchErrors bounds the stderr that is kept of a child that runs for weeks.
const maxWatchErrors = 64 << 10

// Watch runs a child that reads the GPUs' condition again and again and receives events,
// until ctx ends; it then reads once more. handle is called for each message, one at a time.
// Watch returns once the child has ended, or endTimeout after the end of ctx.
func Watch(ctx context.Context, node check.Node, endTimeout time.Duration, handle func(Message)) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	cmd, stderr := newChild(life, WatchCommand, node, maxWatchErrors)
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
		case <-time.After(endTimeout):
			end()
		case <-life.Done():
		}
	})
	defer stop()
	if err = readMessages(stdout, handle); err != nil {
		end()
	}
	if waited := cmd.Wait(); waited != nil {
		return fmt.Errorf("the process that watches NVML ended with %w: %s", waited, lastLine(stderr.String()))
	}
	return err
}

// readMessages reads the child's messages, one per line.
func readMessages(from io.Reader, handle func(Message)) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxOutput)
	for lines.Scan() {
		var t Message
		if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
			return fmt.Errorf("the process that watches NVML printed %q: %w", record.Clean(lines.Text(), 200), err)
		}
		handle(t)
	}
	return lines.Err()
}

// WatchChild runs the subcommand: args are the host root and the driver root. It ends when
// stdin ends.
func WatchChild(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
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
	w := &watcher{source: source, devices: snapshot.Devices, out: json.NewEncoder(stdout)}
	return w.run(ctx, stdin)
}

type watcher struct {
	source  *nvml.Source
	devices []gpu.Device

	mu  sync.Mutex
	out *json.Encoder
}

func (w *watcher) send(t Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(t) // a parent that no longer reads kills this process
}

func (w *watcher) run(ctx context.Context, stdin io.Reader) error {
	ctx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer func() { stop(); group.Wait() }()
	w.read(ctx)
	group.Go(func() {
		err := w.source.Watch(ctx, func() { w.send(Message{Ready: true}) }, func(e gpu.Event) { w.send(Message{Event: &e}) })
		if ctx.Err() == nil && err != nil {
			w.send(Message{Unheard: err.Error(), Ready: true})
		}
	})
	over := make(chan struct{})
	go func() { // it ends with the process: nothing interrupts a read of stdin
		defer close(over)
		_, _ = io.Copy(io.Discard, stdin)
	}()
	tick := time.NewTicker(readInterval)
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

// read reads the condition of all GPUs concurrently, so that each GPU is read even if one
// hangs.
func (w *watcher) read(ctx context.Context) {
	t := Message{Conditions: map[gpu.UUID]gpu.Condition{}, Errors: map[gpu.UUID]string{}}
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
	w.send(t)
}
