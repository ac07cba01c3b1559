package main

import (
	"slices"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

func xid() command {
	return command{
		name:    "xid",
		summary: "report an XID on a GPU",
		text: `
Raises the event of a critical XID. Where a real driver would ask for a recovery
(79 and 95 need a reset, 94 lets work drain first, ...), NVML says so and its
event is raised, too. --recovery says what the driver then asks for instead: the
sub-codes of 144 to 150, which NVML does not tell, differ in that. --gi and --ci
confine the XID to a MIG instance.`,
		example: "gpusim xid --gpu 3 --xid 79\ngpusim xid --gpu 0 --xid 149 --recovery none\ngpusim xid --gpu 0 --xid 13 --gi 1 --ci 0",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			number := c.Uint64("xid", 0, "the XID")
			recovery := c.String("recovery", "", "what the driver then asks for: "+strings.Join(state.RecoveryNames(), ", ")+", or a number; empty: as usual for the XID")
			times := c.Uint("times", 1, "how often: up to 100")
			gi := c.Uint32("gi", state.None, "ID of the GPU instance")
			ci := c.Uint32("ci", state.None, "ID of the compute instance in it")
			for _, name := range []string{"gi", "ci"} {
				c.Lookup(name).DefValue = "none"
			}
			return func() error {
				if *number == 0 {
					return usagef("--xid is missing")
				}
				if *times == 0 || *times > 100 { // the driver keeps 256 events
					return usagef("--times: %d is not 1 to 100", *times)
				}
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					before := s.Gpu[gpu].RecoveryAction
					events, err := s.ReportXID(gpu, *number, *gi, *ci)
					if err == nil && *recovery != "" {
						var asked []state.Event
						s.Gpu[gpu].RecoveryAction = before
						asked, err = s.SetRecovery(gpu, *recovery)
						events = append(events[:1], asked...)
					}
					if err != nil {
						return nil, err
					}
					return append(slices.Repeat(events[:1], int(*times-1)), events...), nil
				})
			}
		},
	}
}
