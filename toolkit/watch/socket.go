package watch

// This file follows a service of the host that listens on a unix socket and may restart
// at any time. It finds the socket below the host's root, and again when the socket appears,
// vanishes or is replaced.

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
)

// maxPath is the maximum length of sun_path in sockaddr_un without the final NUL (unix(7)).
const maxPath = 107

// The retry intervals for a service that refuses connections to its existing socket. inotify
// reports the creation of a socket, but not when a service listens on it. That is a moment
// later, or never if a killed service left it.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Follow finds the first of the paths at which there is a socket and calls attend with it,
// or with "" if there is none. It calls attend again whenever the socket changes, also if it
// is replaced at the same path, and then ends the context of the previous call.
//
// If attend returns an error, the call is repeated: soon if it ran for long, otherwise after
// a pause that grows up to ten seconds. If it returns nil, it is not repeated. Calls do not
// overlap. Follow ends with ctx and returns its error, or an error of watching the socket.
func Follow(ctx context.Context, root *host.Root, paths []string, attend func(ctx context.Context, path string) error) error {
	watcher, err := New(root)
	if err != nil {
		return err
	}
	defer watcher.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		for {
			if _, err := watcher.Next(ctx); err != nil {
				cancel(err)
				return
			}
			select {
			case changed <- struct{}{}:
			default: // already scheduled
			}
		}
	})
	f := &follower{root: root, paths: paths, watcher: watcher, attend: attend}
	for {
		if err := f.follow(ctx, changed); err != nil {
			return err
		}
	}
}

type follower struct {
	root    *host.Root
	paths   []string
	watcher *Watcher
	attend  func(context.Context, string) error
}

// socketFile identifies a socket, also among later ones at the same path. Inode numbers are reused,
// so it includes the time of the inode's change.
type socketFile struct {
	path     string
	dev, ino uint64
	changed  syscall.Timespec
}

// find returns the current socket, and watches for changes from now on.
func (f *follower) find() (socketFile, error) {
	var targets []Target
	for _, p := range f.paths {
		targets = append(targets, Target{Dir: path.Dir(p), Pattern: path.Base(p), Means: 1})
	}
	for more := true; more; {
		var err error
		if more, err = f.watcher.Set(targets); err != nil {
			return socketFile{}, err
		}
	}
	for _, p := range f.paths {
		info, err := f.root.Stat(p)
		if err != nil || info.Mode()&fs.ModeSocket == 0 {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return socketFile{p, st.Dev, st.Ino, st.Ctim}, nil
		}
	}
	return socketFile{}, nil
}

// follow calls attend for the current socket until that changes, and then returns nil.
func (f *follower) follow(ctx context.Context, changed chan struct{}) error {
	here, err := f.find()
	if inotify.Exhausted(err) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(lastRetry):
			return nil
		}
	}
	if err != nil {
		return err
	}
	call, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	var began time.Time
	start := func() {
		began = time.Now()
		calls.Go(func() { ended <- f.attend(call, here.path) })
	}
	start()
	pause := time.Duration(0)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again:
			again = nil
			select {
			case changed <- struct{}{}:
			default: // already scheduled
			}
		case <-changed:
			now, err := f.find()
			if inotify.Exhausted(err) { // keep the current call and retry
				again = time.After(lastRetry)
				continue
			}
			if err != nil || now != here {
				return err
			}
		case err := <-ended:
			if err != nil {
				pause = nextPause(pause, time.Since(began))
				timer.Reset(pause)
			}
		case <-timer.C:
			start()
		}
	}
}

// nextPause returns the pause after a call of some duration, given the last pause. A service that
// always accepts and then drops the connection does not count as working: otherwise its state
// would change fifty times in a second.
func nextPause(last, took time.Duration) time.Duration {
	if took > lastRetry {
		return firstRetry
	}
	return min(max(2*last, firstRetry), lastRetry)
}

// Dial connects to a socket of the host.
func Dial(ctx context.Context, root *host.Root, path string) (net.Conn, error) {
	real, err := root.Resolve(path)
	if err != nil {
		return nil, err
	}
	here := root.Path(real)
	if len(here) > maxPath {
		return nil, fmt.Errorf("the path %s has %d bytes and a unix socket can have %d; give the host's root by a shorter path", here, len(here), maxPath)
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", here)
}
