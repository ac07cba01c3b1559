package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/simulator/state"
)

func ecc() command {
	return command{
		name:    "ecc",
		summary: "count memory errors on a GPU",
		text: `
Adds to the volatile and the aggregate counters of one location and raises the
events of single and double bit errors. Uncorrected errors in dram also mark rows
for remapping (pages for retirement on older GPUs), pending until gpusim restore,
and make the driver ask to drain and reset the GPU.`,
		example: "gpusim ecc --gpu 2 --uncorrected 1\ngpusim ecc --gpu 2 --corrected 40 --location sram",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			corrected := c.Uint64("corrected", 0, "single bit errors to add")
			uncorrected := c.Uint64("uncorrected", 0, "double bit errors to add")
			location := c.String("location", "dram", "one of "+strings.Join(state.ECCLocationNames(), ", "))
			return func() error {
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return s.CountECCErrors(gpu, *location, *corrected, *uncorrected)
				})
			}
		},
	}
}

func remap() command {
	return command{
		name:    "remap",
		summary: "mark rows of a GPU's memory as remapped, pending or failed",
		text: `
pending  a row is to be remapped at the next reset, on older GPUs a page to be retired; XID 63
failed   a row could not be remapped, which no reset mends; XID 64
none     neither

The driver asks for no recovery, as those before R570 cannot: see gpusim ecc for
one that does.`,
		example: "gpusim remap --gpu 2\ngpusim remap --gpu 2 --kind failed",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			kind := c.String("kind", "pending", "one of "+strings.Join(state.RemapKinds(), ", "))
			return func() error {
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return s.RemapRow(gpu, *kind)
				})
			}
		},
	}
}

func lose() command {
	return command{
		name:    "lose",
		summary: "lose a GPU in one of the ways that NVML reports",
		text: `
calls    it is counted and its handle is given, but calls on it say GPU_IS_LOST
events   as calls, and waiting for events says GPU_IS_LOST while it is registered
handle   it is counted, but asking for its handle says GPU_IS_LOST
gone     it is no longer counted, and the indexes of the GPUs after it move down
unknown  it is counted, but calls on it say ERROR_UNKNOWN

But for unknown, its PCI configuration space reads as all ones. With --xid the
driver also reports XID 79, that it has fallen off the bus.`,
		example: "gpusim lose --gpu 3\ngpusim lose --gpu 3 --how gone --xid=false",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			how := c.String("how", "calls", "one of "+strings.Join(state.LostWays(), ", "))
			report := c.Bool("xid", true, "report XID 79 (default true for calls and events, else false)")
			c.Lookup("xid").DefValue = "false" // the text says it: it depends on --how
			return func() error {
				if !c.Changed("xid") {
					*report = *how == "calls" || *how == "events"
				}
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return s.LoseGPU(gpu, *how, *report)
				})
			}
		},
	}
}

func restore() command {
	return command{
		name:    "restore",
		summary: "repair a GPU, as a reset does",
		text: `
The GPU is there again, its volatile error counters are 0, pending row remappings
are done, memory faults are gone, and the driver asks for no recovery. The
aggregate counters stay, as on a board. The MIG layout stays.`,
		example: "gpusim restore --gpu 3",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			return func() error {
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					s.ResetGPU(gpu)
					return nil, nil
				})
			}
		},
	}
}

func reset() command {
	return command{
		name:    "reset",
		summary: "reset a GPU, unless a process has it open",
		text: `
Mends it as gpusim restore does, but as a real driver only where nobody has the GPU
open: a process has from when it first asks libnvidia-ml for its handle until its
last nvmlShutdown. With --wait it waits for that.`,
		example: "gpusim reset --gpu 3\ngpusim reset --gpu 3 --wait 1m",
		exits:   "0  done\n1  failed; the reason is on standard error\n2  wrong use of the command line\n3  a process has the GPU open",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			patience := c.Duration("wait", 0, "how long to wait for processes that have it open")
			return func() error { return c.reset(*patience) }
		},
	}
}

func (c *call) reset(patience time.Duration) error {
	f, err := c.driver().Open()
	if err != nil {
		return err
	}
	var s state.State
	f.Read(&s)
	index, err := c.find(&s)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	err = f.WithExclusive(ctx, index, func() error {
		var changed state.GPU
		if err := f.Update(func(s *state.State) error {
			s.ResetGPU(index)
			changed = s.Gpu[index]
			return nil
		}); err != nil {
			return err
		}
		return c.driver().ShowOnBus(changed)
	})
	if errors.Is(err, state.ErrHeld) {
		return fmt.Errorf("%w; end the programs that use it, or wait for them with --wait", err) // who waits for the lock still has the file
	}
	return errors.Join(err, f.Close())
}

func memfault() command {
	return command{
		name:    "memfault",
		summary: "make a GPU's memory corrupt data",
		text: `
From now on libcuda corrupts one bit of a 32-bit word.

stuck-at-0  the word at --offset of the GPU's memory, in which the bit stays 0
stuck-at-1  likewise, it stays 1; kernels see both, too
stuck       the word at --offset of each allocation, in which the bit always reads as 1
flip        likewise, the bit is inverted when the host reads it
none        ends it

The device address of a byte of the GPU's memory is 0x400000000000, and 2^40 for
each GPU before it in gpusim status, and its offset. A program's first allocation
begins at offset 0 and those that follow 512 bytes or more behind the one before,
where there is room; a module's variables take room, too.`,
		example: "gpusim memfault --gpu 0 --kind flip --offset 4096 --bit 7\ngpusim memfault --gpu 2 --kind stuck-at-1 --offset 4096 --bit 7  # at 0x420000001000\ngpusim memfault --gpu 0 --kind none",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			kind := c.String("kind", "flip", "one of "+strings.Join(state.MemfaultKinds(), ", "))
			offset := c.Uint64("offset", 0, "bytes into the GPU's memory or each allocation, a multiple of 4")
			bit := c.Uint32("bit", 0, "bit within the word, 0 to 31")
			return func() error {
				return c.change(func(s *state.State, gpu int) ([]state.Event, error) {
					return nil, s.CorruptMemory(gpu, *kind, *offset, *bit)
				})
			}
		},
	}
}
