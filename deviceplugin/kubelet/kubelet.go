// Package kubelet implements the part of a device plugin that talks to the kubelet. Server
// answers the kubelet's calls for one resource, and Run keeps that resource registered. Run
// creates the plugin's own socket beside the kubelet's, registers it with the kubelet, and
// registers again whenever the kubelet is replaced.
//
// Run compares states rather than counting events: whenever anything may have changed, it
// compares the sockets with those at the last registration. It notices a restarted kubelet
// (another socket file), a removed socket of the plugin, and a kubelet that closed its stream
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
	Socket   string // path of the kubelet's socket, as this process sees it
	Endpoint string // name of the plugin's own socket, beside it
	Resource string // "nvidia.com/gpu"
	Log      *slog.Logger
	// Timeout bounds the wait for the first registration; 0 means no limit.
	Timeout time.Duration
	// KubeletSeen reports whether a kubelet has registered another resource. Then Timeout does
	// not apply. nil: there is no other resource.
	KubeletSeen func() bool
	// Ready is closed when there is something to register. Timeout counts from then on.
	Ready <-chan struct{}
	// Idle reports whether the resource has no device any more. Then it is not registered
	// again, and once the last stream has ended, Run returns nil. The caller must call
	// Server.SetDevices when Idle changes. nil: never idle.
	Idle func() bool
	// OnStatus is called with each new Status, from one goroutine.
	OnStatus func(Status)
	// OnAttempt is called after each attempt to register, with its error or nil.
	OnAttempt func(error)
}

// noDevices is Status.Waiting while there is nothing to register: before Config.Ready, or while
// Config.Idle. It is not logged.
const noDevices = "devices to register"

// Errors of Run.
var (
	// ErrDirectory means that the folder of the kubelet's socket was removed or replaced. A
	// container still mounts the old one and must be restarted.
	ErrDirectory = errors.New("the kubelet's plugin folder was replaced")
	// ErrTakenOver means that another plugin replaced this plugin's socket by its own.
	ErrTakenOver = errors.New("another plugin took our socket over")
	// ErrTimeout means that no kubelet accepted a registration within Config.Timeout. Run wraps
	// it in an error that completes the sentence.
	ErrTimeout = errors.New("no kubelet")
)

// Limits for a kubelet that runs, but refuses the registration or closes its connections.
const (
	firstRetry    = 20 * time.Millisecond
	lastRetry     = 10 * time.Second
	streamTimeout = 10 * time.Second // time allowed between Register's reply and the kubelet's ListAndWatch
	hangUpLimit   = time.Second      // time allowed for the kubelet to close its connections
	// connectLimit bounds dialling a socket that nobody accepts on before the state is
	// compared again.
	connectLimit = 2 * time.Second
)

// exhaustedRetry is the delay before another attempt after file descriptors or disk space ran
// out.
const exhaustedRetry = 5 * time.Second

// registrar is the state of a Run.
type registrar struct {
	Config
	server     *Server
	socketPath string // path of the plugin's own socket
	folderID   identity
	ln         *net.UnixListener
	socketID   identity // of the file of ln
	servers    sync.WaitGroup
	serveErr   chan error // capacity 1: error of Server.Serve

	registeredWith identity      // the kubelet's socket at the last attempt to register; zero: none
	streamsBefore  int           // number of streams opened before that attempt
	registeredAt   time.Time     // when that attempt began
	hangUpHandled  bool          // the hang-up after that attempt was handled
	retry          time.Duration // delay before the next attempt
	retryAt        time.Time     // zero: nothing to retry
	status         Status
	hasStatus      bool
	everRegistered bool      // at least once
	firstDeadline  time.Time // for the first registration; zero: none
	lastRefusal    string    // the last error of an attempt that was logged
}

