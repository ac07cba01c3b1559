// Package kubelet is the side of a device plugin that faces the kubelet: Server serves one
// resource, and Run keeps it registered. Run watches the folder of the kubelet's socket, creates the plugin's own socket in it, registers with the kubelet,
// and registers again whenever the kubelet is replaced.
//
// Run compares states rather than counting events: whenever anything may have changed,
// it compares the sockets with those it registered with. It notices a restarted kubelet
// (another socket file), a removed socket of our own, and a kubelet that hung up
// without going away. However many of these happen at once, one registration follows.
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

// Status is the state of the registration.
type Status struct {
	Registered bool
	Waiting    string // what is waited for; "" when registered
}

// Config describes what to register, and where.
type Config struct {
	Socket   string // of the kubelet, as this process sees it
	Endpoint string // name of the plugin's own socket, beside it
	Resource string
	Log      *slog.Logger
	// Timeout bounds the wait for the first registration; 0 means no limit.
	Timeout time.Duration
	// Known reports whether a kubelet was found for another resource, in which case Timeout
	// does not apply. nil: there is no other resource.
	Known func() bool
	// Ready is closed when there is something to register. Timeout counts from then on.
	Ready <-chan struct{}
	// Idle reports whether the resource has no device any more. Then it is not registered
	// again, and once the last stream has ended, Run returns nil. A change of Idle must
	// signal the streams channel of Server. nil: never idle.
	Idle func() bool
	// Report is called at each change of Status, from one goroutine.
	Report func(Status)
	// Registered is called after each attempt at registering.
	Registered func(error)
}

// noDevices is Status.Waiting before Config.Ready. It is not logged.
const noDevices = "devices to register"

// Errors of Run.
var (
	// ErrDirectory means that the folder of the kubelet's socket was removed or replaced. A
	// container still mounts the old one and must be restarted.
	ErrDirectory = errors.New("the kubelet's plugin folder was replaced")
	// ErrTakenOver means that another plugin replaced our socket by its own.
	ErrTakenOver = errors.New("another plugin took our socket over")
	// ErrTimeout means that no kubelet registered us within Config.Timeout.
	ErrTimeout = errors.New("no kubelet")
)

// Limits for a kubelet that runs but refuses, or hangs up.
const (
	firstRetry  = 20 * time.Millisecond
	lastRetry   = 10 * time.Second
	streamDelay = 10 * time.Second // between Register's answer and the kubelet's ListAndWatch
	hangUpLimit = time.Second
	// connectLimit bounds dialling a socket that nobody accepts on before the state is
	// compared again.
	connectLimit = 2 * time.Second
)

// exhaustedRetry is the delay after file descriptors or disk space ran out.
const exhaustedRetry = 5 * time.Second

// registrar is the state of a Run.
type registrar struct {
	Config
	server *Server
	own    string // path of the plugin's socket
	dir    identity
	ln     *net.UnixListener
	ours   identity // of ln's socket
	served sync.WaitGroup
	failed chan error // from Serve

	kubelet     identity  // registered with; zero: not registered
	streams     int       // opened so far when we registered
	since       time.Time // of the registration
	hungUp      bool      // and this was handled
	retry       time.Duration
	retryAt     time.Time // zero: nothing to retry
	status      Status
	reported    bool
	registered  bool      // ever
	deadline    time.Time // of the first registration; zero: none
	lastRefusal string    // the last one logged
}

