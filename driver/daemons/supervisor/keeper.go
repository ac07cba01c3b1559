package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// keeper keeps one daemon running.
type keeper struct {
	Daemon
	s       *Supervisor
	tail    *tail
	status  Status        // guarded by s.mu
	decided chan struct{} // closed when the daemon is ready, has failed, or waits for another
	ready   chan struct{} // closed when it is ready for the first time
}

func newKeeper(s *Supervisor, d Daemon) *keeper {
	k := &keeper{Daemon: d, s: s, status: Status{Name: d.Name, Required: d.Required}, decided: make(chan struct{}), ready: make(chan struct{})}
	k.tail = &tail{handle: func(line string) { s.Log.Info("output of a driver daemon", "name", d.Name, "line", line) }}
	return k
}

// keepRunning runs the daemon until ctx ends, and returns an error if it does not end then.
func (k *keeper) keepRunning(ctx context.Context, before <-chan struct{}) error {
	defer k.closeDecided()
	if !waitClosed(ctx, before) {
		return nil
	}
	for _, other := range k.s.keepers {
		if !slices.Contains(k.After, other.Name) {
			continue
		}
		if !isClosed(other.ready) {
			k.s.updateStates(func() { k.status.LastExit = "not started, as it needs " + other.Name; k.closeDecided() })
		}
		if !waitClosed(ctx, other.ready) {
			return nil
		}
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		lasted, err, stuck := k.runOnce(ctx)
		if ctx.Err() != nil {
			return stuck
		}
		err = errors.Join(err, stuck)
		if lasted > steady {
			pause = firstPause
		}
		k.s.Log.Warn("driver daemon ended", "name", k.Name, "message", err.Error(), "again", pause)
		k.s.updateStates(func() { k.status.LastExit = err.Error(); k.closeDecided() })
		again, stop := k.s.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-again:
		}
		k.s.updateStates(func() { k.status.Restarts++ })
	}
}

// program returns the path of the daemon's program from this process's root.
func (k *keeper) program() string { return filepath.Join(k.s.Root, k.Path) }

// closeDecided closes decided. Only the goroutine of keepRunning calls it.
func (k *keeper) closeDecided() {
	if !isClosed(k.decided) {
		close(k.decided)
	}
}

func waitClosed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
	case <-c:
	}
	return ctx.Err() == nil
}

// runOnce runs the daemon once. It returns how long the daemon was ready, why it did not start or
// how it ended, and an error if it did not end when it was told to.
func (k *keeper) runOnce(ctx context.Context) (lasted time.Duration, ended, stuck error) {
	if err := k.prepareFiles(); err != nil {
		return 0, err, nil
	}
	out, in, err := newOutput(k.tail)
	if err != nil {
		return 0, err, nil
	}
	defer out.close() // a second time is fine
	logged := sizeOf(k.LogFile)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), k.Path, k.Args...)
	if k.status.Restarts > 0 {
		cmd.Args = append(cmd.Args, k.RestartArgs...)
	}
	cmd.Dir, cmd.Env = "/", append(append([]string{}, k.s.Env...), k.Env...) // not nil, which would be this process's
	cmd.Stdout, cmd.Stderr = in, in
	started, err := startProcess(cmd, k.s.Root)
	_ = in.Close()
	if err != nil {
		return 0, err, nil
	}
	k.s.updateStates(func() { k.status.Running, k.status.PID = true, started.Pid })
	daemon, ended := k.waitReady(ctx, started)
	if ended == nil {
		began := k.s.Clock.Now()
		k.s.Log.Info("driver daemon is ready", "name", k.Name, "pid", daemon.Pid)
		k.s.updateStates(func() { k.status.PID, k.status.Ready = daemon.Pid, true; k.becomeReady() })
		if waitClosed(ctx, daemon.done) {
			// Before the rest of its processes end, which may take time.
			k.s.updateStates(func() { k.status.Ready, k.status.LastExit = false, daemon.how })
		}
		lasted = k.s.Clock.Now().Sub(began)
	}
	stuck = k.endAll(daemon, started)
	if ended == nil && isClosed(daemon.done) {
		ended = errors.New(daemon.how)
	}
	out.close()
	k.s.syslog.waitHandled()
	if k.LogFile != "" {
		k.tail.readAppended(k.LogFile, logged)
	}
	k.s.updateStates(func() { k.status.Running, k.status.Ready, k.status.PID = false, false, 0 })
	return lasted, ended, stuck
}

func (k *keeper) becomeReady() {
	k.closeDecided()
	if !isClosed(k.ready) {
		close(k.ready)
	}
}

