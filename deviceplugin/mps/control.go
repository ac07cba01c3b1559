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

// How long things may take.
const (
	patience   = 5 * time.Second        // an answer of the daemon
	beginning  = 30 * time.Second       // until it answers at all
	between    = 10 * time.Second       // two questions: whether it still serves is told by no event
	ending     = 5 * time.Second        // what its clients are left when it is to end
	firstPause = 200 * time.Millisecond // before it is started again
	lastPause  = 30 * time.Second
	steady     = time.Minute // a daemon that lasted this long is forgiven
)

// Why a resource is not served, or one of its GPUs is not.
const (
	reasonStarting gpu.Reason = "MPSStarting"
	reasonMode     gpu.Reason = "ComputeModeConflict"
	reasonFailed   gpu.Reason = "MPSDaemonFailed"
	reasonSilent   gpu.Reason = "MPSDaemonSilent"
)

// failures are those that are counted: being started and ended is no failure.
var failures = []gpu.Reason{reasonMode, reasonFailed, reasonSilent}

// ReasonEnded is that of a state which somebody has left who ended in good order.
const ReasonEnded gpu.Reason = "MPSDaemonEnded"

// Why a control daemon was ended, besides what becomes of the driver.
var (
	errStopped   = errors.New("gpu-device-plugin mps-daemon was ended")
	errOtherwise = errors.New("the resource is shared in another way now")
)

// trouble is an error with its reason.
type trouble struct {
	reason gpu.Reason
	err    error
}

func (t *trouble) Error() string { return t.err.Error() }
func (t *trouble) Unwrap() error { return t.err }

func troubled(reason gpu.Reason, format string, args ...any) error {
	return &trouble{reason, fmt.Errorf(format, args...)}
}

// control is the daemon of one resource.
type control struct {
	spec   Spec
	site   site
	modes  Modes
	claims *claims
	shm    *shm
	log    *slog.Logger
	report func(nodestate.MPSResource)

	place   *place
	serves  []GPU
	refused map[gpu.UUID]string // why a GPU is not served
	last    nodestate.MPSResource
}

