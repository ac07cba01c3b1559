package nvml

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Initialising NVML again waits until there was no event for a while, because the
// errors that follow a loss come soon after it; but not for ever, as one program
// after the other may fail on a neighbour.
const longestWait = 12 // times quiet: two minutes

// How long not to try again after NVML could not be shut down, since a call hangs in
// it: each time nobody is listened to for a moment.
const (
	firstPutOff = 10 * time.Second
	lastPutOff  = 10 * time.Minute
)

// putOff is when to initialise NVML again.
type putOff struct {
	since time.Time     // since when there is a reason to; zero: there is none
	until time.Time     // not before
	pause time.Duration // how long it was put off last, since it was in vain
}

// mayCycle reports whether to initialise NVML again now.
func (w *watch) mayCycle() bool {
	if wanted, _ := w.letsGo(); !w.letGo && !wanted {
		w.off.since = time.Time{}
		return false
	}
	now := time.Now()
	if w.off.since.IsZero() {
		w.off.since = now
	}
	if now.Before(w.off.until) {
		return false
	}
	// What was just found may be that there is none any more: let that be heard first.
	return len(w.pending) == 0 && now.Sub(w.lastEvent) >= w.quiet || now.Sub(w.off.since) >= longestWait*w.quiet
}

// inVain puts it off, longer each time.
func (w *watch) inVain(why string) {
	w.off.pause = min(max(2*w.off.pause, firstPutOff), lastPutOff)
	w.off.until = time.Now().Add(w.off.pause)
	w.log.Warn("no GPU can be let go of now", "reason", "Hung", "message", why, "again", w.off.pause.String())
}

// cycle shuts NVML down and initialises it again. What hangs in it keeps it from
// being shut down; then the GPUs are listened to as before.
func (w *watch) cycle() error {
	if what, hangs := w.hanging(); hangs {
		w.inVain("NVML does not come back from what it was asked about " + what)
		return nil
	}
	if slices.ContainsFunc(w.sets, (*eventSet).ending) {
		if slices.ContainsFunc(w.sets, (*eventSet).hangs) {
			w.inVain("an NVML event set does not end")
		}
		return nil // the one in force need not be ended for that
	}
	ended := w.endSets()
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if !ended {
		w.inVain("an NVML event set does not end")
	} else if err := w.reinitialise(); err != nil {
		return err
	}
	w.tell(gpu.EventGap, "", "NVML was shut down for a moment, to let go of a GPU")
	if err := w.look(); err != nil {
		return err
	}
	w.again = true // what happened between reading a GPU and watching it
	return w.renew()
}

// endSets ends all event sets, and hears what they have to tell until then.
func (w *watch) endSets() (ended bool) {
	patience := time.NewTimer(w.slice + w.limit)
	defer patience.Stop()
	for _, set := range w.sets {
		set.stop()
	}
	for _, set := range w.sets {
		for ended := false; !ended; {
			select {
			case <-set.ended:
				ended = true
			case got := <-w.waits:
				if event, ok := got.event(); ok {
					w.pending = append(w.pending, event)
				}
			case <-w.ctx.Done():
				return false
			case <-patience.C:
				return false
			}
		}
	}
	return true
}

// reinitialise lets go of what is to be let go of.
func (w *watch) reinitialise() error {
	// Whoever hangs in there holds up everybody while this waits: be brief.
	var gone []gpu.UUID
	err := w.alone(w.ctx, time.Second, func() error {
		return firstError(
			func() error { return check("nvmlShutdown", w.lib.Shutdown()) },
			func() error { gone = w.goes(w.seen); return nil },
			func() error { return check("nvmlInit", w.lib.Init()) },
		)
	})
	if hung, is := errors.AsType[*hungError](err); is {
		w.inVain(hung.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("letting go of a GPU: %w", err)
	}
	w.letGo, w.off = false, putOff{}
	w.lastEvent = time.Now() // not again at once
	for _, id := range gone {
		w.glanced[id] = w.lastEvent // whoever resets it is given time
	}
	w.log.Info("NVML was initialised again to let go of GPUs that were lost or wait for a reset", "gpus", fmt.Sprint(gone))
	return nil
}
