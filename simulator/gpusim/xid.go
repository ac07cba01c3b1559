package main

import (
	"github.com/gpuready/gpuready/simulator/state"
)

func xid() command {
	return command{
		name:    "xid",
		summary: "report an XID on a GPU",
		text: `
Raises the event of a critical XID. Where a real driver would ask for a recovery
(79 and 95 need a reset, 94 lets work drain first, ...), NVML says so and its
event is raised, too. --gi and --ci confine the XID to a MIG instance.`,
		example: "gpusim xid --gpu 3 --xid 79\ngpusim xid --gpu 0 --xid 13 --gi 1 --ci 0",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			number := c.Uint64("xid", 0, "the XID")
			gi := c.Uint32("gi", state.None, "ID of the GPU instance")
			ci := c.Uint32("ci", state.None, "ID of the compute instance in it")
			for _, name := range []string{"gi", "ci"} {
				c.Lookup(name).DefValue = "none"
			}
			return func() error {
				if *number == 0 {
					return usagef("--xid is missing")
				}
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return s.ReportXID(gpu, *number, *gi, *ci)
				})
			}
		},
	}
}
