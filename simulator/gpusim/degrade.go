package main

import (
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

func degrade() command {
	return command{
		name:    "degrade",
		summary: "make a GPU slower than it should be, without an error",
		text: `
What is not given stays as it is. A link to the host that has fallen back says so
beside the most that it can do. An NVLink that is down is so at its other end, too.
No clock, link or copy of the simulator becomes slower: it is what NVML tells.`,
		example: "gpusim degrade --gpu 3 --pcie-width 8 --pcie-gen 3\ngpusim degrade --gpu 3 --throttle hw-thermal,hw-slowdown\ngpusim degrade --gpu 3 --links-down 2,5\ngpusim degrade --gpu 3 --pcie-width 0 --pcie-gen 0 --throttle none --links-down none",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			gen := c.Uint32("pcie-gen", 0, "generation that the PCIe link has fallen to; 0: none")
			width := c.Uint32("pcie-width", 0, "lanes that the PCIe link has fallen to; 0: none")
			throttle := c.StringSlice("throttle", nil, "why the clocks are reduced: none, or some of "+strings.Join(state.ThrottleReasons(), ", "))
			links := c.StringSlice("links-down", nil, "NVLinks that are down: none, or their numbers")
			return func() error {
				var d state.Degradation
				given := false
				for _, f := range []struct {
					name string
					take func()
				}{
					{"pcie-gen", func() { d.PCIeGen = gen }}, {"pcie-width", func() { d.PCIeWidth = width }},
					{"throttle", func() { d.Throttle = throttle }}, {"links-down", func() { d.LinksDown = links }},
				} {
					if c.Changed(f.name) {
						f.take()
						given = true
					}
				}
				if !given {
					return usagef("give --pcie-gen, --pcie-width, --throttle or --links-down")
				}
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return nil, s.Degrade(gpu, d)
				})
			}
		},
	}
}

func wrong() command {
	return command{
		name:    "wrong",
		summary: "make a GPU compute wrong results",
		text: `
From now on libcuda inverts one bit in each so many results of floating-point
arithmetic on this GPU: of add, sub, mul, fma and mad in single and double
precision, and of mma. Integers, and so addresses, stay right, and no error is
reported. Which results it hits differs from run to run, where blocks run side by
side; how many does not. 0 ends it.`,
		example: "gpusim wrong --gpu 2 --every 1000\ngpusim wrong --gpu 2 --every 1 --bit 31\ngpusim wrong --gpu 2 --every 0",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			every := c.Uint64("every", 1000, "one in this many results is wrong; 0: none")
			bit := c.Uint32("bit", 22, "bit of the upper 32 of the result, 0 to 31: 31 is the sign, 22 the highest of a single's fraction")
			return func() error {
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return nil, s.Miscompute(gpu, *every, *bit)
				})
			}
		},
	}
}
