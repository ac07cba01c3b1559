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

// ledger writes the proofs and remembers what it wrote.
type ledger struct {
	dir, bootID string
	log         *slog.Logger
	written     map[readiness.Layer]string        // signatures
	last        map[readiness.Layer]check.Outcome // the outcomes written
}

func newLedger(dir, bootID string, log *slog.Logger) ledger {
	return ledger{dir, bootID, log, map[readiness.Layer]string{}, map[readiness.Layer]check.Outcome{}}
}

// clearStale removes the proofs of earlier boots, files that are no proof, and the proofs
// of optional layers that are not among the steps. It reports whether proofs of this boot
// remain.
func (l *ledger) clearStale(steps []check.Step) (some bool) {
	for _, layer := range readiness.Layers() {
		_, err := readiness.Read(l.dir, layer, l.bootID)
		some = some || err == nil
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l.log.Info("removed a stale proof", "layer", layer, "message", err.Error())
		if err := readiness.Clear(l.dir, layer); err != nil {
			l.log.Error("cannot remove a stale proof", "layer", layer, "message", err.Error())
		}
	}
	for _, layer := range readiness.Optional() {
		if slices.ContainsFunc(steps, func(s check.Step) bool { return s.Layer == layer }) {
			continue
		}
		if err := readiness.Clear(l.dir, layer); err != nil { // the layer is no longer wanted
			l.log.Error("cannot remove a stale proof", "layer", layer, "message", err.Error())
		}
	}
	return some
}

// effective returns the outcome in force: an earlier proof holds while a new one is
// pending.
func (l *ledger) effective(o check.Outcome) check.Outcome {
	if before := l.last[o.Layer]; o.Kind == check.Pending && before.Kind == check.Passed {
		return before
	}
	return o
}

// write writes an outcome unless the same is written already, and reports whether it
// differs from the last.
func (l *ledger) write(o check.Outcome) (news bool, err error) {
	now := signature(o)
	news = l.written[o.Layer] != now
	if !news && l.isWritten(o) {
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
	l.written[o.Layer], l.last[o.Layer] = now, o
	return news, nil
}

// isWritten reports whether the file written for an outcome is still there.
func (l *ledger) isWritten(o check.Outcome) bool {
	s, err := readiness.Read(l.dir, o.Layer, l.bootID)
	return err == nil && (s.Proof != nil) == (o.Proof != nil)
}

// signature returns a text that is equal for equal outcomes: time and duration are left out.
func signature(o check.Outcome) string {
	if p := o.Proof; p != nil {
		driver := nodestate.DriverInfo{}
		if p.Driver != nil { // an optional layer has none
			driver = *p.Driver
		}
		return fmt.Sprintf("ready %+v %s %s %d %v %q %q", driver, p.HostRoot, p.DevRoot, p.GPUs, p.Resources, p.Summary, o.Notes)
	}
	return fmt.Sprintf("not ready %s %q %q", o.Refusal.Reason, o.Refusal.Message, o.Refusal.Action)
}
