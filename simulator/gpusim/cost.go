package main

import (
	"errors"
	"time"

	"github.com/gpuready/gpuready/simulator/state"
)

func cost() command {
	return command{
		name:    "cost",
		summary: "make NVML slow, or fast again",
		text: `
A real NVML opens every GPU in nvmlInit, and asks the kernel module in most calls;
the simulated one answers from memory. From now on nvmlInit takes --init, in a
process that has not initialised NVML, and every other call takes --call, in all
processes. 0 ends it. Calls that take less than 1ms keep a processor busy; longer
ones sleep. CUDA is not slowed down.`,
		example: "gpusim cost --init 200ms --call 10us\ngpusim cost --init 0 --call 0",
		begin: func(c *call) func() error {
			c.rootFlag()
			var p price
			c.DurationVar(&p.init, "init", 0, "duration of nvmlInit")
			c.DurationVar(&p.call, "call", 0, "duration of every other call")
			for _, name := range []string{"init", "call"} {
				c.Lookup(name).DefValue = "0" // no default: what is not given stays as it is
			}
			return func() error { return c.cost(p) }
		},
	}
}

func (c *call) cost(p price) error {
	first, each := c.Changed("init"), c.Changed("call")
	if !first && !each {
		return usagef("give --init or --call")
	}
	if err := p.check("init", "call"); err != nil {
		return err
	}
	f, err := c.driver().Open()
	if err != nil {
		return err
	}
	err = f.Update(func(s *state.State) error {
		now := priceOf(s)
		if first {
			now.init = p.init
		}
		if each {
			now.call = p.call
		}
		now.set(s)
		return nil
	})
	return errors.Join(err, f.Close())
}

// price is the simulated duration of NVML's calls.
type price struct{ init, call time.Duration }

func priceOf(s *state.State) price {
	return price{time.Duration(s.InitCostNs), time.Duration(s.CallCostNs)}
}

func (p price) set(s *state.State) {
	s.InitCostNs, s.CallCostNs = uint64(p.init), uint64(p.call)
}

// check returns an error that names the flag that is out of range.
func (p price) check(first, each string) error {
	for _, f := range []struct {
		name        string
		value, most time.Duration
	}{{first, p.init, state.MaxInitCost}, {each, p.call, state.MaxCallCost}} {
		if f.value < 0 || f.value > f.most {
			return usagef("--%s: %v is not 0 to %v", f.name, f.value, f.most)
		}
	}
	return nil
}
