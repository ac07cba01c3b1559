package mount

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrReplaced means that a folder of the host was replaced while it was mounted here.
var ErrReplaced = errors.New("the folder was replaced on the host, and this container still has the former one")

// replacedInterval is the interval of checks: the kernel notifies nobody of the removal or the
// renaming of a folder that is the root of a mount.
const replacedInterval = 5 * time.Second

// WaitReplaced waits until one of the paths, at which a container has mounted a folder of the host,
// is no such mount any more, or one of a folder that the host has removed or renamed. The error then
// wraps ErrReplaced: only a new container gets the folder that the host has now. Paths at which
// nothing is mounted are left out.
func WaitReplaced(ctx context.Context, paths ...string) error {
	return waitReplaced(ctx, replacedInterval, paths)
}

func waitReplaced(ctx context.Context, interval time.Duration, paths []string) error {
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
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		for path, root := range first {
			if p, mounted, err := TopAt(path); err == nil && (!mounted || p.Root != root) {
				return fmt.Errorf("%s: %w", path, ErrReplaced)
			}
		}
	}
}
