package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/simulator/state"
)

// XIDs, grouped by their effect in docs/reasons.md. It does not list 999.
var (
	harmless = []uint64{13, 31, 43, 45, 68}
	grave    = []uint64{44, 48, 62, 74, 95, 119, 999}
	passing  = []uint64{8, 32, 69}
)

// layouts are the MIG layouts.
var layouts = []string{
	"1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb", "3g.40gb,3g.40gb", "7g.80gb", "1g.10gb,2g.20gb,3g.40gb", "1g.10gb",
}

// fate generates the events of one GPU, one after the other.
type fate struct {
	*soak
	gpu  *gpuState
	rand *rand.Rand
}

// run generates events until ctx ends, and leaves the GPU healthy.
func (f *fate) run(ctx context.Context) error {
	for f.pause(ctx, f.pace) {
		if err := f.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pause waits a random time, and reports whether ctx is still live.
func (f *fate) pause(ctx context.Context, most time.Duration) bool {
	select {
	case <-time.After(time.Duration(f.rand.Int64N(int64(most)))):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (f *fate) next(ctx context.Context) error {
	switch n := f.rand.IntN(100); {
	case n < 25:
		return f.xid(pick(f.rand, harmless), nil)
	case n < 35:
		return f.xid(pick(f.rand, passing), func() { f.gpu.health = unsure })
	case n < 50:
		return f.breakAndReset(ctx, func() error {
			return f.xid(pick(f.rand, grave), func() { f.gpu.health = sick })
		})
	case n < 60:
		return f.breakAndReset(ctx, f.ecc)
	case n < 70:
		return f.breakAndReset(ctx, func() error { return f.lose(pick(f.rand, state.LostWays()), true) })
	case n < 85:
		return f.blink(ctx)
	}
	return f.divide(ctx)
}

// change changes the driver's state and the truth at the same time. is updates the truth; nil: no
// visible change.
func (f *fate) change(what string, by func(*state.State) ([]state.Event, error), is func()) error {
	f.truth.mu.Lock()
	defer f.truth.mu.Unlock()
	var events []state.Event
	err := f.node.driver.Update(func(s *state.State) (err error) {
		events, err = by(s)
		return err
	}, func() []state.Event { return events })
	if err != nil {
		return fmt.Errorf("%s on GPU %d: %w", what, f.gpu.index, err)
	}
	f.count(what)
	if is != nil {
		is()
		f.gpu.record("%s", what)
	}
	return nil
}

func (f *fate) xid(xid uint64, is func()) error {
	return f.change(fmt.Sprintf("XID %d", xid), func(s *state.State) ([]state.Event, error) {
		return s.ReportXID(f.gpu.index, xid, state.None, state.None)
	}, is)
}

func (f *fate) ecc() error {
	return f.change("ECC error", func(s *state.State) ([]state.Event, error) {
		return s.CountECCErrors(f.gpu.index, pick(f.rand, []string{"dram", "sram"}), 0, 1)
	}, func() { f.gpu.health = sick })
}

func (f *fate) lose(how string, xid bool) error {
	return f.change("lost, "+how, func(s *state.State) ([]state.Event, error) {
		return s.LoseGPU(f.gpu.index, how, xid)
	}, func() { f.gpu.health = sick })
}

func (f *fate) restore(to health) error {
	return f.change("restored", func(s *state.State) ([]state.Event, error) {
		s.ResetGPU(f.gpu.index)
		return nil, nil
	}, func() { f.gpu.health = to })
}

// blink loses a GPU without an event of the driver, and restores it, noticed or not. If the plugin
// has only received an event about the loss, the GPU stays out of service until the plugin itself
// finds it lost (docs/decisions/0004-a-fault-ends-only-on-evidence.md).
func (f *fate) blink(ctx context.Context) error {
	before := f.gpu.health
	how := pick(f.rand, []string{"calls", "handle", "gone", "unknown"}) // missing events would go unnoticed
	if err := f.lose(how, false); err != nil {
		return err
	}
	// An unknown error does not count as finding the GPU out of service.
	if how != "unknown" && f.rand.IntN(2) == 0 {
		return f.returns(ctx, before)
	}
	f.pause(ctx, 3*time.Second)
	if err := f.restore(unsure); err != nil {
		return err
	}
	f.pause(ctx, 5*time.Second)
	return f.reset(ctx)
}

// breakAndReset breaks a GPU so that only a reset helps, and resets it.
func (f *fate) breakAndReset(ctx context.Context, breaks func() error) error {
	if err := breaks(); err != nil {
		return err
	}
	f.pause(ctx, 20*time.Second)
	return f.reset(ctx)
}

// reset removes the GPU, waits until the plugin has noticed, and restores it.
func (f *fate) reset(ctx context.Context) error {
	gone := func(s *state.State) ([]state.Event, error) { return s.LoseGPU(f.gpu.index, "gone", false) }
	if err := f.change("reset begins", gone, func() { f.gpu.health = sick }); err != nil {
		return err
	}
	return f.returns(ctx, sound)
}

// returns restores a GPU when the plugin has noticed that it was gone. It waits for that even when
// the storm ends: no GPU must be left broken.
func (f *fate) returns(ctx context.Context, to health) error {
	// While another GPU is too broken to report its name, a missing one may be that.
	patience := 4 * f.settle
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := f.node.waitState(ctx, f.seenOut); err != nil {
		f.truth.mu.Lock()
		defer f.truth.mu.Unlock()
		return fmt.Errorf("the plugin's state does not say within %v that the GPU was seen out of service\n%v", patience, f.gpu)
	}
	return f.restore(to)
}

// seenOut reports whether each of the plugin's reasons against the GPU ends once the GPU is found
// healthy.
func (f *fate) seenOut(s nodestate.State) bool {
	if s.DevicePlugin == nil {
		return false
	}
	held := 0
	for _, fault := range s.DevicePlugin.Faults {
		if string(fault.GPU) != f.gpu.uuid {
			continue
		}
		held++
		if fault.Needs != "snapshot" && fault.Evidence == "" {
			return false
		}
	}
	return held > 0
}

// divide gives an unused GPU another MIG layout, or disables MIG.
func (f *fate) divide(ctx context.Context) error {
	layout := pick(f.rand, append(layouts, "", "")) // often off, to keep some GPUs whole
	f.truth.mu.Lock()
	defer f.truth.mu.Unlock()
	if !f.truth.free(f.gpu) || f.gpu.health != sound {
		return nil
	}
	args := []string{"--gpu", fmt.Sprint(f.gpu.index), "--off"}
	if layout != "" {
		args = []string{"--gpu", fmt.Sprint(f.gpu.index), "--layout", layout}
	}
	// Its devices cannot be allocated meanwhile: allocate waits for the lock.
	if err := f.node.gpusim(context.WithoutCancel(ctx), "mig", args...); err != nil {
		return err
	}
	var s state.State
	f.node.driver.Read(&s)
	f.truth.divide(f.gpu, s.GPUs()[f.gpu.index])
	f.count("MIG layout")
	f.gpu.record("divided into %q", layout)
	return nil
}

// mend restores the GPU at the end.
func (f *fate) mend(ctx context.Context) error {
	f.truth.mu.Lock()
	defer f.truth.mu.Unlock()
	if f.gpu.parts[0].resource == gpuResource {
		return nil
	}
	if err := f.node.gpusim(ctx, "mig", "--gpu", fmt.Sprint(f.gpu.index), "--off"); err != nil {
		return err
	}
	var s state.State
	f.node.driver.Read(&s)
	f.truth.divide(f.gpu, s.GPUs()[f.gpu.index])
	f.gpu.record("made whole")
	return nil
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
