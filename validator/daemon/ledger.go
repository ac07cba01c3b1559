package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/check"
)

// ledger writes the proofs, and knows what is written.
type ledger struct {
	dir, bootID string
	log         *slog.Logger
	written     map[readiness.Layer]string        // signatures
	stand       map[readiness.Layer]check.Outcome // what is written, without what is pending
}

func newLedger(dir, bootID string, log *slog.Logger) ledger {
	return ledger{dir, bootID, log, map[readiness.Layer]string{}, map[readiness.Layer]check.Outcome{}}
}

// clearStale removes what an earlier boot, or somebody else, left, and the proofs of
// optional layers that are none of the steps. It says whether something is left that is
// of this boot.
func (l *ledger) clearStale(steps []check.Step) (some bool) {
	for _, layer := range readiness.Layers() {
		_, err := readiness.Read(l.dir, layer, l.bootID)
		some = some || err == nil
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l.log.Info("removed what was left of an earlier time", "layer", layer, "message", err.Error())
		if err := readiness.Clear(l.dir, layer); err != nil {
			l.log.Error("cannot remove a stale proof", "layer", layer, "message", err.Error())
		}
	}
	for _, layer := range readiness.Optional() {
		if slices.ContainsFunc(steps, func(s check.Step) bool { return s.Layer == layer }) {
			continue
		}
		if err := readiness.Clear(l.dir, layer); err != nil { // nobody asks for it any more
			l.log.Error("cannot remove a stale proof", "layer", layer, "message", err.Error())
		}
	}
	return some
}

// standing is the outcome to go by: what was proven holds while another proof is
// on its way.
func (l *ledger) standing(o check.Outcome) check.Outcome {
	if before := l.stand[o.Layer]; o.Kind == check.Pending && before.Kind == check.Passed {
		return before
	}
	return o
}

// write writes an outcome where it differs from what is written, and says whether it is
// another than the last.
func (l *ledger) write(o check.Outcome) (news bool, err error) {
	now := signature(o)
	news = l.written[o.Layer] != now
	if !news && l.stands(o) {
		return false, nil
	}
	if o.Proof != nil {
		p := *o.Proof
		p.BootID = l.bootID
		err = readiness.WriteReady(l.dir, o.Layer, p)
	} else {
		r := *o.Refusal
		r.BootID = l.bootID
		err = readiness.WriteNotReady(l.dir, o.Layer, r)
	}
	if err != nil {
		delete(l.written, o.Layer)
		return false, err
	}
	l.written[o.Layer], l.stand[o.Layer] = now, o
	return news, nil
}

// stands says whether what was written is still there.
func (l *ledger) stands(o check.Outcome) bool {
	s, err := readiness.Read(l.dir, o.Layer, l.bootID)
	return err == nil && (s.Proof != nil) == (o.Proof != nil)
}

// signature is what makes one outcome another: all but when and how long.
func signature(o check.Outcome) string {
	if p := o.Proof; p != nil {
		driver := nodestate.DriverInfo{}
		if p.Driver != nil { // none is under an optional layer
			driver = *p.Driver
		}
		return fmt.Sprintf("ready %+v %s %s %d %v %q %q", driver, p.HostRoot, p.DevRoot, p.GPUs, p.Resources, p.Summary, o.Notes)
	}
	return fmt.Sprintf("not ready %s %q %q", o.Refusal.Reason, o.Refusal.Message, o.Refusal.Action)
}
