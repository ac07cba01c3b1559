// Package kubelet keeps a device plugin registered: it watches the folder of
// the kubelet's socket, makes the plugin's own socket in it, registers when
// there is a kubelet to register with, and again when that is another one.
//
// It looks at states, not at events: each time anything may have changed it
// compares what is there with what it registered with. A kubelet that was
// started anew (another socket file), our own socket that was removed, a kubelet
// that hung up without going away: each is seen, however many happen at once,
// and each ends in one registration.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/inotify"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Plugin is what is kept registered: the service of package server.
type Plugin interface {
	// Serve serves on a listener until that is closed.
	Serve(net.Listener) error
	// Streams returns how many streams the kubelet has open, how many it ever
	// opened, and a channel that is closed when that may have changed.
	Streams() (open, ever int, changed <-chan struct{})
	// HangUp ends all streams and waits until the kubelet has noticed.
	HangUp(context.Context)
}

// Status is how things stand with the kubelet.
type Status struct {
	Registered bool
	Waiting    string // what is waited for; "" when registered
}

// Config says what to register where.
type Config struct {
	Socket   string // of the kubelet, as this process sees it
	Endpoint string // name of the plugin's own socket, beside it
	Resource string
	Options  *v1beta1.DevicePluginOptions
	Log      *slog.Logger
	// Timeout is how long to wait for the first registration; 0: for ever.
	Timeout time.Duration
	// Known says that there was a kubelet for another resource, so that Timeout does
	// not count. nil: there is no other.
	Known func() bool
	// Ready is closed when there is something to register; the wait for the
	// kubelet counts from then on.
	Ready <-chan struct{}
	// Idle says that the resource has no device any more. No kubelet is told of it
	// again then, and when the last one has hung up, Run ends with nil. The streams
	// of Plugin are taken to change with it. nil: never.
	Idle func() bool
	// Report is called at each change of Status, from one goroutine.
	Report func(Status)
	// Registered is called after each attempt at registering.
	Registered func(error)
}

// noDevices is Status.Waiting before Config.Ready. It is no news.
const noDevices = "devices to register"

// Why Run gives up.
var (
	// ErrDirectory means that the folder of the kubelet's socket was removed or
	// replaced. A container has the old one mounted: it must be started anew.
	ErrDirectory = errors.New("the kubelet's plugin folder was replaced")
	// ErrTakenOver means that another plugin made its socket in the place of ours.
	ErrTakenOver = errors.New("another plugin took our socket over")
	// ErrTimeout means that there was no kubelet within Config.Timeout.
	ErrTimeout = errors.New("no kubelet")
)

// How patient to be with a kubelet that is there and refuses, or hangs up.
const (
	firstRetry  = 20 * time.Millisecond
	lastRetry   = 10 * time.Second
	streamDelay = 10 * time.Second // between Register's answer and the kubelet's ListAndWatch
	hangUpLimit = time.Second
	// connectLimit is how long to dial a socket that nobody accepts on before
	// looking at the world again.
	connectLimit = 2 * time.Second
)

// lookAgain is how long to wait where descriptors or room have run out.
const lookAgain = 5 * time.Second

// follower is a Run in progress.
type follower struct {
	Config
	plugin Plugin
	own    string // path of the plugin's socket
	dir    identity
	ln     *net.UnixListener
	ours   identity // of the socket that ln made
	served sync.WaitGroup
	failed chan error // from Serve

	kubelet    identity  // registered with; zero: not registered
	streams    int       // that were ever opened, when we registered
	since      time.Time // of the registration
	hungUp     bool      // and this was noticed
	retry      time.Duration
	retryAt    time.Time // zero: nothing to retry
	status     Status
	reported   bool
	registered bool      // ever
	deadline   time.Time // of the first registration; zero: none
	complained string    // the last refusal that was logged
}

// Run keeps the plugin registered until ctx ends, and returns nil then. ln, when
// not nil, is the plugin's socket as an earlier program handed it over. At the
// end keep is asked, with the listener still open, whether the socket is to stay
// for the next program; if not, it is removed. One plugin may have several Runs,
// each with a resource and an endpoint of its own.
func Run(ctx context.Context, cfg Config, plugin Plugin, ln *net.UnixListener, keep func(*net.UnixListener) bool) error {
	f := &follower{
		Config: cfg, plugin: plugin, ln: ln, failed: make(chan error, 1), retry: firstRetry,
		own: filepath.Join(filepath.Dir(cfg.Socket), cfg.Endpoint),
	}
	for _, path := range []string{cfg.Socket, f.own} {
		if err := CheckPath(path); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		err := record.Watch(ctx, []string{cfg.Socket, f.own}, func() {
			select {
			case changed <- struct{}{}:
			default: // one is waiting to be looked at
			}
		})
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch %s: %w", filepath.Dir(cfg.Socket), err))
		}
	})
	err := f.follow(ctx, changed)
	cancel(nil)
	watching.Wait()
	if f.ln != nil {
		stays := keep(f.ln)
		_ = f.ln.Close()
		if now, identifyErr := identify(f.own); !stays && identifyErr == nil && now.sameFile(f.ours) {
			_ = os.Remove(f.own) // a dead socket harms nobody
		}
	}
	f.served.Wait()
	return err
}

