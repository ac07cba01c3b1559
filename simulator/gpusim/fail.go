package main

import (
	"errors"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

func fail() command {
	return command{
		name:    "fail",
		summary: "make the driver as a whole fail, or work again",
		text: `
From now on nvmlInit (--init), each call about events (--events), or the creation
of a compute instance in a MIG partition (--mig), answers with an error of NVML: a
number (nvmlReturn_t), or one of

  ` + strings.Join(state.ErrorNames(), "\n  ") + `

none ends it. A process that has initialised NVML already goes on, but for events.`,
		example: "gpusim fail --init no-permission\ngpusim fail --init 999 --events unknown\ngpusim fail --init none --events none\ngpusim fail --mig unknown",
		begin: func(c *call) func() error {
			c.rootFlag()
			first := c.String("init", "", "error of nvmlInit")
			events := c.String("events", "", "error of calls about events")
			mig := c.String("mig", "", "error of creating a compute instance")
			return func() error { return c.fail(*first, *events, *mig) }
		},
	}
}

func (c *call) fail(first, events, mig string) error {
	if first == "" && events == "" && mig == "" {
		return usagef("give --init, --events or --mig")
	}
	initError, err := state.ParseError(first)
	if err != nil {
		return usagef("--init: %w", err)
	}
	eventError, err := state.ParseError(events)
	if err != nil {
		return usagef("--events: %w", err)
	}
	migError, err := state.ParseError(mig)
	if err != nil {
		return usagef("--mig: %w", err)
	}
	f, err := c.driver().Open()
	if err != nil {
		return err
	}
	err = f.Update(func(s *state.State) error {
		if first != "" {
			s.InitError = initError
		}
		if events != "" {
			s.EventError = eventError
		}
		if mig != "" {
			s.MigError = migError
		}
		return nil
	})
	return errors.Join(err, f.Close())
}
