package mount

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/inotify"
)

// ErrReplaced means that a folder of the host was replaced while it was mounted here.
var ErrReplaced = errors.New("the folder was replaced on the host, and this container still has the former one")

// The kernel notifies of the renaming of a mounted folder and of the removal of its entries, but
// not of the removal of a folder that is the root of a mount: the mount keeps it. So the mounts are
// compared removedAfter an event in a folder, since the folder itself is removed after its entries.
// What causes no event is noticed within replacedInterval: the removal of an empty folder, and the
// renaming of one above it. An idle Go program is woken thirty times by each tick.
const (
	removedAfter     = time.Second
	replacedInterval = 30 * time.Second
)

// WaitReplaced waits until one of the paths, at which a container has mounted a folder of the host,
// is no such mount any more, or one of a folder that the host has removed or renamed. The error then
// wraps ErrReplaced: only a new container gets the folder that the host has now. Paths at which
// nothing is mounted are left out.
func WaitReplaced(ctx context.Context, paths ...string) error {
	return waitReplaced(ctx, removedAfter, replacedInterval, paths)
}

func waitReplaced(ctx context.Context, delay, interval time.Duration, paths []string) error {
	first := map[string]string{} // the mounted folder, by path
	for _, path := range paths {
		resolved, err := Resolve(path)
		if err != nil {
			continue
		}
		if p, mounted, err := TopAt(resolved); err == nil && mounted {
			first[resolved] = p.Root
		}
	}
	if len(first) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	group, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	group.Go(func() error { return watchFolders(ctx, first, changed) })
	group.Go(func() error { return compareFolders(ctx, first, changed, delay, interval) })
	return group.Wait()
}

// watchFolders reports events in the folders. One that it may not watch causes none.
func watchFolders(ctx context.Context, folders map[string]string, changed chan<- struct{}) error {
	w, err := inotify.New()
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	for path := range folders {
		_ = w.Add(path) // see above
	}
	for {
		select {
		case changed <- struct{}{}: // at the beginning for changes before the watch
		default:
		}
		if _, err := w.Next(ctx); err != nil {
			return err
		}
	}
}

// compareFolders compares the mounted folders with those that were mounted first.
func compareFolders(ctx context.Context, first map[string]string, changed <-chan struct{}, delay, interval time.Duration) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		case <-changed:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(delay):
			}
		}
		for path, root := range first {
			if p, mounted, err := TopAt(path); err == nil && (!mounted || p.Root != root) {
				return fmt.Errorf("%s: %w", path, ErrReplaced)
			}
		}
	}
}
