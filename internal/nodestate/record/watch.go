package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/inotify"
)

// Watch follows files by path; the last part of a path may be a pattern as of
// filepath.Match, which a file of that very name is, too. It calls changed once at once, even if ctx has ended, and then whenever one of the files may have
// changed, until ctx ends; it then returns ctx.Err(). Neither the files nor
// their directories need to exist: the nearest ancestor that does is watched
// until they do. changed is called from this goroutine only, not again
// once it has ended ctx itself, and no change that
// comes after a call of it began goes unreported.
func Watch(ctx context.Context, paths []string, changed func()) error {
	return watchBy(ctx, paths, changed, inotify.New)
}

// WatchWhole is Watch for files that may be written in place, as people do: one
// that is being written has changed when its writer closes it, and not before.
func WatchWhole(ctx context.Context, paths []string, changed func()) error {
	return watchBy(ctx, paths, changed, inotify.Whole)
}

func watchBy(ctx context.Context, paths []string, changed func(), watcher func() (*inotify.Watcher, error)) error {
	notify, err := watcher()
	if err != nil {
		return err
	}
	defer notify.Close()
	for {
		w := &watch{notify: notify, dirs: map[string]bool{}, targets: map[string][]string{}, missing: map[string]bool{}}
		for _, p := range paths {
			if err := w.add(filepath.Clean(p)); err != nil {
				return err
			}
		}
		// What happened before the watch stood is seen by looking now.
		changed()
		if err := w.follow(ctx, changed); err != nil {
			return err
		}
		for dir := range w.dirs {
			notify.Remove(dir)
		}
	}
}

// A watch is one set of directories. It is good until one of them goes away or a
// missing one comes; then it is made anew.
type watch struct {
	notify  *inotify.Watcher
	dirs    map[string]bool
	targets map[string][]string // names or patterns of the files, by directory
	missing map[string]bool     // directories that are not there yet and are the next to come
}

func (w *watch) add(path string) error {
	dir := filepath.Dir(path)
	for {
		at, next := nearest(dir)
		err := w.notify.Add(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			continue // removed since: look again, from further up
		case err != nil:
			return err
		}
		w.dirs[at] = true
		if again, _ := nearest(dir); again != at {
			continue // it came or went between the look and the watch
		}
		if next != "" {
			w.missing[next] = true
		} else {
			w.targets[at] = append(w.targets[at], filepath.Base(path))
		}
		return nil
	}
}

// nearest returns the nearest existing directory at or above dir, and the path
// below it whose coming is awaited; "" if dir itself exists.
func nearest(dir string) (at, next string) {
	for at = dir; ; at, next = filepath.Dir(at), at {
		if info, err := os.Stat(at); err == nil && info.IsDir() {
			return at, next
		}
		if at == filepath.Dir(at) {
			return at, next
		}
	}
}

// follow returns nil when the watches have to be made anew.
func (w *watch) follow(ctx context.Context, changed func()) error {
	for {
		// It looks at ctx first of all, so that a callback that ends ctx is the last one.
		event, err := w.notify.Next(ctx)
		if err != nil {
			return err
		}
		path := filepath.Join(event.Dir, event.Name)
		switch {
		case event.What != inotify.Changed, w.missing[path]:
			return nil
		case w.isTarget(path):
			changed()
		}
	}
}

func (w *watch) isTarget(path string) bool {
	for _, pattern := range w.targets[filepath.Dir(path)] {
		if ok, err := filepath.Match(pattern, filepath.Base(path)); ok && err == nil || pattern == filepath.Base(path) {
			return true
		}
	}
	return false
}
