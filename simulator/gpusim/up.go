package main

import (
	"fmt"
	"path/filepath"

	"github.com/gpuready/gpuready/internal/host/mount"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/state"
)

func up() command {
	return command{
		name:    "up",
		summary: "make a driver root appear, or change the one that is there",
		text: `Makes the folder --root look like an installed driver: libraries, device nodes,
stand-ins for /proc and /sys, and the state that they share. libnvidia-ml.so.1
appears last, so whoever waits for it finds a whole driver.

On a root that is there already: with another --driver-version it is an upgrade,
as processes on the old library notice; otherwise the GPUs change under the
running processes. All faults and MIG layouts are gone either way. A run that
was killed is repaired.

It never touches a root that holds a real driver, nor a file that it did not make.
The folder / needs --force.`,
		example: `gpusim up --root /tmp/driver --profile h100-sxm
gpusim up --root /tmp/driver --profile a100-80gb --gpus 4
gpusim up --root /tmp/driver --profile h100-sxm --driver-version 590.10   # upgrade
gpusim up --root /tmp/driver --profile ./recorded.yaml
gpusim up --root /tmp/driver --profile h100-sxm --nvml-init-cost 200ms --nvml-call-cost 10us`,
		begin: func(c *call) func() error {
			c.rootFlag()
			m := c.machineFlags()
			var p price
			c.DurationVar(&p.init, "nvml-init-cost", 0, "duration of nvmlInit, as of a real driver: 200ms (gpusim cost changes it later)")
			c.DurationVar(&p.call, "nvml-call-cost", 0, "what every other call of NVML takes: 10us")
			force := c.Bool("force", false, "also where --root is /")
			return func() error { return c.up(m, p, *force) }
		},
	}
}

func (c *call) up(m *machine, p price, force bool) error {
	if err := p.check("nvml-init-cost", "nvml-call-cost"); err != nil {
		return err
	}
	spec, err := m.spec()
	if err != nil {
		return err
	}
	spec.Force = force
	p.set(spec.State)
	dir, err := filepath.Abs(*c.root)
	if err != nil {
		return err
	}
	*c.root = dir
	if served(dir) {
		return fmt.Errorf("%s is what gpusim serve mounted; start that with other flags, or run gpusim down first", dir)
	}
	if err := c.driver().Up(spec); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s: simulated driver %s with %d GPUs (%s)\n", dir, spec.Version, spec.State.Ngpus, state.Text(spec.State.Profile[:]))
	return nil
}

// served reports whether gpusim serve made the mount at dir.
func served(dir string) bool {
	dir, err := mount.Resolve(dir)
	if err != nil {
		return false
	}
	ours, err := root.FileSystem.Is(dir)
	return err == nil && ours
}