// Run keeps the plugin registered until ctx ends, and then returns nil. ln, if not nil, is the
// plugin's socket as an earlier program handed it over. At the end Run calls keepSocket with the
// open listener, which reports whether the socket stays for the next program. If not, the socket
// is removed. One plugin may have several Runs, each with
// its own resource and endpoint.
func Run(ctx context.Context, cfg Config, server *Server, ln *net.UnixListener, keepSocket func(*net.UnixListener) bool) error {
	r := &registrar{
		Config: cfg, server: server, ln: ln, serveErr: make(chan error, 1), retry: firstRetry,
		socketPath: filepath.Join(filepath.Dir(cfg.Socket), cfg.Endpoint),
	}
	for _, path := range []string{cfg.Socket, r.socketPath} {
		if err := CheckPath(path); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		err := record.Watch(ctx, []string{cfg.Socket, r.socketPath}, func() {
			select {
			case changed <- struct{}{}:
			default: // one is pending
			}
		})
		if ctx.Err() == nil {
			cancel(fmt.Errorf("watch %s: %w", filepath.Dir(cfg.Socket), err))
		}
	})
	err := r.reconcileUntilDone(ctx, changed)
	cancel(nil)
	if r.ln != nil {
		stays := keepSocket(r.ln)
		_ = r.ln.Close()
		if current, identifyErr := identify(r.socketPath); !stays && identifyErr == nil && current.isSameFile(r.socketID) {
			_ = os.Remove(r.socketPath) // ignore the error: a leftover socket is harmless
		}
	}
	r.servers.Wait()
	watching.Wait()
	return err
}

// reconcileUntilDone calls reconcile now, after each change of the sockets or the streams, and
// when a retry is due. It returns nil when ctx ends or the resource is idle and has no stream.
func (r *registrar) reconcileUntilDone(ctx context.Context, changed <-chan struct{}) error {
	timeout := time.NewTimer(time.Hour)
	timeout.Stop()
	defer timeout.Stop()
	ready := r.Ready
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		open, opened, streams := r.server.Streams()
		if r.isIdle() && open == 0 {
			return nil
		}
		var retryExhausted <-chan time.Time
		switch err := r.reconcile(ctx, open, opened, ready == nil); {
		case inotify.Exhausted(err):
			// No event signals when descriptors or space are available again.
			r.setStatus(Status{Waiting: "file descriptors or disk space for sockets in " + filepath.Dir(r.socketPath)})
			retryExhausted = time.After(exhaustedRetry)
		case err != nil:
			return err
		}
		if r.retryAt.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(r.retryAt))
		}
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		case <-changed:
		case <-retryExhausted:
		case <-streams:
		case <-timer.C:
		case <-ready:
			ready = nil
			if r.Timeout > 0 {
				r.firstDeadline = time.Now().Add(r.Timeout)
				timeout.Reset(r.Timeout)
			}
		case <-timeout.C:
			if !r.everRegistered && (r.KubeletSeen == nil || !r.KubeletSeen()) {
				return fmt.Errorf("%w registered us within %v: %s; is the kubelet running, and is its socket where --kubelet-socket says?", ErrTimeout, r.Timeout, r.status.Waiting)
			}
		case err := <-r.serveErr:
			return err
		}
	}
}

// reconcile compares the sockets with their last known state and acts on the differences. open
// and opened are the numbers of streams that Server.Streams returned; ready: Config.Ready is
// closed.
func (r *registrar) reconcile(ctx context.Context, open, opened int, ready bool) error {
	exists, err := r.checkFolder()
	if err != nil || !exists {
		return err
	}
	// Read the kubelet's socket first. A kubelet that starts removes all sockets before it
	// creates its own. So if the plugin's socket exists after that, this kubelet did not remove it.
	kubelet, err := identify(r.Socket)
	if err != nil {
		return err
	}
	if err := r.ensureSocket(); err != nil {
		// The folder may have been removed meanwhile; that error is the better one.
		if _, folderErr := r.checkFolder(); folderErr != nil {
			return folderErr
		}
		return err
	}
	switch {
	case kubelet == identity{}:
		r.registeredWith = identity{}
		r.setStatus(Status{Waiting: "the kubelet's socket " + r.Socket})
		return nil
	case !ready, r.isIdle():
		r.setStatus(Status{Waiting: noDevices})
		return nil
	case kubelet != r.registeredWith:
		r.retry = firstRetry
		return r.renewRegistration(ctx, kubelet)
	}
	return r.checkStream(ctx, kubelet, open, opened)
}