// run keeps the daemon running until ctx ends, and ends it then.
func (c *control) run(ctx context.Context) {
	c.say(reasonStarting, "it is being started")
	pause := firstPause
	for {
		began := time.Now()
		err := c.serve(ctx)
		if ctx.Err() != nil {
			why := context.Cause(ctx)
			if errors.Is(why, context.Canceled) {
				why = errStopped
			}
			c.say(ReasonEnded, why.Error())
			return
		}
		reason := reasonFailed
		if t, is := errors.AsType[*trouble](err); is {
			reason = t.reason
		}
		if time.Since(began) > steady {
			pause = firstPause
		}
		c.say(reason, err.Error())
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// say reports and logs that the resource is not served.
func (c *control) say(reason gpu.Reason, message string) {
	c.tell(nodestate.MPSResource{Name: c.spec.Resource, Reason: reason, Message: message})
}

func (c *control) tell(now nodestate.MPSResource) {
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

// ready reports that the resource is served, and on which GPUs.
func (c *control) ready() {
	now := nodestate.MPSResource{Name: c.spec.Resource, Root: c.site.mpsRoot, Replicas: map[gpu.UUID]int{}, Ready: true}
	for _, g := range c.serves {
		now.GPUs = append(now.GPUs, g.UUID)
		now.Replicas[g.UUID] = g.Replicas
	}
	if why := c.refusals(); why != "" {
		now.Reason, now.Message = reasonMode, why
	}
	c.tell(now)
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
	defer c.restore()
	if c.admit(ctx); len(c.serves) == 0 {
		return troubled(reasonMode, "%s", c.refusals())
	}
	if err := c.folders(); err != nil {
		return err
	}
	var err error
	if c.place, err = enter(c.site); err != nil {
		return err
	}
	defer c.place.leave()

	// The daemon outlives ctx for as long as its clients are left.
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	cmd := c.place.command(life, "-f")
	said := &tail{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := c.place.start(cmd); err != nil {
		return err
	}
	child := &child{pid: cmd.Process.Pid, said: said, exited: make(chan struct{})}
	go func() {
		child.err = cmd.Wait()
		close(child.exited)
	}()
	if err := c.watch(ctx, child); err != nil {
		kill()
		<-child.exited
		// Servers that it left would keep the GPUs from the next.
		_ = syscall.Kill(-child.pid, syscall.SIGKILL)
		return err
	}
	c.quit(kill, child)
	return nil
}

// child is the control daemon as a process.
type child struct {
	pid    int
	said   *tail
	exited chan struct{}
	err    error // once it has
}

// gone says how it ended.
func (c *control) gone(child *child) error {
	why := "without an error"
	if child.err != nil {
		why = child.err.Error()
	}
	if said := child.said.String(); said != "" {
		why += ": " + said
	}
	return troubled(reasonFailed, "%s (process %d) ended, %s; it is started again; see control.log in %s",
		program, child.pid, why, LogDir(c.site.mpsRoot, c.site.resource))
}

// watch returns nil when ctx ends, and else what is wrong with the daemon.
func (c *control) watch(ctx context.Context, child *child) error {
	begun, cancel := context.WithTimeout(ctx, beginning)
	defer cancel()
	answers := make(chan error, 1)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	asking.Go(func() { answers <- c.answers(begun) })
	select {
	case <-child.exited:
		return c.gone(child)
	case err := <-answers:
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
	}
	for _, g := range c.serves {
		if err := c.limit(ctx, g); err != nil {
			return err
		}
	}
	if err := c.threads(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(between)
	defer tick.Stop()
	for {
		c.ready()
		select {
		case <-ctx.Done():
			return nil
		case <-child.exited:
			return c.gone(child)
		case <-tick.C:
		}
		if err := c.check(ctx); err != nil && ctx.Err() == nil {
			select {
			case <-child.exited:
				return c.gone(child)
			default:
				return err
			}
		}
	}
}

// answers waits until the daemon does: it is asked whenever its folder changes.
func (c *control) answers(ctx context.Context) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer done()
	watching.Go(func() {
		_ = record.Watch(ctx, []string{filepath.Join(c.site.seen(PipeDir(c.site.real, c.site.resource)), "*")}, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	tick := time.NewTicker(time.Second) // its socket is there before it answers on it
	defer tick.Stop()
	for {
		_, err := c.percentage(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return troubled(reasonSilent, "%s does not answer %v after it was started: %w", program, beginning, err)
		case <-changed:
		case <-tick.C:
		}
	}
}

// threads sets the limit of threads, and says whether it is in force.
func (c *control) threads(ctx context.Context) error {
	if _, err := c.place.ask(ctx, patience, fmt.Sprintf("set_default_active_thread_percentage %d", c.spec.Percent)); err != nil {
		return err
	}
	return c.check(ctx)
}

// limit sets the limit of memory on one GPU.
func (c *control) limit(ctx context.Context, g GPU) error {
	if g.Limit == "" {
		return nil
	}
	answer, err := c.place.ask(ctx, patience, fmt.Sprintf("set_default_device_pinned_mem_limit %d %s", g.Index, g.Limit))
	if err != nil {
		return err
	}
	if strings.HasPrefix(answer, "Invalid") || strings.HasPrefix(answer, "Unrecognized") {
		return troubled(reasonFailed, "%s takes no limit of memory: %s; install driver 470 or newer", program, answer)
	}
	return nil
}

// check asks the daemon, and sees to the GPUs: one that was reset has lost its
// mode, and one that was refused may be taken now.
func (c *control) check(ctx context.Context) error {
	switch now, err := c.percentage(ctx); {
	case err != nil:
		return troubled(reasonSilent, "%s does not answer: %w; it is started again", program, err)
	case int(now) != c.spec.Percent:
		return troubled(reasonFailed, "%s gives each client %v %% of the threads, not %d: somebody else has set it; it is started again", program, now, c.spec.Percent)
	}
	for _, g := range c.admit(ctx) {
		if err := c.limit(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (c *control) percentage(ctx context.Context) (float64, error) {
	const question = "get_default_active_thread_percentage"
	answer, err := c.place.ask(ctx, patience, question)
	if err != nil {
		return 0, err
	}
	percent, err := strconv.ParseFloat(answer, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no percentage", question, answer)
	}
	return percent, nil
}

// folders makes the folders of the daemon, and empties the one of its pipes.
func (c *control) folders() error {
	if err := c.site.find(); err != nil {
		return err
	}
	pipe := PipeDir(c.site.real, c.site.resource)
	if path := pipe + "/control_privileged"; len(path) > maxSocket {
		return fmt.Errorf("%s is longer than the %d bytes that a socket's path may have; choose a shorter flags.mpsRoot", path, maxSocket)
	}
	for _, dir := range []string{pipe, LogDir(c.site.real, c.site.resource), ShmDir(c.site.real)} {
		if err := c.site.make(dir); err != nil {
			return err
		}
	}
	if err := c.shm.mount(c.site); err != nil {
		return err
	}
	if err := c.site.mountLogs(); err != nil {
		return err
	}
	// What a daemon before left there would be of use to nobody: its sockets are dead, and
	// a client that holds its lock would keep the next one from starting.
	if err := empty(c.site.seen(pipe)); err != nil {
		return fmt.Errorf("empty the folder of the daemon's pipes: %w", err)
	}
	return relabel(c.site.seen(pipe))
}

// maxSocket is what fits into sockaddr_un.sun_path, and a NUL.
const maxSocket = 107

// quit ends the daemon: its clients are left a while.
func (c *control) quit(kill func(), child *child) {
	ctx, cancel := context.WithTimeout(context.Background(), ending+2*patience)
	defer cancel()
	if _, err := c.place.ask(ctx, ending+patience, fmt.Sprintf("quit -t %d", int(ending.Seconds()))); err != nil {
		c.log.Warn("the MPS control daemon does not end by itself", "resource", c.spec.Resource, "message", err.Error())
		kill()
	}
	select {
	case <-child.exited:
	case <-ctx.Done():
		kill()
		<-child.exited
	}
}
