package main

import (
	"context"
	"path"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// seal makes all mounts below the host's root read-only if the root is mounted read-only.
// The returned function does the same for later mounts, until ctx ends. The mount with the
// driver's device nodes is unchanged, since missing nodes are created there. If sealing
// fails, the toolkit logs a warning and works all the same.
func (c command) seal() (follow func(ctx context.Context) error) {
	dir := filepath.Clean(c.t.Root.Dir())
	none := func(context.Context) error { return nil }
	var devs []string
	for _, root := range []string{setup.ContainerRoot, c.o.config.DriverRoot, c.o.config.DevRoot} {
		if root = path.Clean("/" + root); root != "/" {
			devs = append(devs, filepath.Join(dir, root, "dev"))
		}
	}
	warn := func(err error) {
		c.log.Warn("the host's mounts below its root stay writable for this process", "path", dir, "message", err.Error())
	}
	s, err := mount.NewSeal(dir, devs...)
	if err != nil {
		warn(err)
	}
	if s == nil {
		return none
	}
	mounts, err := host.WatchMounts([]string{dir})
	if err != nil {
		warn(err)
		return none
	}
	again := func() {
		if err := s.Refresh(); err != nil {
			warn(err)
		}
	}
	again() // mounts from before the watch
	return func(ctx context.Context) error {
		if err := mounts.Run(ctx, again); ctx.Err() == nil {
			warn(err)
		}
		return nil
	}
}
