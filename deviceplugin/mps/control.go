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
	checkInterval  = 10 * time.Second       // between checks: no event signals that it hangs
	drainTimeout   = 5 * time.Second        // for its clients to finish when it is stopped
	firstPause     = 200 * time.Millisecond // first delay before a restart
	lastPause      = 30 * time.Second
	steadyAfter    = time.Minute // a daemon that ran this long resets the delay
)

// Reasons why the control daemon of a resource is not ready, or not for all of its GPUs.
const (
	reasonStarting gpu.Reason = "MPSStarting"
	reasonMode     gpu.Reason = "ComputeModeConflict"
	reasonFailed   gpu.Reason = "MPSDaemonFailed"
	reasonSilent   gpu.Reason = "MPSDaemonSilent"
)

// failureReasons are the reasons that are counted as failures. Starting and ending are not.
var failureReasons = []gpu.Reason{reasonMode, reasonFailed, reasonSilent}

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
	spec         Spec
	site         site
	modes        Modes
	claims       *claims
	shm          *shm
	log          *slog.Logger
	reportStatus func(nodestate.MPSResource)

	sandbox    *sandbox
	claimed    []GPU               // the GPUs of spec whose compute mode is set for the daemon, so that it may use them
	refused    map[gpu.UUID]string // why the daemon may not use a GPU
	lastStatus nodestate.MPSResource
}

