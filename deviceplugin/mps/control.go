package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Timeouts and intervals.
const (
	commandTimeout = 5 * time.Second        // for one command to the daemon
	startTimeout   = 30 * time.Second       // until its first reply
	checkInterval  = 10 * time.Second       // between checks: no event signals that it stopped serving
	drainTimeout   = 5 * time.Second        // for its clients to finish when it is stopped
	firstPause     = 200 * time.Millisecond // first delay before a restart
	lastPause      = 30 * time.Second
	steady         = time.Minute // a daemon that ran this long resets the delay
)

// Reasons why a resource or one of its GPUs is not served.
const (
	reasonStarting gpu.Reason = "MPSStarting"
	reasonMode     gpu.Reason = "ComputeModeConflict"
	reasonFailed   gpu.Reason = "MPSDaemonFailed"
	reasonSilent   gpu.Reason = "MPSDaemonSilent"
)

// failures are the reasons that are counted as failures. Starting and ending are not.
var failures = []gpu.Reason{reasonMode, reasonFailed, reasonSilent}

// ReasonEnded is the reason in the state of a daemon that ended in good order.
const ReasonEnded gpu.Reason = "MPSDaemonEnded"

// Reasons for stopping a control daemon, besides those of the driver.
var (
	errStopped = errors.New("gpu-device-plugin mps-daemon was ended")
	errChanged = errors.New("the resource is shared in another way now")
)

// reasonError is an error with its reason.
type reasonError struct {
	reason gpu.Reason
	err    error
}

func (t *reasonError) Error() string { return t.err.Error() }
func (t *reasonError) Unwrap() error { return t.err }

func reasonErrorf(reason gpu.Reason, format string, args ...any) error {
	return &reasonError{reason, fmt.Errorf(format, args...)}
}

// control runs the control daemon of one resource.
type control struct {
	spec   Spec
	site   site
	modes  Modes
	claims *claims
	shm    *shm
	log    *slog.Logger
	report func(nodestate.MPSResource)

	sandbox *sandbox
	serves  []GPU
	refused map[gpu.UUID]string // why a GPU is not served
	last    nodestate.MPSResource
}

