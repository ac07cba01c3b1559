package main

import (
	"context"
	"path"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/toolkit/setup"
)

// seal makes the host's root read-only where it is mounted so, with all that is mounted
// below it now. What it returns does the same for what is mounted later, until ctx ends.
// The mount that has the driver's device nodes stays as it is: missing ones are made there.
// Where that fails the toolkit works all the same, and says so.
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
		c.log.Warn("what the host has mounted below its root stays writable to this process", "path", dir, "message", err.Error())
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
		if err := s.Again(); err != nil {
			warn(err)
		}
	}
	again() // what came before the watch
	return func(ctx context.Context) error {
		if err := mounts.Run(ctx, again); ctx.Err() == nil {
			warn(err)
		}
		return nil
	}
}