// Run keeps the plugin registered until ctx ends, and then returns nil. ln, if not nil,
// is the plugin's socket as an earlier program handed it over. At the end Run calls
// keep with the open listener; keep reports whether the socket stays for the next
// program. If not, the socket is removed. One plugin may have several Runs, each with
// its own resource and endpoint.
func Run(ctx context.Context, cfg Config, server *Server, ln *net.UnixListener, keep func(*net.UnixListener) bool) error {
	f := &registrar{
		Config: cfg, server: server, ln: ln, failed: make(chan error, 1), retry: firstRetry,
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
			default: // one is pending
			}
		})
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch %s: %w", filepath.Dir(cfg.Socket), err))
		}
	})
	err := f.loop(ctx, changed)
	cancel(nil)
	if f.ln != nil {
		stays := keep(f.ln)
		_ = f.ln.Close()
		if now, identifyErr := identify(f.own); !stays && identifyErr == nil && now.sameFile(f.ours) {
			_ = os.Remove(f.own) // a dead socket does no harm
		}
	}
	f.served.Wait()
	watching.Wait()
	return err
}

func (f *registrar) loop(ctx context.Context, changed <-chan struct{}) error {
	timeout := time.NewTimer(time.Hour)
	timeout.Stop()
	defer timeout.Stop()
	ready := f.Ready
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		open, ever, streams := f.server.Streams()
		if f.idle() && open == 0 {
			return nil
		}
		var again <-chan time.Time
		switch err := f.reconcile(ctx, open, ever, ready == nil); {
		case inotify.Exhausted(err):
			// No event signals when descriptors or space are available again.
			f.report(Status{Waiting: "file descriptors or disk space for sockets in " + filepath.Dir(f.own)})
			again = time.After(exhaustedRetry)
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
				timeout.Reset(f.Timeout)
			}
		case <-timeout.C:
			if !f.registered && (f.Known == nil || !f.Known()) {
				return fmt.Errorf("%w registered us within %v: %s; is the kubelet running, and is its socket where --kubelet-socket says?", ErrTimeout, f.Timeout, f.status.Waiting)
			}
		case err := <-f.failed:
			return err
		}
	}
}