// run keeps the daemon running until ctx ends, and then stops it.
func (c *control) run(ctx context.Context) {
	c.setNotReady(reasonStarting, "it is being started")
	pause := firstPause
	for {
		began := time.Now()
		err := c.serve(ctx)
		if ctx.Err() != nil {
			why := context.Cause(ctx)
			if errors.Is(why, context.Canceled) {
				why = errStopped
			}
			c.setNotReady(ReasonEnded, why.Error())
			return
		}
		reason := reasonFailed
		if t, is := errors.AsType[*reasonError](err); is {
			reason = t.reason
		}
		if time.Since(began) > steady {
			pause = firstPause
		}
		c.setNotReady(reason, err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// setNotReady reports and logs that the resource is not served.
func (c *control) setNotReady(reason gpu.Reason, message string) {
	c.setStatus(nodestate.MPSResource{Name: c.spec.Resource, Reason: reason, Message: message})
}

func (c *control) setStatus(now nodestate.MPSResource) {
	same := c.last.Ready == now.Ready && c.last.Reason == now.Reason && c.last.Message == now.Message && slices.Equal(c.last.GPUs, now.GPUs)
	if same {
		return
	}
	c.last = now
	level := slog.LevelInfo
	if now.Reason != "" && now.Reason != reasonStarting && now.Reason != ReasonEnded {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "MPS control daemon", "resource", now.Name, "ready", now.Ready, "gpus", len(now.GPUs), "reason", string(now.Reason), "message", now.Message)
	c.report(now)
}

// setReady reports that the resource is served, and on which GPUs.
func (c *control) setReady() {
	now := nodestate.MPSResource{Name: c.spec.Resource, Root: c.site.mpsRoot, Replicas: map[gpu.UUID]int{}, Ready: true}
	for _, g := range c.serves {
		now.GPUs = append(now.GPUs, g.UUID)
		now.Replicas[g.UUID] = g.Replicas
	}
	if why := c.refusals(); why != "" {
		now.Reason, now.Message = reasonMode, why
	}
	c.setStatus(now)
}

func (c *control) refusals() string {
	var all []string
	for _, g := range c.spec.GPUs {
		if why := c.refused[g.UUID]; why != "" {
			all = append(all, why)
		}
	}
	return strings.Join(all, "; ")
}

// serve runs the daemon once.
func (c *control) serve(ctx context.Context) error {
	c.serves, c.refused = nil, map[gpu.UUID]string{}
	defer c.restoreModes()
	if c.claimGPUs(ctx); len(c.serves) == 0 {
		return reasonErrorf(reasonMode, "%s", c.refusals())
	}
	if err := c.prepareFolders(); err != nil {
		return err
	}
	var err error
	if c.sandbox, err = newSandbox(c.site); err != nil {
		return err
	}
	defer c.sandbox.close()

	// The daemon outlives ctx until its clients are done.
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd := c.sandbox.command(life, "-f")
	output := &tail{}
	cmd.Stdout, cmd.Stderr = output, output
	if err := c.sandbox.start(cmd); err != nil {
		return err
	}
	child := &child{pid: cmd.Process.Pid, output: output, exited: make(chan struct{})}
	go func() {
		child.err = cmd.Wait()
		close(child.exited)
	}()
	if err := c.watch(ctx, child); err != nil {
		kill()
		<-child.exited
		// Servers left behind would block the GPUs for the next daemon.
		_ = syscall.Kill(-child.pid, syscall.SIGKILL)
		return err
	}
	c.quit(kill, child)
	return nil
}

// child is the control daemon as a process.
type child struct {
	pid    int
	output *tail
	exited chan struct{}
	err    error // set once it has exited
}

// exitError returns an error that describes how the daemon ended.
func (c *control) exitError(child *child) error {
	why := "without an error"
	if child.err != nil {
		why = child.err.Error()
	}
	if output := child.output.String(); output != "" {
		why += ": " + output
	}
	return reasonErrorf(reasonFailed, "%s (process %d) ended, %s; it is started again; see control.log in %s",
		program, child.pid, why, LogDir(c.site.mpsRoot, c.site.resource))
}

// watch returns nil when ctx ends, or else the daemon's failure.
func (c *control) watch(ctx context.Context, child *child) error {
	begun, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	answers := make(chan error, 1)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() { answers <- c.waitForReply(begun) })
	select {
	case <-child.exited:
		return c.exitError(child)
	case err := <-answers:
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	for _, g := range c.serves {
		if err := c.setMemoryLimit(ctx, g); err != nil {
			return err
		}
	}
	if err := c.setThreadLimit(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		c.setReady()
		select {
		case <-ctx.Done():
			return nil
		case <-child.exited:
			return c.exitError(child)
		case <-tick.C:
		}
		if err := c.check(ctx); err != nil && ctx.Err() == nil {
			select {
			case <-child.exited:
				return c.exitError(child)
			default:
				return err
			}
		}
	}
}

// waitForReply waits for the daemon's first reply. It queries the daemon whenever its
// folder changes.
func (c *control) waitForReply(ctx context.Context) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer done()
	watching.Go(func() {
		_ = record.Watch(ctx, []string{filepath.Join(c.site.local(PipeDir(c.site.real, c.site.resource)), "*")}, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	tick := time.NewTicker(time.Second) // the socket exists before the daemon replies on it
	defer tick.Stop()
	for {
		_, err := c.percentage(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return reasonErrorf(reasonSilent, "%s does not answer %v after it was started: %w", program, startTimeout, err)
		case <-changed:
		case <-tick.C:
		}
	}
}

// setThreadLimit sets the thread limit and checks that it is in force.
func (c *control) setThreadLimit(ctx context.Context) error {
	if _, err := c.sandbox.send(ctx, commandTimeout, fmt.Sprintf("set_default_active_thread_percentage %d", c.spec.Percent)); err != nil {
		return err
	}
	return c.check(ctx)
}

// setMemoryLimit sets the memory limit on one GPU.
func (c *control) setMemoryLimit(ctx context.Context, g GPU) error {
	if g.Limit == "" {
		return nil
	}
	answer, err := c.sandbox.send(ctx, commandTimeout, fmt.Sprintf("set_default_device_pinned_mem_limit %d %s", g.Index, g.Limit))
	if err != nil {
		return err
	}
	if strings.HasPrefix(answer, "Invalid") || strings.HasPrefix(answer, "Unrecognized") {
		return reasonErrorf(reasonFailed, "%s does not accept a memory limit: %s; install driver 470 or newer", program, answer)
	}
	return nil
}

// check queries the daemon and claims the GPUs again: a GPU that was reset has lost its
// compute mode, and one that was refused may be usable now.
func (c *control) check(ctx context.Context) error {
	switch now, err := c.percentage(ctx); {
	case err != nil:
		return reasonErrorf(reasonSilent, "%s does not answer: %w; it is started again", program, err)
	case int(now) != c.spec.Percent:
		return reasonErrorf(reasonFailed, "%s gives each client %v %% of the threads, not %d: another program has set it; it is started again", program, now, c.spec.Percent)
	}
	for _, g := range c.claimGPUs(ctx) {
		if err := c.setMemoryLimit(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (c *control) percentage(ctx context.Context) (float64, error) {
	const question = "get_default_active_thread_percentage"
	answer, err := c.sandbox.send(ctx, commandTimeout, question)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(answer, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a percentage", question, answer)
	}
	return percent, nil
}

// prepareFolders creates the daemon's folders and empties the one of its pipes.
func (c *control) prepareFolders() error {
	if err := c.site.resolve(); err != nil {
		return err
	}
	pipe := PipeDir(c.site.real, c.site.resource)
	if path := pipe + "/control_privileged"; len(path) > maxSocket {
		return fmt.Errorf("%s is longer than the %d bytes that a socket's path may have; choose a shorter flags.mpsRoot", path, maxSocket)
	}
	for _, dir := range []string{pipe, LogDir(c.site.real, c.site.resource), ShmDir(c.site.real)} {
		if err := c.site.mkdir(dir); err != nil {
			return err
		}
	}
	if err := c.shm.mount(c.site); err != nil {
		return err
	}
	if err := c.site.mountLogs(); err != nil {
		return err
	}
	// Files of an earlier daemon are useless: its sockets are dead, and
	// a client that holds its lock would keep the next one from starting.
	if err := empty(c.site.local(pipe)); err != nil {
		return fmt.Errorf("empty the folder of the daemon's pipes: %w", err)
	}
	return relabel(c.site.local(pipe))
}

// maxSocket is the longest path that fits into sockaddr_un.sun_path with a final NUL.
const maxSocket = 107

// quit stops the daemon, leaving its clients time to finish.
func (c *control) quit(kill func(), child *child) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout+2*commandTimeout)
	defer cancel()
	if _, err := c.sandbox.send(ctx, drainTimeout+commandTimeout, fmt.Sprintf("quit -t %d", int(drainTimeout.Seconds()))); err != nil {
		c.log.Warn("the MPS control daemon does not quit; killing it", "resource", c.spec.Resource, "message", err.Error())
		kill()
	}
	select {
	case <-child.exited:
	case <-ctx.Done():
		kill()
		<-child.exited
	}
}