// prepareFiles creates the daemon's folders and files, and removes leftovers of an earlier run.
func (k *keeper) prepareFiles() error {
	if err := k.endLeft(); err != nil {
		return err
	}
	for _, path := range []string{k.PIDFile, k.Ready} {
		if path != "" {
			if err := record.Remove(path); err != nil {
				return err
			}
		}
	}
	for _, dir := range k.Dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, f := range k.Files {
		if err := record.Write(f.Path, f.Data); err != nil {
			return err
		}
	}
	return nil
}

// waitReady waits until the daemon is ready, and returns its process. With an error it returns the
// started process, or the daemon's that this one forked.
func (k *keeper) waitReady(ctx context.Context, started *process) (*process, error) {
	late, stop := k.s.Clock.NewTimer(k.StartTimeout)
	defer stop()
	daemon := started
	if k.Forks {
		select {
		case <-started.done:
		case <-late:
			return started, fmt.Errorf("not ready %v after it was started", k.StartTimeout)
		case <-ctx.Done():
			return started, ctx.Err()
		}
		if !started.ok {
			return started, errors.New(started.how)
		}
		err := k.waitUntilCheck(ctx, late, nil, k.PIDFile, func() (err error) {
			daemon, err = findProcess(k.PIDFile, k.program())
			return err
		})
		if err != nil {
			return started, err
		}
	}
	if k.Ready == "" {
		return daemon, nil
	}
	return daemon, k.waitUntilCheck(ctx, late, daemon, k.Ready, func() error {
		_, err := os.Lstat(k.Ready)
		return err
	})
}

// waitUntilCheck calls check whenever a file may have changed, until that returns nil. It
// stops at the deadline late, or when the process, if any, has ended.
func (k *keeper) waitUntilCheck(ctx context.Context, late <-chan time.Time, p *process, file string, check func() error) error {
	var ended <-chan struct{}
	if p != nil {
		ended = p.done
	}
	ctx, cancel := context.WithCancel(ctx)
	changed, failed := make(chan struct{}, 1), make(chan error, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		failed <- record.Watch(ctx, []string{file}, func() {
			select {
			case changed <- struct{}{}:
			default: // a notification is pending already
			}
		})
	})
	last := check()
	for last != nil {
		select {
		case <-changed:
			last = check()
		case <-ended:
			return errors.New(p.how)
		case <-late:
			return fmt.Errorf("not ready %v after it was started: %w", k.StartTimeout, last)
		case err := <-failed:
			return err
		}
	}
	return nil
}

// endAll ends the daemon, and the started program if that is another process. A forking daemon
// may be at any point: the process that it left is its child, or named by its PID file.
func (k *keeper) endAll(daemon, started *process) error {
	var forked []*process
	if k.Forks && !isClosed(started.done) {
		forked = started.listForked(k.program())
	}
	errs := []error{k.endProcess(daemon), k.endProcess(started)}
	for _, p := range forked {
		errs = append(errs, k.endProcess(p))
	}
	return errors.Join(append(errs, k.endLeft())...)
}

// endProcess ends a process and the rest of its group. It returns an error if one of them does not
// end even by SIGKILL.
func (k *keeper) endProcess(p *process) error {
	if !isClosed(p.done) {
		_ = p.Signal(unix.SIGTERM)
		if !k.waitFor(p.done) {
			k.s.Log.Warn("killing the driver daemon, which does not end", "name", k.Name, "pid", p.Pid, "after", k.s.StopTimeout)
			p.killGroup()
			if !k.waitFor(p.done) {
				return fmt.Errorf("%s (process %d) does not end by SIGKILL: it waits in the kernel, see /proc/%d/stack", k.Name, p.Pid, p.Pid)
			}
		}
	}
	if left := p.reapGroup(); left != nil && !k.waitFor(left) {
		return fmt.Errorf("what %s (process %d) left does not end by SIGKILL", k.Name, p.Pid)
	}
	return nil
}

func (k *keeper) waitFor(done <-chan struct{}) bool {
	late, stop := k.s.Clock.NewTimer(k.s.StopTimeout)
	defer stop()
	select {
	case <-done:
		return true
	case <-late:
		return isClosed(done)
	}
}

// endLeft ends the process that the daemon's PID file names: a leftover of an earlier
// supervisor, or of a failed start.
func (k *keeper) endLeft() error {
	if k.PIDFile == "" {
		return nil
	}
	left, err := findProcess(k.PIDFile, k.program())
	if errors.Is(err, errNoProcess) {
		return nil
	}
	if err != nil {
		return err
	}
	k.s.Log.Info("ended the driver daemon of an earlier supervisor", "name", k.Name, "pid", left.Pid)
	return k.endProcess(left)
}
