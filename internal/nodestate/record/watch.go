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

// Watch watches files by path. The last part of a path may be a pattern for
// filepath.Match; a file of that literal name matches too. Watch calls changed at
// once, even if ctx has ended, and then whenever one of the files may have changed.
// When ctx ends it returns ctx.Err().
//
// Neither the files nor their directories need to exist: Watch watches the nearest
// existing ancestor until they do. It calls changed from this goroutine only, and not
// again once changed itself has ended ctx. Every change after the start of a call of
// changed leads to another call.
func Watch(ctx context.Context, paths []string, changed func()) error {
	return watchBy(ctx, paths, changed, inotify.New)
}

// WatchWhole is like Watch for files that may be written in place, as people do: it
// reports a file that is being written only when its writer closes it.
func WatchWhole(ctx context.Context, paths []string, changed func()) error {
	return watchBy(ctx, paths, changed, inotify.NewWhole)
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
		// changed reads the files, so it catches changes from before the watch began.
		changed()
		if err := w.follow(ctx, changed); err != nil {
			return err
		}
		for dir := range w.dirs {
			notify.Remove(dir)
		}
	}
}

// A watch is one set of directories. It is valid until one of them goes away or a
// missing one appears; then watchBy makes a new one.
type watch struct {
	notify  *inotify.Watcher
	dirs    map[string]bool
	targets map[string][]string // names or patterns of the files, by directory
	missing map[string]bool     // directories that do not exist yet but whose parents do
}

func (w *watch) add(path string) error {
	dir := filepath.Dir(path)
	for {
		at, next := nearest(dir)
		err := w.notify.Add(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			continue // removed since: try again, from further up
		case err != nil:
			return err
		}
		w.dirs[at] = true
		if again, _ := nearest(dir); again != at {
			continue // it came or went before the watch began
		}
		if next != "" {
			w.missing[next] = true
		} else {
			w.targets[at] = append(w.targets[at], filepath.Base(path))
		}
		return nil
	}
}

// nearest returns the nearest existing directory at or above dir, and the missing
// path directly below it; "" if dir itself exists.
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

// follow reports changes until a new watch is needed; it then returns nil.
func (w *watch) follow(ctx context.Context, changed func()) error {
	for {
		// Next checks ctx first, so a callback that ends ctx is the last one.
		event, err := w.notify.Next(ctx)
		if err != nil {
			return err
		}
		path := filepath.Join(event.Dir, event.Name)
		switch {
		case event.Kind != inotify.Changed, w.missing[path]:
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