// checkFolder reports whether the kubelet's folder exists, and returns ErrDirectory if
// it was replaced.
func (r *registrar) checkFolder() (bool, error) {
	path := filepath.Dir(r.Socket)
	dir, err := identify(path)
	if err != nil {
		return false, err
	}
	none := identity{}
	switch {
	case r.folderID == none && dir == none:
		r.setStatus(Status{Waiting: "the kubelet's folder " + path})
		return false, nil
	case r.folderID == none:
		r.folderID = dir
	case !r.folderID.isSameFile(dir), isRemoved(path):
		return false, fmt.Errorf("%w: %s; a container that mounts it has to be started again", ErrDirectory, path)
	}
	return true, nil
}

// ensureSocket creates the plugin's own socket, and creates it again if it was removed.
func (r *registrar) ensureSocket() error {
	current, err := identify(r.socketPath)
	if err != nil {
		return err
	}
	none := identity{}
	switch {
	case r.ln != nil && r.socketID == none && current != none:
		r.socketID = current // it was handed over
		r.startServing()
		return nil
	case r.ln != nil && current.isSameFile(r.socketID) && current != none:
		return nil
	case r.ln != nil && current != none:
		return fmt.Errorf("%w: %s; let only one device plugin run on the node", ErrTakenOver, r.socketPath)
	}
	if r.ln != nil {
		r.Log.Info("own socket was removed; made again", "path", r.socketPath)
		_ = r.ln.Close()
		r.registeredWith = identity{} // register again, whichever kubelet it is
	}
	if r.ln, r.socketID, err = listen(r.socketPath); err != nil {
		return err
	}
	r.startServing()
	return nil
}

// startServing serves the kubelet on the plugin's socket in a goroutine.
func (r *registrar) startServing() {
	ln := r.ln
	r.servers.Go(func() {
		if err := r.server.Serve(ln); err != nil {
			select {
			case r.serveErr <- err:
			default:
			}
		}
	})
}

// checkStream registers again, with an increasing delay, if the kubelet of the last attempt
// closed its stream or never called ListAndWatch.
func (r *registrar) checkStream(ctx context.Context, kubelet identity, open, opened int) error {
	now := time.Now()
	switch {
	case open > 0:
		r.retryAt = time.Time{}
		switch {
		case r.status.Waiting == noDevices:
			r.setStatus(Status{Registered: true}) // there are devices again, and the kubelet is still connected
		case r.lastRefusal != "":
			// A kubelet that still has the connection to this plugin's predecessor refuses another one, and lists
			// the devices of this plugin by that connection.
			r.everRegistered, r.lastRefusal = true, ""
			r.Log.Info("the kubelet lists the devices by its earlier connection", "path", r.Socket, "resource", r.Resource)
			r.setStatus(Status{Registered: true})
		}
		return nil
	case opened > r.streamsBefore && !r.hangUpHandled:
		r.hangUpHandled = true
		if now.Sub(r.registeredAt) > lastRetry {
			r.retry = firstRetry
		}
		r.Log.Info("the kubelet hung up", "path", r.Socket, "resource", r.Resource)
		r.setStatus(Status{Waiting: "the kubelet, which hung up"})
		r.scheduleRetry(now, r.retry)
	}
	if r.retryAt.IsZero() || now.Before(r.retryAt) {
		return nil
	}
	return r.renewRegistration(ctx, kubelet)
}

