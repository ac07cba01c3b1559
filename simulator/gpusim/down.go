package main

import (
	"fmt"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/simulator/gpusim/serve"
)

func down() command {
	return command{
		name:    "down",
		summary: "remove a driver root",
		text: `
Removes what gpusim up made in --root, and nothing else: what was there before,
was added or was changed since stays. Processes that have the state open are told
that the driver is no longer loaded. Without a driver root there it does nothing.

What gpusim serve mounted is unmounted. If that still runs, it ends, saying so;
where it is a container of a DaemonSet, it is started again and mounts another.`,
		example: "gpusim down --root /tmp/driver",
		begin: func(c *call) func() error {
			c.rootFlag()
			return c.down
		},
	}
}

func (c *call) down() error {
	dir, err := filepath.Abs(*c.root)
	if err != nil {
		return err
	}
	*c.root = dir
	there := served(dir)
	if there {
		if *c.root, err = mount.Resolve(dir); err == nil {
			err = serve.Unload(c.driver())
		}
	} else {
		there, err = c.driver().Down()
	}
	if err != nil {
		return err
	}
	if !there {
		fmt.Fprintf(c.out, "%s: there is no simulated driver\n", dir)
		return nil
	}
	fmt.Fprintf(c.out, "%s: removed\n", dir)
	return nil
}
