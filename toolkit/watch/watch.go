// Package watch watches the host: directories, including those that do not exist yet, and
// services that listen on a socket.
package watch

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/inotify"
)

// Meaning is the meaning of a change, as bits defined by the watcher's owner.
type Meaning uint

// Target is a directory of the host with a pattern for the names to watch. If it does not
// exist, the watcher waits for its missing parents.
type Target struct {
	Dir     string // on the host
	Pattern string // as in path.Match
	Means   Meaning
}

// Watcher reports changes in its targets.
type Watcher struct {
	root   *host.Root
	notify *inotify.Watcher

	mu      sync.Mutex
	watched map[string][]reason // by the watched directory in this process's file system
}

// reason is a reason to watch a directory: entries whose names match the pattern.
type reason struct {
	pattern string
	means   Meaning
}

// New returns a watcher for the host below root, without targets.
func New(root *host.Root) (*Watcher, error) {
	notify, err := inotify.New()
	if err != nil {
		return nil, err
	}
	return &Watcher{root: root, notify: notify, watched: map[string][]reason{}}, nil
}

// Close closes the watcher.
func (w *Watcher) Close() error { return w.notify.Close() }

// Set replaces the targets. more reports whether something is watched that was not watched before:
// the caller must read it, since its earlier changes were not reported.
func (w *Watcher) Set(targets []Target) (more bool, err error) {
	want := map[string][]reason{}
	for _, t := range targets {
		real, err := w.root.Resolve(t.Dir)
		if inotify.Exhausted(err) {
			return false, err
		}
		if err != nil {
			continue // a loop of links or the like: nothing can appear there
		}
		dir, err := w.root.NearestDir(real)
		if err != nil {
			return false, err
		}
		pattern := t.Pattern
		if dir != real { // the next missing part of the path
			rest := strings.TrimPrefix(strings.TrimPrefix(real, dir), "/")
			pattern, _, _ = strings.Cut(rest, "/")
		}
		here := w.root.Path(dir)
		if r := (reason{pattern, t.Means}); !slices.Contains(want[here], r) {
			want[here] = append(want[here], r)
		}
	}
	// Events are looked up in w.watched: store it before inotify reports the first one.
	w.mu.Lock()
	was := w.watched
	w.watched = want
	w.mu.Unlock()
	for dir := range was {
		if want[dir] == nil {
			w.notify.Remove(dir)
		}
	}
	for dir, reasons := range want {
		for _, r := range reasons {
			more = more || !slices.Contains(was[dir], r)
		}
		if w.notify.Has(dir) {
			continue
		}
		more = true
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) { // removed meanwhile: the next Set retries
			return false, err
		}
	}
	return more, nil
}

// Next waits for a relevant change and returns its meaning.
func (w *Watcher) Next(ctx context.Context) (Meaning, error) {
	for {
		e, err := w.notify.Next(ctx)
		if err != nil {
			return 0, err
		}
		if means := w.meaning(e); means != 0 {
			return means, nil
		}
	}
}

func (w *Watcher) meaning(e inotify.Event) Meaning {
	if e.Kind == inotify.Missed {
		return ^Meaning(0) // anything may have changed
	}
	var means Meaning
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.watched[e.Dir] {
		// With the directory, all that was in it is gone.
		if ok, _ := path.Match(r.pattern, e.Name); ok || e.Kind == inotify.Gone {
			means |= r.means
		}
	}
	return means
}
