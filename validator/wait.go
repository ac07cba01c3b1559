package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/injection"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
	"github.com/gpuready/gpuready/validator/step"
)

const waitUsage = `Wait until the validator's daemon has proven all of the layers. The reason for
the wait is printed at the start and whenever it changes. When the
time is over, the exit code is that of the first layer that is not ready.

The word injection is not a layer: with it, the command waits until the toolkit would
inject the GPUs into a container that is created now, or the node has no GPUs. It is
for the init container of the daemon's pod, with --or-no-driver: then it also succeeds
if the driver's container reports that it has failed, or has waited for
half a minute, so that the daemon can report why.

Examples:
  gpu-validator wait driver toolkit
  gpu-validator wait cuda --timeout 10m
  gpu-validator wait injection --or-no-driver
`

// wordInjection can be waited for like a layer.
const wordInjection = "injection"

// components maps a layer to the component whose state explains why it is not proven yet.
var components = map[readiness.Layer]nodestate.Component{
	readiness.Toolkit: nodestate.Toolkit, readiness.Plugin: nodestate.DevicePlugin,
}

func wait(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := command("wait", waitUsage, stdout)
	var timeout time.Duration
	var orNoDriver bool
	o.flags.DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait; 0: for ever")
	o.flags.BoolVar(&orNoDriver, "or-no-driver", false, "with injection: also succeed if the driver's container reports why it has no driver")
	o.bindEnv("timeout", "WAIT_TIMEOUT")
	o.addPathFlags()
	names, err := o.parse(args)
	if err != nil {
		return err
	}
	inject := slices.Contains(names, wordInjection)
	layers, err := parseLayers(slices.DeleteFunc(names, func(name string) bool { return name == wordInjection }))
	if err != nil {
		return err
	}
	if len(layers) == 0 && !inject {
		return program.UsageErrorf("wait for what? Name one or more of driver, toolkit, cuda, plugin, injection")
	}
	node, err := o.node()
	if err != nil {
		return err
	}
	defer func() { _ = node.Root.Close() }()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	out := &lines{w: stderr}
	if inject {
		if err := waitForInjection(ctx, node, timeout, orNoDriver, out); err != nil {
			return err
		}
	}
	if len(layers) == 0 {
		return nil
	}
	err = waitForLayers(ctx, node, o, layers, out)
	var notReady *readiness.NotReadyError
	if errors.As(err, &notReady) {
		notReady.Status.NotReady = explainNoDriver(node, notReady.Layer, notReady.Status.NotReady)
	}
	switch {
	case notReady == nil:
		return err
	case errors.Is(err, context.Canceled):
		return program.WithExitCode(program.Failed, fmt.Errorf("interrupted: %w", notReady))
	case notReady.Status.NotReady != nil:
		return program.WithExitCode(layerCodes[notReady.Layer], fmt.Errorf("%w; %s (waited %v)", notReady, notReady.Status.NotReady.Action, timeout))
	}
	return program.WithExitCode(exitTimeout, fmt.Errorf("%w; see that gpu-validator daemon runs on this node (waited %v)", notReady, timeout))
}

// waitForInjection waits for the injection, and ends with the toolkit's exit code if it fails.
func waitForInjection(ctx context.Context, node check.Node, timeout time.Duration, orNoDriver bool, out *lines) error {
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var watching sync.WaitGroup
	defer watching.Wait()
	if orNoDriver {
		watching.Go(func() { watchDriver(waiting, node, stop) })
	}
	err := injection.Wait(waiting, node.StatePath(nodestate.Toolkit), node.BootID, func(why string) {
		out.print("waiting for injection: %s", why)
	})
	none, hopeless := errors.AsType[*noDriverError](context.Cause(waiting))
	stop(nil)
	switch {
	case err != nil && hopeless:
		out.print("the wait ends: the driver's container reports %s", none.why)
		return nil
	case err == nil:
		out.print("a container that is created now is given the GPUs")
		return nil
	case errors.Is(err, context.Canceled):
		return program.WithExitCode(program.Failed, fmt.Errorf("interrupted: injection: %w", err))
	case errors.Is(err, context.DeadlineExceeded):
		if _, unknown := node.State(nodestate.Toolkit); nodestate.IsAbsent(unknown) {
			return program.WithExitCode(exitTimeout, fmt.Errorf("injection: %w (waited %v)", err, timeout))
		}
		return program.WithExitCode(exitToolkit, fmt.Errorf("injection: %w; see the log of gpu-toolkit (waited %v)", err, timeout))
	}
	return err
}

// noDriverError holds the reason that the driver's container gives for having no driver.
type noDriverError struct{ why string }

