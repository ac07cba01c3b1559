package main

import (
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

func partition() command {
	return command{
		name:    "mig",
		summary: "partition a GPU, or turn MIG off",
		text: `
A layout is a list of GPU instances, PROFILE[@START][:CI+CI], where START is the
memory slice at which one begins and the CIs are its compute instances in slices,
as 1c+2c; without them it has one that takes it all. The instances are placed as
the driver would; what no GPU of the model could do is refused with the reason.
The GPU's device nodes in nvidia-caps and the capabilities in /proc follow.
Nothing else tells: a real driver raises no event for it, either.`,
		example: `gpusim mig --gpu 0 --layout 1g.10gb,1g.10gb,2g.20gb,3g.40gb
gpusim mig --gpu 0 --layout 3g.40gb@4:1c+2c
gpusim mig --gpu 0 --on     # MIG mode without instances
gpusim mig --gpu all --off`,
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			c.Lookup("gpu").Usage += ", or all that can do MIG"
			layout := c.String("layout", "", "the instances, such as 1g.10gb,2g.20gb")
			on := c.Bool("on", false, "MIG on, without instances")
			off := c.Bool("off", false, "MIG off")
			return func() error { return c.partition(*layout, *on, *off) }
		},
	}
}

func (c *call) partition(layout string, on, off bool) error {
	chosen := 0
	for _, is := range []bool{layout != "", on, off} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return usagef("give one of --layout, --on and --off")
	}
	var instances []profile.Instance
	if layout != "" {
		var err error
		if instances, err = profile.ParseLayout(layout); err != nil {
			return usagef("%w", err)
		}
	}
	return c.driver().Change(func(s *state.State) error {
		gpus, err := c.migGPUs(s)
		if err != nil {
			return err
		}
		for _, i := range gpus {
			if off {
				profile.DisableMIG(&s.Gpu[i])
			} else if err := profile.EnableMIG(&s.Gpu[i], instances); err != nil {
				return fmt.Errorf("GPU %d: %w", i, err)
			}
		}
		return nil
	})
}

// migGPUs returns the indexes of the GPUs that --gpu names.
func (c *call) migGPUs(s *state.State) ([]int, error) {
	if *c.gpu != "all" {
		i, err := c.find(s)
		return []int{i}, err
	}
	var gpus []int
	var names []string
	for i, g := range s.GPUs() {
		names = append(names, state.Text(g.Name[:]))
		if g.MigSupported != 0 {
			gpus = append(gpus, i)
		}
	}
	if gpus == nil {
		return nil, fmt.Errorf("none of %s can do MIG", strings.Join(names, ", "))
	}
	return gpus, nil
}
