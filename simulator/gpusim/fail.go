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
From now on nvmlInit (--init), or each call about events (--events), answers with
an error of NVML: a number (nvmlReturn_t), or one of

  ` + strings.Join(state.ErrorNames(), "\n  ") + `

none ends it. A process that has initialised NVML already goes on, but for events.`,
		example: "gpusim fail --init no-permission\ngpusim fail --init 999 --events unknown\ngpusim fail --init none --events none",
		begin: func(c *call) func() error {
			c.rootFlag()
			first := c.String("init", "", "error of nvmlInit")
			events := c.String("events", "", "error of calls about events")
			return func() error { return c.fail(*first, *events) }
		},
	}
}

func (c *call) fail(first, events string) error {
	if first == "" && events == "" {
		return usagef("give --init or --events")
	}
	initError, err := state.ParseError(first)
	if err != nil {
		return usagef("--init: %w", err)
	}
	eventError, err := state.ParseError(events)
	if err != nil {
		return usagef("--events: %w", err)
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
		return nil
	})
	return errors.Join(err, f.Close())
}
