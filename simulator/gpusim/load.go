package main

import (
	"strconv"

	"github.com/gpuready/gpuready/simulator/state"
)

func load() command {
	return command{
		name:    "load",
		summary: "make a GPU look busy",
		text: `
NVML then reports a busy GPU: --percent is its utilisation, and --memory-used the memory
in use. Power and temperature lie between their values of an idle GPU and at full load,
in proportion. The clocks are at their maximum. With --period the load falls to half and
rises again, over and over, on each GPU a bit later. Nothing computes, and no process is
listed. Memory in use is missing in libcuda, too: below 300 MiB, a context gets error 2
(CUDA_ERROR_OUT_OF_MEMORY). A flag that is not given keeps its earlier value. Only gpusim
load ends the load.`,
		example: "gpusim load --gpu all --percent 90 --period 2m --memory-used 40960\ngpusim load --gpu 3 --temperature 95 --power 650\ngpusim load --gpu all --percent 0 --memory-used 0",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			c.Lookup("gpu").Usage += ", or all"
			percent := c.Uint32("percent", 0, "utilisation, 0 to 100; 0: idle")
			period := c.Duration("period", 0, "time in which the load falls to half and rises again; 0: the load is constant")
			temperature := c.Uint32("temperature", 0, "°C at full load; 0: 5 below the GPU's slowdown temperature")
			power := c.Uint32("power", 0, "watts at full load; 0: the GPU's power limit")
			memory := c.String("memory-used", "0", "MiB in use, or all that is free; in MIG mode, shared out by the size of the instances")
			return func() error {
				var l state.Load
				given := false
				mib := uint64(state.AllMemory)
				if *memory != "all" {
					var err error
					if mib, err = strconv.ParseUint(*memory, 10, 64); err != nil {
						return usagef("--memory-used %q: want a number of MiB, or all", *memory)
					}
				}
				for _, f := range []struct {
					name string
					take func()
				}{
					{"percent", func() { l.Percent = percent }}, {"period", func() { l.Period = period }},
					{"temperature", func() { l.Temperature = temperature }}, {"power", func() { l.Watts = power }},
					{"memory-used", func() { l.MemoryMiB = &mib }},
				} {
					if c.Changed(f.name) {
						f.take()
						given = true
					}
				}
				if !given {
					return usagef("give --percent, --period, --temperature, --power or --memory-used")
				}
				return c.changeEach(func(s *state.State, gpu int) error { return s.SetLoad(gpu, l) })
			}
		},
	}
}
