package host

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Watch is like record.Watch for files below directories that may be mounted. When a
// mount at, above or below one of roots changes, inotify still watches the old files, so
// Watch starts to watch again. All paths are paths of this process.
func Watch(ctx context.Context, files, roots []string, changed func()) error {
	mounts, err := WatchMounts(roots)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	mounted := make(chan struct{}, 1)
	group.Go(func() error {
		return mounts.Run(ctx, func() {
			select {
			case mounted <- struct{}{}:
			default: // already signaled
			}
		})
	})
	group.Go(func() error {
		for {
			if err := follow(ctx, files, mounted, changed); err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

// follow follows files until ctx ends, or returns nil when something was mounted.
func follow(ctx context.Context, files []string, mounted <-chan struct{}, changed func()) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- record.Watch(inner, files, changed) }()
	select {
	case err := <-ended:
		return err
	case <-mounted:
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return ctx.Err()
	}
}