// keepRunning starts the daemon, and starts it again when it ends, until ctx ends. It then
// stops the daemon.
func (c *control) keepRunning(ctx context.Context) {
	c.setNotReady(reasonStarting, "it is being started")
	pause := firstPause
	for {
		began := time.Now()
		err := c.runDaemon(ctx)
		if ctx.Err() != nil {
			why := context.Cause(ctx)
			if errors.Is(why, context.Canceled) {
				why = errStopped
			}
			c.setNotReady(ReasonEnded, why.Error())
			return
		}
		reason := reasonFailed
		if withReason, ok := errors.AsType[*reasonError](err); ok {
			reason = withReason.reason
		}
		if time.Since(began) > steadyAfter {
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

// setNotReady reports and logs why the daemon is not ready.
func (c *control) setNotReady(reason gpu.Reason, message string) {
	c.setStatus(nodestate.MPSResource{Name: c.spec.Resource, Reason: reason, Message: message})
}

// setStatus reports and logs a status that differs from the last one.
func (c *control) setStatus(status nodestate.MPSResource) {
	same := c.lastStatus.Ready == status.Ready && c.lastStatus.Reason == status.Reason && c.lastStatus.Message == status.Message && slices.Equal(c.lastStatus.GPUs, status.GPUs)
	if same {
		return
	}
	c.lastStatus = status
	level := slog.LevelInfo
	if status.Reason != "" && status.Reason != reasonStarting && status.Reason != ReasonEnded {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "MPS control daemon", "resource", status.Name, "ready", status.Ready, "gpus", len(status.GPUs), "reason", string(status.Reason), "message", status.Message)
	c.reportStatus(status)
}

// setReady reports that the daemon is ready, and on which GPUs.
func (c *control) setReady() {
	status := nodestate.MPSResource{Name: c.spec.Resource, Root: c.site.mpsRoot, Replicas: map[gpu.UUID]int{}, Ready: true}
	for _, g := range c.claimed {
		status.GPUs = append(status.GPUs, g.UUID)
		status.Replicas[g.UUID] = g.Replicas
	}
	if why := c.joinRefusals(); why != "" {
		status.Reason, status.Message = reasonMode, why
	}
	c.setStatus(status)
}

// joinRefusals returns why GPUs are refused, as one text; "": none is.
func (c *control) joinRefusals() string {
	var all []string
	for _, g := range c.spec.GPUs {
		if why := c.refused[g.UUID]; why != "" {
			all = append(all, why)
		}
	}
	return strings.Join(all, "; ")
}

// runDaemon runs the daemon once. It returns nil if ctx has ended, else why the daemon failed.
func (c *control) runDaemon(ctx context.Context) error {
	c.claimed, c.refused = nil, map[gpu.UUID]string{}
	defer c.restoreModes()
	if c.claimGPUs(ctx); len(c.claimed) == 0 {
		return reasonErrorf(reasonMode, "%s", c.joinRefusals())
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
	daemonCtx, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd := c.sandbox.newCommand(daemonCtx, "-f")
	output := &tail{}
	cmd.Stdout, cmd.Stderr = output, output
	if err := c.sandbox.startCommand(cmd); err != nil {
		return err
	}
	child := &child{pid: cmd.Process.Pid, output: output, exited: make(chan struct{})}
	go func() {
		child.err = cmd.Wait()
		close(child.exited)
	}()
	if err := c.superviseDaemon(ctx, child); err != nil {
		kill()
		<-child.exited
		// Servers left behind would block the GPUs for the next daemon.
		_ = syscall.Kill(-child.pid, syscall.SIGKILL)
		return err
	}
	c.stopDaemon(kill, child)
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

// superviseDaemon waits for the daemon's first reply, sets its limits, and then checks it
// regularly. It returns nil when ctx ends, or else the daemon's failure.
func (c *control) superviseDaemon(ctx context.Context, child *child) error {
	startCtx, cancel := context.WithTimeout(ctx, startTimeout)
	firstReply := make(chan error, 1)
	var waiters sync.WaitGroup
	defer waiters.Wait()
	defer cancel() // runs before Wait
	waiters.Go(func() { firstReply <- c.waitForReply(startCtx) })
	select {
	case <-child.exited:
		return c.exitError(child)
	case err := <-firstReply:
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	for _, g := range c.claimed {
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
		if err := c.checkDaemon(ctx); err != nil && ctx.Err() == nil {
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
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer done() // runs before Wait
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
		_, err := c.readThreadPercentage(ctx)
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
	if _, err := c.sandbox.sendCommand(ctx, commandTimeout, fmt.Sprintf("set_default_active_thread_percentage %d", c.spec.Percent)); err != nil {
		return err
	}
	return c.checkDaemon(ctx)
}

// setMemoryLimit sets the memory limit on one GPU.
func (c *control) setMemoryLimit(ctx context.Context, g GPU) error {
	if g.Limit == "" {
		return nil
	}
	reply, err := c.sandbox.sendCommand(ctx, commandTimeout, fmt.Sprintf("set_default_device_pinned_mem_limit %d %s", g.Index, g.Limit))
	if err != nil {
		return err
	}
	if strings.HasPrefix(reply, "Invalid") || strings.HasPrefix(reply, "Unrecognized") {
		return reasonErrorf(reasonFailed, "%s does not accept a memory limit: %s; install driver 470 or newer", program, reply)
	}
	return nil
}

// checkDaemon queries the daemon and claims the GPUs again: a GPU that was reset has lost its
// compute mode, and one that was refused may be usable now.
func (c *control) checkDaemon(ctx context.Context) error {
	switch percent, err := c.readThreadPercentage(ctx); {
	case err != nil:
		return reasonErrorf(reasonSilent, "%s does not answer: %w; it is started again", program, err)
	case int(percent) != c.spec.Percent:
		return reasonErrorf(reasonFailed, "%s gives each client %v %% of the threads, not %d: another program has set it; it is started again", program, percent, c.spec.Percent)
	}
	for _, g := range c.claimGPUs(ctx) { // those that were not claimed before
		if err := c.setMemoryLimit(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// readThreadPercentage returns the share of a GPU's threads that the daemon allows each client.
func (c *control) readThreadPercentage(ctx context.Context) (float64, error) {
	const command = "get_default_active_thread_percentage"
	reply, err := c.sandbox.sendCommand(ctx, commandTimeout, command)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(reply, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a percentage", command, reply)
	}
	return percent, nil
}

// prepareFolders creates the daemon's folders and empties the one of its pipes.
func (c *control) prepareFolders() error {
	if err := c.site.resolveRoot(); err != nil {
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
	if err := c.shm.mountOnce(c.site); err != nil {
		return err
	}
	if err := c.site.mountLogs(); err != nil {
		return err
	}
	// Files of an earlier daemon are useless: its sockets are dead, and
	// a client that holds its lock would keep the next one from starting.
	if err := removeContents(c.site.local(pipe)); err != nil {
		return fmt.Errorf("empty the folder of the daemon's pipes: %w", err)
	}
	return labelForContainers(c.site.local(pipe)) // for SELinux
}

// maxSocket is the longest path that fits into sockaddr_un.sun_path with a final NUL.
const maxSocket = 107

// stopDaemon stops the daemon, leaving its clients time to finish. If it does not end, kill ends it
// and its servers.
func (c *control) stopDaemon(kill func(), child *child) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout+2*commandTimeout)
	defer cancel()
	if _, err := c.sandbox.sendCommand(ctx, drainTimeout+commandTimeout, fmt.Sprintf("quit -t %d", int(drainTimeout.Seconds()))); err != nil {
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
