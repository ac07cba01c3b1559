package main

import (
	"errors"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

func computeMode() command {
	return command{
		name:    "mode",
		summary: "limit the processes that may use a GPU",
		text: `
Sets the compute mode, as nvidia-smi -c does.

default            any number of processes
exclusive-process  one process, which may be an MPS server; libcuda gives every other
                   process error 46 (CUDA_ERROR_DEVICE_UNAVAILABLE) for a context
prohibited         none

A process that has a context already keeps it.`,
		example: "gpusim mode --gpu 0 --mode exclusive-process\ngpusim mode --gpu all --mode default",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			c.Lookup("gpu").Usage += ", or all"
			mode := c.String("mode", "", "one of "+strings.Join(state.ComputeModes(), ", "))
			return func() error {
				return c.changeEach(func(s *state.State, gpu int) error { return s.SetComputeMode(gpu, *mode) })
			}
		},
	}
}

func process() command {
	return command{
		name:    "process",
		summary: "list a process on a GPU",
		text: `
NVML then lists the process, with its memory, which is in use. In the compute mode
exclusive-process it has the GPU. It need not exist: nothing is run. --end ends it, all
of them without --pid. Restore and reset leave it.`,
		example: "gpusim process --gpu 0 --pid 4711 --name python3 --memory 40960\ngpusim process --gpu 0 --end",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			pid := c.Uint32("pid", 0, "its process ID")
			name := c.String("name", "/usr/bin/python3", "of its program")
			memory := c.Uint64("memory", 512, "MiB of the GPU's memory that it has")
			graphics := c.Bool("graphics", false, "it draws, and does not compute")
			gi := c.Uint32("gi", state.None, "its GPU instance, in MIG mode (default: the whole GPU)")
			ci := c.Uint32("ci", state.None, "its compute instance, in MIG mode (default: the whole GPU)")
			for _, flag := range []string{"gi", "ci"} {
				c.Lookup(flag).DefValue = "0" // the text says it
			}
			end := c.Bool("end", false, "end it")
			return func() error {
				return c.changeEach(func(s *state.State, gpu int) error {
					if *end {
						return s.EndProcess(gpu, *pid)
					}
					return s.AddProcess(gpu, state.Process{PID: *pid, Name: *name, MemoryMiB: *memory, Graphics: *graphics, GPUInstance: *gi, ComputeInstance: *ci})
				})
			}
		},
	}
}

// changeEach changes the GPU that --gpu names, or each of all, in one step.
func (c *call) changeEach(change func(s *state.State, gpu int) error) error {
	f, err := c.driver().Open()
	if err != nil {
		return err
	}
	err = f.Update(func(s *state.State) error {
		first, end := 0, len(s.GPUs())
		if *c.gpu != "all" {
			var err error
			if first, err = c.find(s); err != nil {
				return err
			}
			end = first + 1
		}
		for i := first; i < end; i++ {
			if err := change(s, i); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, f.Close())
}
