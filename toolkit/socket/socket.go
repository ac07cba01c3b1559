// Package socket keeps in touch with a service of the host that listens on a unix
// socket and may be started again at any time: its socket is found below the
// host's root, and looked for again when it comes, goes, or is made anew.
package socket

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
	"github.com/gpuready/gpuready/toolkit/watch"
)

// maxPath is what fits into sun_path of sockaddr_un with the final NUL (unix(7)).
const maxPath = 107

// How patient to be with a service whose socket is there and that refuses: inotify
// tells when a socket is made, not when somebody listens on it, which is a moment
// later, or never where a service was killed and left it.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Attend finds the first of the paths at which there is a socket and calls attend
// with it, again whenever it is another socket, also one made anew at the same path;
// with "" where there is none. ctx of a call ends when it no longer holds. One that
// returns an error is made again, soon if it went well for long, else after a
// pause that grows up to ten seconds; one that returns nil is not. Calls follow each
// other. Attend ends with ctx and returns
// its error, or one that says why nothing can be watched.
func Attend(ctx context.Context, root *host.Root, paths []string, attend func(ctx context.Context, path string) error) error {
	watcher, err := watch.New(root)
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
			default: // one is waiting to be looked at
			}
		}
	})
	a := &attendance{root: root, paths: paths, watcher: watcher, attend: attend}
	for {
		if err := a.one(ctx, changed); err != nil {
			return err
		}
	}
}

type attendance struct {
	root    *host.Root
	paths   []string
	watcher *watch.Watcher
	attend  func(context.Context, string) error
}

// file tells one socket from another that was made later at the same path: inode
// numbers are used again, so the time of the inode's change is in it.
type file struct {
	path     string
	dev, ino uint64
	changed  syscall.Timespec
}

// look returns the socket that is there now; changes from now on are told.
func (a *attendance) look() (file, error) {
	var targets []watch.Target
	for _, p := range a.paths {
		targets = append(targets, watch.Target{Dir: path.Dir(p), Pattern: path.Base(p), Means: 1})
	}
	for more := true; more; {
		var err error
		if more, err = a.watcher.Set(targets); err != nil {
			return file{}, err
		}
	}
	for _, p := range a.paths {
		info, err := a.root.Stat(p)
		if err != nil || info.Mode()&fs.ModeSocket == 0 {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return file{p, st.Dev, st.Ino, st.Ctim}, nil
		}
	}
	return file{}, nil
}

// one attends to what is there now until something else is; that is no error.
func (a *attendance) one(ctx context.Context, changed chan struct{}) error {
	here, err := a.look()
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
		calls.Go(func() { ended <- a.attend(call, here.path) })
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
			default: // it is about to be looked at
			}
		case <-changed:
			now, err := a.look()
			if inotify.Exhausted(err) { // what is there goes on; it is looked at again
				again = time.After(lastRetry)
				continue
			}
			if err != nil || now != here {
				return err
			}
		case err := <-ended:
			if err != nil {
				pause = next(pause, time.Since(began))
				timer.Reset(pause)
			}
		case <-timer.C:
			start()
		}
	}
}

// next is the pause after a call that took some time, where last was the one before
// it. A service that lets us in and puts us out again, each time, is not one with
// which it went well: who reads our state would hear of it fifty times in a second.
func next(last, took time.Duration) time.Duration {
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
