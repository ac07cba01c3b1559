package serve

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// withLock runs f while it holds the node's driver lock. It waits until another driver
// container ends.
func (d *Driver) withLock(ctx context.Context, f func(context.Context) error) error {
	path := filepath.Join(filepath.Dir(d.Root), host.DriverLock)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock, err := d.waitForLock(ctx, path)
	if err != nil {
		return err
	}
	err = f(ctx)
	return errors.Join(err, lock.Release(err == nil))
}

// waitForLock acquires the lock as soon as it is free.
func (d *Driver) waitForLock(ctx context.Context, path string) (*host.Lock, error) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var lock *host.Lock
	var failed error
	logged := ""
	err := record.WatchWhole(waiting, []string{path}, func() {
		if lock != nil || failed != nil {
			return
		}
		l, err := host.TryLock(path)
		switch {
		case errors.Is(err, host.ErrHeld):
			if err.Error() != logged {
				d.Log.Info("waiting for another driver container to end", "lock", err)
				logged = err.Error()
			}
			return
		case err != nil:
			failed = err
		default:
			lock = l
		}
		stop()
	})
	switch {
	case failed != nil:
		return nil, failed
	case lock != nil:
		return lock, nil
	}
	return nil, err
}
