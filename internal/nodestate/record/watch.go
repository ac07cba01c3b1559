package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Watch follows files by path; the last part of a path may be a pattern as of
// filepath.Match. It calls changed once at once, even if ctx has ended, and then whenever one of the files may have
// changed, until ctx ends; it then returns ctx.Err(). Neither the files nor
// their directories need to exist: the nearest ancestor that does is watched
// until they do. changed is called from this goroutine only, not again
// once it has ended ctx itself, and no change that
// comes after a call of it began goes unreported.
func Watch(ctx context.Context, paths []string, changed func()) error {
	for {
		w, err := arm(paths)
		if err != nil {
			return err
		}
		// What happened before the watch stood is seen by looking now.
		changed()
		err = w.follow(ctx, changed)
		if closed := w.inotify.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
}

// A watch is one set of inotify watches. It is good until a watched directory
// goes away or a missing one comes; then it is made anew.
type watch struct {
	inotify *fsnotify.Watcher
	targets map[string][]string    // names or patterns of the files, by directory
	missing map[string]bool        // directories that are not there yet and are the next to come
	known   map[string]fs.FileInfo // what is watched, the files' directories or ancestors of them, by the name in events
}

func arm(paths []string) (*watch, error) {
	inotify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, inotifyError(err)
	}
	w := &watch{inotify: inotify, targets: map[string][]string{}, missing: map[string]bool{}, known: map[string]fs.FileInfo{}}
	for _, p := range paths {
		if err := w.add(filepath.Clean(p)); err != nil {
			return nil, errors.Join(err, inotify.Close())
		}
	}
	return w, nil
}

func (w *watch) add(path string) error {
	dir := filepath.Dir(path)
	for {
		at, next := nearest(dir)
		name, err := w.directory(at)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			continue // removed since: look again, from further up
		case err != nil:
			return fmt.Errorf("watch %s: %w", at, inotifyError(err))
		}
		if again, _ := nearest(dir); again != at {
			continue // it came or went between the look and the watch
		}
		if next != "" {
			w.missing[filepath.Join(name, filepath.Base(next))] = true
		} else {
			w.targets[name] = append(w.targets[name], filepath.Base(path))
		}
		return nil
	}
}

// directory watches one and returns the name that its events will carry: one
// that is reached by two paths (/run and /var/run) is watched once, by the
// first, since inotify tells directories apart and not paths.
func (w *watch) directory(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	for name, known := range w.known {
		if os.SameFile(info, known) {
			return name, nil
		}
	}
	if err := w.inotify.Add(path); err != nil {
		return "", err
	}
	w.known[path] = info
	return path, nil
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
		// First of all, so that a callback that ends ctx is the last one.
		if err := ctx.Err(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, ok := <-w.inotify.Events:
			if !ok {
				return nil
			}
			switch {
			case w.isTarget(event.Name) && event.Op != fsnotify.Chmod:
				changed()
			case w.missing[event.Name]:
				return nil
			case w.known[event.Name] != nil && event.Op&(fsnotify.Remove|fsnotify.Rename) != 0:
				return nil
			}
		case err, ok := <-w.inotify.Errors:
			// EINVAL is fsnotify removing the watch of a directory that was
			// moved and is already gone.
			if !ok || errors.Is(err, fsnotify.ErrEventOverflow) || errors.Is(err, unix.EINVAL) {
				return nil
			}
			return inotifyError(err)
		}
	}
}

func (w *watch) isTarget(path string) bool {
	for _, pattern := range w.targets[filepath.Dir(path)] {
		if ok, err := filepath.Match(pattern, filepath.Base(path)); ok && err == nil {
			return true
		}
	}
	return false
}

func inotifyError(err error) error {
	switch {
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("inotify: %w; raise fs.inotify.max_user_instances", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("inotify: %w; raise fs.inotify.max_user_watches", err)
	}
	return err
}