func (f *follower) follow(ctx context.Context, changed <-chan struct{}) error {
	late := time.NewTimer(time.Hour)
	late.Stop()
	defer late.Stop()
	ready := f.Ready
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		open, ever, streams := f.plugin.Streams()
		if f.idle() && open == 0 {
			return nil
		}
		var again <-chan time.Time
		switch err := f.look(ctx, open, ever, ready == nil); {
		case inotify.Exhausted(err):
			// Nothing tells when there are descriptors, or is room, again.
			f.report(Status{Waiting: "file descriptors, or room, to make and look at sockets in " + filepath.Dir(f.own)})
			again = time.After(lookAgain)
		case err != nil:
			return err
		}
		if f.retryAt.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(f.retryAt))
		}
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		case <-changed:
		case <-again:
		case <-streams:
		case <-timer.C:
		case <-ready:
			ready = nil
			if f.Timeout > 0 {
				f.deadline = time.Now().Add(f.Timeout)
				late.Reset(f.Timeout)
			}
		case <-late.C:
			if !f.registered && (f.Known == nil || !f.Known()) {
				return fmt.Errorf("%w registered us within %v: %s; is the kubelet running, and is its socket where --kubelet-socket says?", ErrTimeout, f.Timeout, f.status.Waiting)
			}
		case err := <-f.failed:
			return err
		}
	}
}

// look compares what is there with what was, and does what follows.
func (f *follower) look(ctx context.Context, open, ever int, ready bool) error {
	there, err := f.lookAtFolder()
	if err != nil || !there {
		return err
	}
	// The kubelet first: one that starts removes all sockets and then makes its own,
	// so ours is there for it if it is there now.
	kubelet, err := identify(f.Socket)
	if err != nil {
		return err
	}
	if err := f.lookAtOwn(); err != nil {
		// The folder may have gone under our hands: that is the better reason.
		if _, folderErr := f.lookAtFolder(); folderErr != nil {
			return folderErr
		}
		return err
	}
	switch {
	case kubelet == identity{}:
		f.kubelet = identity{}
		f.report(Status{Waiting: "the kubelet's socket " + f.Socket})
		return nil
	case !ready, f.idle():
		f.report(Status{Waiting: noDevices})
		return nil
	case kubelet != f.kubelet:
		f.retry = firstRetry
		return f.register(ctx, kubelet)
	}
	return f.lookAtStream(ctx, kubelet, open, ever)
}

// lookAtFolder says whether the kubelet's folder is there, and notices when it
// is not the one that it was.
func (f *follower) lookAtFolder() (bool, error) {
	path := filepath.Dir(f.Socket)
	dir, err := identify(path)
	if err != nil {
		return false, err
	}
	none := identity{}
	switch {
	case f.dir == none && dir == none:
		f.report(Status{Waiting: "the kubelet's folder " + path})
		return false, nil
	case f.dir == none:
		f.dir = dir
	case !f.dir.sameFile(dir), removed(path):
		return false, fmt.Errorf("%w: %s; a container that mounts it has to be started again", ErrDirectory, path)
	}
	return true, nil
}

// lookAtOwn makes the plugin's own socket, and again if it was removed.
func (f *follower) lookAtOwn() error {
	now, err := identify(f.own)
	if err != nil {
		return err
	}
	none := identity{}
	switch {
	case f.ln != nil && f.ours == none && now != none:
		f.ours = now // handed over; it is served from now on
		f.serve()
		return nil
	case f.ln != nil && now.sameFile(f.ours) && now != none:
		return nil
	case f.ln != nil && now != none:
		return fmt.Errorf("%w: %s; let only one device plugin run on the node", ErrTakenOver, f.own)
	}
	if f.ln != nil {
		f.Log.Info("own socket was removed; made again", "path", f.own)
		_ = f.ln.Close()
		f.kubelet = identity{} // the kubelet has to be told, whichever it is
	}
	if f.ln, f.ours, err = listen(f.own); err != nil {
		return err
	}
	f.serve()
	return nil
}

func (f *follower) serve() {
	ln := f.ln
	f.served.Go(func() {
		if err := f.plugin.Serve(ln); err != nil {
			select {
			case f.failed <- err:
			default:
			}
		}
	})
}