func (e *noDriverError) Error() string { return e.why }

// driverGrace is the time that a driver's container may wait, for example for its modules to be
// built, before the wait ends without a driver: a validator that was created without the
// GPUs has to be created again.
const driverGrace = 30 * time.Second

// watchDriver calls stop with a noDriverError when the driver's container has failed, or has
// waited for longer than driverGrace. It runs until ctx ends.
func watchDriver(ctx context.Context, node check.Node, stop context.CancelCauseFunc) {
	w := driverWatch{stop: stop}
	_ = nodestate.WatchBoot(ctx, node.StatePath(nodestate.Driver), node.BootID, w.observe)
	w.observe(nodestate.State{}, ctx.Err())
}

// driverWatch follows the states of the driver's container for watchDriver.
type driverWatch struct {
	stop context.CancelCauseFunc
	why  atomic.Pointer[noDriverError] // the latest reason
	late *time.Timer                   // runs while there is a reason
}

func (w *driverWatch) observe(s nodestate.State, err error) {
	reason, message, ok := readiness.DriverProblem(s, err)
	if !ok {
		if w.late != nil {
			w.late.Stop()
			w.late = nil
		}
		return
	}
	w.why.Store(&noDriverError{fmt.Sprintf("%s: %s", reason, message)})
	switch {
	case s.Phase == nodestate.Failed:
		w.stop(w.why.Load())
	case w.late == nil:
		w.late = time.AfterFunc(driverGrace, func() { w.stop(w.why.Load()) })
	}
}

// waitForLayers waits for the layers, and prints the states of proofs and components meanwhile.
func waitForLayers(ctx context.Context, node check.Node, o *options, layers []readiness.Layer, out *lines) error {
	ctx, stop := context.WithCancel(ctx)
	group, _ := errgroup.WithContext(ctx)
	for _, l := range layers {
		c, ok := components[l]
		if !ok {
			continue
		}
		group.Go(func() error {
			return nodestate.WatchBoot(ctx, node.StatePath(c), node.BootID, func(s nodestate.State, err error) {
				switch {
				case ctx.Err() != nil:
				case err == nil:
					out.print("%s says %s%s", c, s.Phase, stateText(s))
				case !nodestate.IsAbsent(err):
					out.print("%s: %v", c, err)
				}
			})
		})
	}
	err := readiness.Wait(ctx, node.Root.Path(o.outputDir), layers, node.BootID, func(l readiness.Layer, s readiness.Status, err error) {
		switch {
		case err != nil:
			out.print("waiting for %s: %s", l, readiness.DescribeError(err))
		case s.Proof != nil:
			out.print("%s is ready: %s%s", l, s.Proof.Summary, simulatedSuffix(s.Proof))
		default:
			why := explainNoDriver(node, l, s.NotReady)
			out.print("waiting for %s: %s: %s; %s", l, why.Reason, why.Message, why.Action)
		}
	})
	stop()
	if also := group.Wait(); also != nil && !errors.Is(also, context.Canceled) && !errors.Is(also, context.DeadlineExceeded) {
		err = errors.Join(err, also)
	}
	return err
}

// explainNoDriver returns why a layer is refused. If layer driver only has no driver, that is the reason of
// the driver's container.
func explainNoDriver(node check.Node, l readiness.Layer, refused *readiness.NotReady) *readiness.NotReady {
	state, err := node.State(nodestate.Driver)
	if refused == nil || l != readiness.Driver || !step.NoDriver(refused.Reason, state) {
		return refused
	}
	reason, message, ok := readiness.DriverProblem(state, err)
	if !ok {
		return refused
	}
	why := readiness.NotReady{Reason: reason}
	why.Message, why.Action = readiness.SplitAction(message)
	why.Action = cmp.Or(why.Action, "see the log of the driver's container")
	return &why
}

func stateText(s nodestate.State) string {
	switch {
	case s.Reason != "" && s.Message != "":
		return ": " + string(s.Reason) + ": " + s.Message
	case s.Reason != "" || s.Message != "":
		return ": " + string(s.Reason) + s.Message
	}
	return ""
}

func simulatedSuffix(p *readiness.Proof) string {
	if p.Driver != nil && p.Driver.Simulated {
		return " (SIMULATED)"
	}
	return ""
}

// lines prints whole lines from several goroutines, and skips a repeated line.
type lines struct {
	mu   sync.Mutex
	w    io.Writer
	last string
}

func (l *lines) print(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if line == l.last {
		return
	}
	l.last = line
	fmt.Fprintln(l.w, "gpu-validator:", line)
}
