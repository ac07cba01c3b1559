package main

import (
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

func fabric() command {
	return command{
		name:    "fabric",
		summary: "have a GPU leave its NVLink fabric, or the fabric work less well",
		text: `
What nvmlDeviceGetGpuFabricInfoV then says; what is not given stays as it is. The
fabric manager, or on NVL72 the rack's, has a GPU join: it is not-started, then
in-progress, then completed, with --status an error of NVML (a number, or a name
that gpusim fail --help lists) if that failed. Links stay as they are.`,
		example: "gpusim fabric --gpu 3 --state in-progress\n" +
			"gpusim fabric --gpu 3 --state completed --status unknown\n" +
			"gpusim fabric --gpu 3 --health bandwidth,route-recovery --configuration 5\n" +
			"gpusim fabric --gpu 3 --state completed --status none --health none --configuration 0",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			joined := c.String("state", "", strings.Join(state.FabricStates(), ", "))
			status := c.String("status", "", "error with which joining ended")
			health := c.StringSlice("health", nil, "what is bad: none, or some of "+strings.Join(state.FabricParts(), ", "))
			configuration := c.Uint32("configuration", 0, "what is wrong in its configuration, by nvml.h's number of INCORRECT_CONFIGURATION; 0: nothing")
			return func() error {
				var change state.FabricChange
				if c.Changed("state") {
					change.State = joined
				}
				if c.Changed("status") {
					code, err := state.ParseError(*status)
					if err != nil {
						return usagef("--status: %w", err)
					}
					change.Status = &code
				}
				if c.Changed("health") {
					change.Bad = health
				}
				if c.Changed("configuration") {
					change.Configuration = configuration
				}
				if change == (state.FabricChange{}) {
					return usagef("give --state, --status, --health or --configuration")
				}
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) { return nil, s.SetFabric(gpu, change) })
			}
		},
	}
}
