// Package watch tells when something happens in directories of the host, also
// in those that do not exist yet.
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

// Meaning is what a change stands for: bits of the watcher's owner.
type Meaning uint

// Everything means that changes were missed.
const Everything = ^Meaning(0)

// Target is a directory of the host in which entries of some names matter. It
// need not exist: then what is missing on the way to it is waited for.
type Target struct {
	Dir     string // on the host
	Pattern string // as path.Match
	Means   Meaning
}

// Watcher tells when something happens in its targets.
type Watcher struct {
	root   *host.Root
	notify *inotify.Watcher

	mu      sync.Mutex
	watched map[string][]watch // by the directory watched, as this process sees it
}

// watch is one reason for which a directory is watched: entries that match the
// pattern matter.
type watch struct {
	pattern string
	means   Meaning
}

// New makes a watcher of the host below root, which watches nothing yet.
func New(root *host.Root) (*Watcher, error) {
	notify, err := inotify.New()
	if err != nil {
		return nil, err
	}
	return &Watcher{root: root, notify: notify, watched: map[string][]watch{}}, nil
}

// Close ends the watcher.
func (w *Watcher) Close() error { return w.notify.Close() }

// Set watches what the targets need, and nothing else. It tells whether
// something is watched that was not before: what happened there until now was
// not seen.
func (w *Watcher) Set(targets []Target) (more bool, err error) {
	want := map[string][]watch{}
	for _, t := range targets {
		real, err := w.root.Resolve(t.Dir)
		if inotify.Exhausted(err) {
			return false, err
		}
		if err != nil {
			continue // a loop of links, or the like: nothing can come there
		}
		dir, err := w.root.NearestDir(real)
		if err != nil {
			return false, err
		}
		pattern := t.Pattern
		if dir != real { // the next part of the way
			rest := strings.TrimPrefix(strings.TrimPrefix(real, dir), "/")
			pattern, _, _ = strings.Cut(rest, "/")
		}
		here := w.root.Path(dir)
		if reason := (watch{pattern, t.Means}); !slices.Contains(want[here], reason) {
			want[here] = append(want[here], reason)
		}
	}
	// First what events mean, then the watches that bring them.
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
		if err := w.notify.Add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) { // gone meanwhile: look again
			return false, err
		}
	}
	return more, nil
}

// Next waits for something that matters and returns what it means.
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
	if e.What == inotify.Missed {
		return Everything
	}
	var means Meaning
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.watched[e.Dir] {
		if ok, _ := path.Match(r.pattern, e.Name); ok || e.What == inotify.Gone {
			means |= r.means
		}
	}
	return means
}
