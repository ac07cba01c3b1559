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
	replacedInterval = 10 * time.Second
)

// Folders are the folders of the host that a container has mounted, by path.
type Folders map[string]string

// RecordFolders returns the folders that are mounted at the paths now. Paths at which nothing is mounted
// are left out.
func RecordFolders(paths ...string) Folders {
	f := Folders{}
	for _, path := range paths {
		resolved, err := Resolve(path)
		if err != nil {
			continue
		}
		if p, mounted, err := TopAt(resolved); err == nil && mounted {
			f[resolved] = p.Root
		}
	}
	return f
}

// Check returns an error that wraps ErrReplaced if one of the paths is no such mount any more, or one of a
// folder that the host has removed or renamed: only a new container gets the folder that the host has now.
func (f Folders) Check() error {
	for path, root := range f {
		if p, mounted, err := TopAt(path); err == nil && (!mounted || p.Root != root) {
			return fmt.Errorf("%s: %w", path, ErrReplaced)
		}
	}
	return nil
}

// Wait waits for an error of Check.
func (f Folders) Wait(ctx context.Context) error { return f.wait(ctx, removedAfter, replacedInterval) }

func (f Folders) wait(ctx context.Context, delay, interval time.Duration) error {
	if len(f) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	group, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	group.Go(func() error { return f.watch(ctx, changed) })
	group.Go(func() error { return f.compare(ctx, changed, delay, interval) })
	return group.Wait()
}

// watch reports events in the folders. One that it may not watch causes none.
func (f Folders) watch(ctx context.Context, changed chan<- struct{}) error {
	w, err := inotify.New()
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	for path := range f {
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

// compare calls Check after each change and interval, until it returns an error.
func (f Folders) compare(ctx context.Context, changed <-chan struct{}, delay, interval time.Duration) error {
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
		if err := f.Check(); err != nil {
			return err
		}
	}
}

// WaitReplaced waits until one of the folders that are mounted at the paths now is replaced, see
// Folders.Check.
func WaitReplaced(ctx context.Context, paths ...string) error {
	return RecordFolders(paths...).Wait(ctx)
}