// lookAtStream sees to it that the kubelet we are registered with listens. One
// that hung up, or never called, is registered with again, ever less often.
func (f *follower) lookAtStream(ctx context.Context, kubelet identity, open, ever int) error {
	now := time.Now()
	switch {
	case open > 0:
		f.retryAt = time.Time{}
		if f.status.Waiting == noDevices {
			f.report(Status{Registered: true}) // there are devices again, and it has not gone away meanwhile
		}
		return nil
	case ever > f.streams && !f.hungUp:
		f.hungUp = true
		if now.Sub(f.since) > lastRetry {
			f.retry = firstRetry
		}
		f.Log.Info("the kubelet hung up", "path", f.Socket, "resource", f.Resource)
		f.report(Status{Waiting: "the kubelet, which hung up"})
		f.again(now, f.retry)
	}
	if f.retryAt.IsZero() || now.Before(f.retryAt) {
		return nil
	}
	return f.register(ctx, kubelet)
}

// register registers with the kubelet whose socket is that one.
func (f *follower) register(ctx context.Context, kubelet identity) error {
	if now := time.Now(); now.Before(f.retryAt) && f.kubelet == kubelet {
		return nil
	}
	if f.kubelet != kubelet {
		f.report(Status{Waiting: "the kubelet at " + f.Socket + " to accept a registration"})
	}
	hangUp, cancel := context.WithTimeout(ctx, hangUpLimit)
	f.plugin.HangUp(hangUp)
	cancel()
	start := time.Now()
	_, ever, _ := f.plugin.Streams()
	err := f.attempt(ctx, kubelet)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it is over
	}
	if errors.Is(err, errOther) {
		f.retryAt = time.Now().Add(firstRetry) // it is looked at then, if nothing tells of it before
		return nil
	}
	f.Registered(err)
	f.kubelet, f.streams, f.since, f.hungUp = kubelet, ever, start, false
	if err != nil {
		if f.complained != err.Error() {
			f.Log.Warn("registration failed; trying again", "path", f.Socket, "resource", f.Resource, "reason", "RegistrationFailed", "message", err.Error())
			f.complained = err.Error()
		}
		f.report(Status{Waiting: fmt.Sprintf("the kubelet at %s, which did not register us: %v", f.Socket, err)})
		f.again(time.Now(), f.retry)
		return nil
	}
	f.registered, f.complained = true, ""
	f.Log.Info("registered with the kubelet", "path", f.Socket, "resource", f.Resource, "duration", time.Since(start).String())
	f.report(Status{Registered: true})
	f.again(time.Now(), max(streamDelay, f.retry))
	return nil
}

// again plans another attempt.
func (f *follower) again(now time.Time, after time.Duration) {
	f.retryAt = now.Add(after)
	f.retry = min(2*f.retry, lastRetry)
}

// errOther means that the kubelet's socket is another one by now.
var errOther = errors.New("the kubelet's socket was replaced")

func (f *follower) attempt(ctx context.Context, kubelet identity) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", f.Socket)
	if err != nil {
		conn, err = f.connect(ctx, kubelet)
	}
	if err != nil {
		return err
	}
	if now, err := identify(f.Socket); err == nil && now != kubelet {
		_ = conn.Close() // who accepted may be another, that has removed our socket
		return errOther
	}
	return register(ctx, conn, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: f.Endpoint, ResourceName: f.Resource, Options: f.Options,
	})
}

// connect dials until the kubelet accepts. A socket that nobody accepts on may
// be replaced while we wait: it gives up on it then, with errOther.
func (f *follower) connect(ctx context.Context, kubelet identity) (net.Conn, error) {
	limit := time.Now().Add(connectLimit)
	if !f.deadline.IsZero() && !f.registered && f.deadline.Before(limit) {
		limit = f.deadline
	}
	ctx, cancel := context.WithDeadlineCause(ctx, limit, errors.New("nobody accepts connections on it"))
	defer cancel()
	var other atomic.Bool
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = record.Watch(ctx, []string{f.Socket}, func() {
			if now, err := identify(f.Socket); err == nil && now != kubelet {
				other.Store(true)
				cancel()
			}
		})
	})
	conn, err := connect(ctx, f.Socket)
	cancel()
	watching.Wait()
	if err != nil && other.Load() {
		return nil, errOther
	}
	return conn, err
}

func (f *follower) idle() bool { return f.Idle != nil && f.Idle() }

func (f *follower) report(s Status) {
	if f.reported && f.status == s {
		return
	}
	f.status, f.reported = s, true
	f.Report(s) // who reads the log finds it so
	if s.Waiting != "" && s.Waiting != noDevices {
		f.Log.Info("waiting for "+s.Waiting, "path", f.Socket, "resource", f.Resource)
	}
}
