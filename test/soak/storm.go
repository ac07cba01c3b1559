package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/simulator/gpusim/fault"
	"github.com/gpuready/gpuready/simulator/state"
)

// XIDs by what docs/xids.md makes of them. 999 is one that it does not list.
var (
	harmless = []uint64{13, 31, 43, 45, 68}
	grave    = []uint64{44, 48, 62, 74, 95, 119, 999}
	passing  = []uint64{8, 32, 69}
)

// layouts are what GPUs are divided into.
var layouts = []string{
	"1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb", "3g.40gb,3g.40gb", "7g.80gb", "1g.10gb,2g.20gb,3g.40gb", "1g.10gb",
}

// fate is what happens to one GPU: one thing after the other.
type fate struct {
	*soak
	card *card
	rand *rand.Rand
}

// run lets things happen until ctx ends, and leaves the GPU sound.
func (f *fate) run(ctx context.Context) error {
	for f.pause(ctx, f.pace) {
		if err := f.next(ctx); err != nil {
			return err
		}
	}
	return nil
}

// pause waits a random while; false when ctx has ended.
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
		return f.xid(pick(f.rand, passing), func() { f.card.health = unsure })
	case n < 50:
		return f.breakAndReset(ctx, func() error {
			return f.xid(pick(f.rand, grave), func() { f.card.health = sick })
		})
	case n < 60:
		return f.breakAndReset(ctx, f.ecc)
	case n < 70:
		return f.breakAndReset(ctx, func() error { return f.lose(pick(f.rand, fault.Ways()), true) })
	case n < 85:
		return f.blink(ctx)
	}
	return f.divide(ctx)
}

// change changes the driver's state and the truth in one moment. is what the
// truth becomes; nil: nothing that could be seen.
func (f *fate) change(what string, by func(*state.State) ([]state.Event, error), is func()) error {
	f.truth.mu.Lock()
	defer f.truth.mu.Unlock()
	var events []state.Event
	err := f.node.driver.Update(func(s *state.State) (err error) {
		events, err = by(s)
		return err
	}, func() []state.Event { return events })
	if err != nil {
		return fmt.Errorf("%s on GPU %d: %w", what, f.card.index, err)
	}
	f.count(what)
	if is != nil {
		is()
		f.card.happened("%s", what)
	}
	return nil
}

func (f *fate) xid(xid uint64, is func()) error {
	return f.change(fmt.Sprintf("XID %d", xid), func(s *state.State) ([]state.Event, error) {
		return fault.XID(s, f.card.index, xid, state.None, state.None)
	}, is)
}

func (f *fate) ecc() error {
	return f.change("ECC error", func(s *state.State) ([]state.Event, error) {
		return fault.ECC(s, f.card.index, pick(f.rand, []string{"dram", "sram"}), 0, 1)
	}, func() { f.card.health = sick })
}

func (f *fate) lose(how string, xid bool) error {
	return f.change("lost, "+how, func(s *state.State) ([]state.Event, error) {
		return fault.Lose(s, f.card.index, how, xid)
	}, func() { f.card.health = sick })
}

func (f *fate) restore(to health) error {
	return f.change("restored", func(s *state.State) ([]state.Event, error) {
		fault.Restore(s, f.card.index)
		return nil, nil
	}, func() { f.card.health = to })
}

// blink loses a GPU without a word of the driver, and brings it back, whether or
// not anybody has seen that. A GPU of which the plugin has only heard that it was
// lost is held until it was seen to be (docs/decisions/0004-evidence.md).
func (f *fate) blink(ctx context.Context) error {
	before := f.card.health
	how := pick(f.rand, []string{"calls", "handle", "gone", "unknown"}) // of missing events nobody would tell
	if err := f.lose(how, false); err != nil {
		return err
	}
	// An unknown error is not a GPU that was seen out of service.
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

// breakAndReset breaks a GPU so that nothing but a reset helps, and resets it.
func (f *fate) breakAndReset(ctx context.Context, breaks func() error) error {
	if err := breaks(); err != nil {
		return err
	}
	f.pause(ctx, 20*time.Second)
	return f.reset(ctx)
}

// reset lets the GPU go, the plugin see that, and the GPU come back.
func (f *fate) reset(ctx context.Context) error {
	gone := func(s *state.State) ([]state.Event, error) { return fault.Lose(s, f.card.index, "gone", false) }
	if err := f.change("reset begins", gone, func() { f.card.health = sick }); err != nil {
		return err
	}
	return f.returns(ctx, sound)
}

// returns brings a GPU back when the plugin has seen that it was gone. It is waited
// for also when the storm ends: no GPU must be left broken.
func (f *fate) returns(ctx context.Context, to health) error {
	// While another GPU is too broken to tell its name, one that is gone may be that.
	patience := 4 * f.settle
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := f.node.said(ctx, f.seenOut); err != nil {
		f.truth.mu.Lock()
		defer f.truth.mu.Unlock()
		return fmt.Errorf("the plugin's state does not say within %v that the GPU was seen out of service\n%v", patience, f.card)
	}
	return f.restore(to)
}

// seenOut says that everything that the plugin holds against the GPU ends when it
// is seen to be sound.
func (f *fate) seenOut(s nodestate.State) bool {
	if s.DevicePlugin == nil {
		return false
	}
	held := 0
	for _, fault := range s.DevicePlugin.Faults {
		if string(fault.GPU) != f.card.uuid {
			continue
		}
		held++
		if fault.Needs != "snapshot" && fault.Evidence == "" {
			return false
		}
	}
	return held > 0
}

// divide gives a GPU that nobody uses another MIG layout, or turns MIG off.
func (f *fate) divide(ctx context.Context) error {
	layout := pick(f.rand, append(layouts, "", "")) // often off, or there would soon be no whole GPU
	f.truth.mu.Lock()
	defer f.truth.mu.Unlock()
	if !f.truth.free(f.card) || f.card.health != sound {
		return nil
	}
	args := []string{"--gpu", fmt.Sprint(f.card.index), "--off"}
	if layout != "" {
		args = []string{"--gpu", fmt.Sprint(f.card.index), "--layout", layout}
	}
	// Nobody is given anything of it meanwhile: give waits for the lock.
	if err := f.node.gpusim(context.WithoutCancel(ctx), "mig", args...); err != nil {
		return err
	}
	var s state.State
	f.node.driver.Read(&s)
	f.truth.divide(f.card, s.GPUs()[f.card.index])
	f.count("MIG layout")
	f.card.happened("divided into %q", layout)
	return nil
}

// mend makes the GPU whole, at the end.
func (f *fate) mend(ctx context.Context) error {
	f.truth.mu.Lock()
	defer f.truth.mu.Unlock()
	if f.card.parts[0].resource == gpuResource {
		return nil
	}
	if err := f.node.gpusim(ctx, "mig", "--gpu", fmt.Sprint(f.card.index), "--off"); err != nil {
		return err
	}
	var s state.State
	f.node.driver.Read(&s)
	f.truth.divide(f.card, s.GPUs()[f.card.index])
	f.card.happened("made whole")
	return nil
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }
