package nvml

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// longestWait bounds the wait for a quiet moment before NVML is initialised again.
// The wait lets the errors that soon follow a loss be reported first. It is bounded
// because one program after the other may fail on a neighbour.
const longestWait = 12 // times quiet: two minutes

// Limits of the back-off after NVML could not be shut down because a call hangs in it.
// Each attempt interrupts the watching for a moment.
const (
	firstBackoff = 10 * time.Second
	maxBackoff   = 10 * time.Minute
)

// backoff schedules when to initialise NVML again.
type backoff struct {
	since time.Time     // since when there is a reason to; zero: there is none
	until time.Time     // no attempt before
	pause time.Duration // the last back-off
}

// shouldCycle reports whether to initialise NVML again now.
func (w *watch) shouldCycle() bool {
	if wanted, _ := w.releases(); !w.letGo && !wanted {
		w.backoff.since = time.Time{}
		return false
	}
	now := time.Now()
	if w.backoff.since.IsZero() {
		w.backoff.since = now
	}
	if now.Before(w.backoff.until) {
		return false
	}
	// A pending event may end the reason to cycle: deliver it first.
	return len(w.pending) == 0 && now.Sub(w.lastEvent) >= w.quiet || now.Sub(w.backoff.since) >= longestWait*w.quiet
}

// backOff delays the next attempt, longer each time.
func (w *watch) backOff(why string) {
	w.backoff.pause = min(max(2*w.backoff.pause, firstBackoff), maxBackoff)
	w.backoff.until = time.Now().Add(w.backoff.pause)
	w.log.Warn("no GPU can be released now", "reason", "Hung", "message", why, "again", w.backoff.pause.String())
}

// cycle begins to shut NVML down and to initialise it again; endCycle follows. A hanging call makes a shutdown
// impossible; then the GPUs stay watched as before. Either may itself hang, for seconds or for ever, when a GPU
// does not answer: meanwhile the GPUs are as they were last read.
func (w *watch) cycle() error {
	if what, hangs := w.hanging(); hangs {
		w.backOff("NVML has not returned from a call about " + what)
		return nil
	}
	if slices.ContainsFunc(w.sets, (*eventSet).ending) {
		if slices.ContainsFunc(w.sets, (*eventSet).hangs) {
			w.backOff("an NVML event set does not end")
		}
		return nil // do not end the current set for that
	}
	ended := w.endSets()
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if !ended {
		w.backOff("an NVML event set does not end")
		return w.watchAgain()
	}
	return w.reinitialise()
}

// reportGap reports that no event is received at the moment. While NVML is initialised again it is called again
// and again: nothing is known of the GPUs, so none recovers by quiet.
func (w *watch) reportGap() {
	w.report(gpu.EventGap, "", "NVML is shut down for a moment to release a GPU")
}

// watchAgain watches the GPUs after a gap.
func (w *watch) watchAgain() error {
	w.reportGap()
	if err := w.probeAll(); err != nil {
		return err
	}
	w.again = true // catch changes between reading a GPU and watching it
	return w.renew()
}

// endSets ends all event sets, and collects their events until then.
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

// reinitialise starts to release the GPUs that are to be released.
func (w *watch) reinitialise() error {
	// All calls wait while this waits for a hanging one, so the timeout is short.
	w.released = nil
	seen := w.seen // w.seen may be replaced while this runs
	w.cycles.Add(1)
	results, err := w.startAlone(w.ctx, time.Second, func() error {
		defer w.cycles.Add(1)
		return firstError(
			func() error { return check("nvmlShutdown", w.lib.Shutdown()) },
			func() error { w.released = w.markReleased(seen); return nil },
			func() error { return check("nvmlInit", w.lib.Init()) },
		)
	})
	if err != nil {
		w.cycles.Add(1)
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		w.backOff(err.Error())
		return w.watchAgain()
	}
	w.cycled, w.cycleBegan = results, time.Now()
	w.reportGap()
	return nil
}

// endCycle watches the GPUs again once NVML is initialised.
func (w *watch) endCycle(err error) error {
	w.cycled = nil
	if err != nil {
		return fmt.Errorf("initialise NVML again to release a GPU: %w", err)
	}
	w.expireFacts()
	w.letGo, w.backoff = false, backoff{}
	w.lastEvent = time.Now() // not again at once
	for _, id := range w.released {
		w.outsideReadAt[id] = w.lastEvent // leave time for a reset
	}
	w.log.Info("NVML was initialised again to release GPUs that were lost or wait for a reset", "gpus", fmt.Sprint(w.released))
	return w.watchAgain()
}

// reportSlowCycle logs, once, that NVML does not return from its shutdown or initialisation.
func (w *watch) reportSlowCycle() {
	if !w.cycleBegan.IsZero() && time.Since(w.cycleBegan) > w.limit {
		w.cycleBegan = time.Time{}
		w.failed(codeHung)
		w.log.Error("NVML does not return from its shutdown or initialisation; the GPUs are as they were last read", "reason", "Hung",
			"message", "a GPU or its driver hangs: look for NVRM lines in the kernel log")
	}
}