// reconcile compares the sockets with their last known state and acts on the
// differences.
func (f *registrar) reconcile(ctx context.Context, open, ever int, ready bool) error {
	there, err := f.checkFolder()
	if err != nil || !there {
		return err
	}
	// Read the kubelet's socket first. A kubelet that starts removes all sockets before it
	// creates its own, so if ours exists now, it still exists for that kubelet.
	kubelet, err := identify(f.Socket)
	if err != nil {
		return err
	}
	if err := f.ensureSocket(); err != nil {
		// The folder may have been removed meanwhile; that error is the better one.
		if _, folderErr := f.checkFolder(); folderErr != nil {
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
	return f.checkStream(ctx, kubelet, open, ever)
}

// checkFolder reports whether the kubelet's folder exists, and returns ErrDirectory if
// it was replaced.
func (f *registrar) checkFolder() (bool, error) {
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

// ensureSocket creates the plugin's own socket, and creates it again if it was removed.
func (f *registrar) ensureSocket() error {
	now, err := identify(f.own)
	if err != nil {
		return err
	}
	none := identity{}
	switch {
	case f.ln != nil && f.ours == none && now != none:
		f.ours = now // handed over; serve it from now on
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
		f.kubelet = identity{} // register again, whichever kubelet it is
	}
	if f.ln, f.ours, err = listen(f.own); err != nil {
		return err
	}
	f.serve()
	return nil
}

func (f *registrar) serve() {
	ln := f.ln
	f.served.Go(func() {
		if err := f.server.Serve(ln); err != nil {
			select {
			case f.failed <- err:
			default:
			}
		}
	})
}

// checkStream registers again if the kubelet that we are registered with hung up or
// never called ListAndWatch, with an increasing delay.
func (f *registrar) checkStream(ctx context.Context, kubelet identity, open, ever int) error {
	now := time.Now()
	switch {
	case open > 0:
		f.retryAt = time.Time{}
		if f.status.Waiting == noDevices {
			f.report(Status{Registered: true}) // there are devices again, and the kubelet stayed connected
		}
		return nil
	case ever > f.streams && !f.hungUp:
		f.hungUp = true
		if now.Sub(f.since) > lastRetry {
			f.retry = firstRetry
		}
		f.Log.Info("the kubelet hung up", "path", f.Socket, "resource", f.Resource)
		f.report(Status{Waiting: "the kubelet, which hung up"})
		f.scheduleRetry(now, f.retry)
	}
	if f.retryAt.IsZero() || now.Before(f.retryAt) {
		return nil
	}
	return f.register(ctx, kubelet)
}

// register registers with the kubelet that owns the socket.
func (f *registrar) register(ctx context.Context, kubelet identity) error {
	if now := time.Now(); now.Before(f.retryAt) && f.kubelet == kubelet {
		return nil
	}
	if f.kubelet != kubelet {
		f.report(Status{Waiting: "the kubelet at " + f.Socket + " to accept a registration"})
	}
	hangUp, cancel := context.WithTimeout(ctx, hangUpLimit)
	f.server.HangUp(hangUp)
	cancel()
	start := time.Now()
	_, ever, _ := f.server.Streams()
	err := f.tryRegister(ctx, kubelet)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it is over
	}
	if errors.Is(err, errReplaced) {
		f.retryAt = time.Now().Add(firstRetry) // compare again then, if no event comes before
		return nil
	}
	f.Registered(err)
	f.kubelet, f.streams, f.since, f.hungUp = kubelet, ever, start, false
	if err != nil {
		if f.lastRefusal != err.Error() {
			f.Log.Warn("registration failed; trying again", "path", f.Socket, "resource", f.Resource, "reason", "RegistrationFailed", "message", err.Error())
			f.lastRefusal = err.Error()
		}
		f.report(Status{Waiting: fmt.Sprintf("the kubelet at %s, which did not register us: %v", f.Socket, err)})
		f.scheduleRetry(time.Now(), f.retry)
		return nil
	}
	f.registered, f.lastRefusal = true, ""
	f.Log.Info("registered with the kubelet", "path", f.Socket, "resource", f.Resource, "duration", time.Since(start).String())
	f.report(Status{Registered: true})
	f.scheduleRetry(time.Now(), max(streamDelay, f.retry))
	return nil
}

// scheduleRetry schedules the next attempt.
func (f *registrar) scheduleRetry(now time.Time, after time.Duration) {
	f.retryAt = now.Add(after)
	f.retry = min(2*f.retry, lastRetry)
}

// errReplaced means that the kubelet's socket was replaced meanwhile.
var errReplaced = errors.New("the kubelet's socket was replaced")

func (f *registrar) tryRegister(ctx context.Context, kubelet identity) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", f.Socket)
	if err != nil {
		conn, err = f.connect(ctx, kubelet)
	}
	if err != nil {
		return err
	}
	if now, err := identify(f.Socket); err == nil && now != kubelet {
		_ = conn.Close() // another kubelet may have accepted, after removing our socket
		return errReplaced
	}
	return register(ctx, conn, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: f.Endpoint, ResourceName: f.Resource, Options: options(),
	})
}

// connect dials until the kubelet accepts. If the socket is replaced while nobody
// accepts on it, connect returns errReplaced.
func (f *registrar) connect(ctx context.Context, kubelet identity) (net.Conn, error) {
	limit := time.Now().Add(connectLimit)
	if !f.deadline.IsZero() && !f.registered && f.deadline.Before(limit) {
		limit = f.deadline
	}
	ctx, cancel := context.WithDeadlineCause(ctx, limit, errors.New("no process accepts connections on it"))
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
		return nil, errReplaced
	}
	return conn, err
}

func (f *registrar) idle() bool { return f.Idle != nil && f.Idle() }

func (f *registrar) report(s Status) {
	if f.reported && f.status == s {
		return
	}
	f.status, f.reported = s, true
	f.Report(s) // before the log, so that whoever reads the log finds the status changed
	if s.Waiting != "" && s.Waiting != noDevices {
		f.Log.Info("waiting for "+s.Waiting, "path", f.Socket, "resource", f.Resource)
	}
}