// renewRegistration ends the streams of an earlier registration and registers with the kubelet
// that owns the socket. It records a failure, for a retry, and returns nil.
func (r *registrar) renewRegistration(ctx context.Context, kubelet identity) error {
	if now := time.Now(); now.Before(r.retryAt) && r.registeredWith == kubelet {
		return nil
	}
	if r.registeredWith != kubelet {
		r.setStatus(Status{Waiting: "the kubelet at " + r.Socket + " to accept a registration"})
	}
	hangUp, cancel := context.WithTimeout(ctx, hangUpLimit)
	r.server.HangUp(hangUp)
	cancel()
	start := time.Now()
	_, opened, _ := r.server.Streams()
	err := r.tryRegister(ctx, kubelet)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // Run is ending
	}
	if errors.Is(err, errReplaced) {
		r.retryAt = time.Now().Add(firstRetry) // compare the sockets then, unless an event comes before
		return nil
	}
	r.OnAttempt(err)
	r.registeredWith, r.streamsBefore, r.registeredAt, r.hangUpHandled = kubelet, opened, start, false
	if err != nil {
		if r.lastRefusal != err.Error() {
			r.Log.Warn("registration failed; trying again", "path", r.Socket, "resource", r.Resource, "reason", "RegistrationFailed", "message", err.Error())
			r.lastRefusal = err.Error()
		}
		r.setStatus(Status{Waiting: fmt.Sprintf("the kubelet at %s, which did not register us: %v", r.Socket, err)})
		r.scheduleRetry(time.Now(), r.retry)
		return nil
	}
	r.everRegistered, r.lastRefusal = true, ""
	r.Log.Info("registered with the kubelet", "path", r.Socket, "resource", r.Resource, "duration", time.Since(start).String())
	r.setStatus(Status{Registered: true})
	r.scheduleRetry(time.Now(), max(streamTimeout, r.retry))
	return nil
}

// scheduleRetry schedules the next attempt and doubles the delay of the one after it.
func (r *registrar) scheduleRetry(now time.Time, after time.Duration) {
	r.retryAt = now.Add(after)
	r.retry = min(2*r.retry, lastRetry)
}

// errReplaced means that the kubelet's socket was replaced while this plugin registered.
var errReplaced = errors.New("the kubelet's socket was replaced")

// tryRegister makes one attempt to register with the kubelet that owns the socket.
func (r *registrar) tryRegister(ctx context.Context, kubelet identity) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		conn, err = r.dialKubelet(ctx, kubelet)
	}
	if err != nil {
		return err
	}
	if current, err := identify(r.Socket); err == nil && current != kubelet {
		_ = conn.Close() // a new kubelet, which may have removed this plugin's socket
		return errReplaced
	}
	return callRegister(ctx, conn, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: r.Endpoint, ResourceName: r.Resource, Options: options(),
	})
}

// dialKubelet dials until the kubelet accepts, or returns errReplaced if the socket is replaced
// before.
func (r *registrar) dialKubelet(ctx context.Context, kubelet identity) (net.Conn, error) {
	limit := time.Now().Add(connectLimit)
	if !r.firstDeadline.IsZero() && !r.everRegistered && r.firstDeadline.Before(limit) {
		limit = r.firstDeadline
	}
	ctx, cancel := context.WithDeadlineCause(ctx, limit, errors.New("no process accepts connections on it"))
	defer cancel()
	var wasReplaced atomic.Bool
	var watching sync.WaitGroup
	watching.Go(func() {
		_ = record.Watch(ctx, []string{r.Socket}, func() {
			if current, err := identify(r.Socket); err == nil && current != kubelet {
				wasReplaced.Store(true)
				cancel()
			}
		})
	})
	conn, err := dialUntilAccepted(ctx, r.Socket)
	cancel()
	watching.Wait()
	if err != nil && wasReplaced.Load() {
		return nil, errReplaced
	}
	return conn, err
}

// isIdle reports Config.Idle.
func (r *registrar) isIdle() bool { return r.Idle != nil && r.Idle() }

// setStatus reports and logs a status that differs from the last one.
func (r *registrar) setStatus(s Status) {
	if r.hasStatus && r.status == s {
		return
	}
	r.status, r.hasStatus = s, true
	r.OnStatus(s) // before the log, so that whoever reads the log finds the status changed
	if s.Waiting != "" && s.Waiting != noDevices {
		r.Log.Info("waiting for "+s.Waiting, "path", r.Socket, "resource", r.Resource)
	}
}
