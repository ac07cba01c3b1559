package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/toolkit/configure"
)

// Another program that keeps overwriting the runtime's configuration is not fought
// forever, since each repair restarts the runtime: at most maxRepairs in repairWindow.
const (
	maxRepairs   = 3
	repairWindow = 10 * time.Minute
)

// checkConfig schedules a check of the runtime's configuration.
func (d *Daemon) checkConfig() {
	select {
	case d.answered <- struct{}{}:
	default: // already scheduled
	}
}

// configureRuntime configures the container runtime, again whenever it restarts or its
// configuration changes.
func (d *Daemon) configureRuntime(ctx context.Context, c *configure.Configurer) error {
	var restarts []time.Time
	failed := false // for a reason whose end no event reports
	for {
		var retry <-chan time.Time
		if failed {
			retry = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.answered:
		case <-retry:
		}
		restarts = slices.DeleteFunc(restarts, func(t time.Time) bool { return time.Since(t) > repairWindow })
		exhausted := len(restarts) >= maxRepairs
		o, err := d.ConfigureRuntime(ctx, c, exhausted)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if exhausted && err == nil && len(o.Edits) > 0 {
			err = &configure.Problem{Reason: configure.ReasonConfig, Message: fmt.Sprintf("somebody else writes the container runtime's configuration: it was changed to have %s %d times in %v, and has it no more; find out who writes it, or leave it to them without --runtime-restart-mode", o.Edits[0], maxRepairs, repairWindow)}
		}
		if o.Restarts > 0 && err == nil {
			restarts = append(restarts, time.Now())
		}
		problem, expected := errors.AsType[*configure.Problem](err)
		failed = err != nil && (!expected || problem.Reason == configure.ReasonUnavailable)
		d.reportConfigured(o, err)
	}
}

// reportConfigured reports the outcome of a configuration in metrics, log and state.
func (d *Daemon) reportConfigured(o configure.Outcome, err error) {
	d.metrics.configured(o, err)
	for _, e := range o.Edits {
		if err == nil {
			d.log.Info("container runtime is configured", "path", e.File, "key", e.Key, "before", e.Before, "after", e.After)
		}
	}
	reason, message := d.Config.ProblemOf(err)
	d.metrics.problem(reason)
	d.mu.Lock()
	same := d.runtime.problem == reason && d.runtime.message == message
	d.mu.Unlock()
	if same {
		return
	}
	d.publish(func() { d.runtime.problem, d.runtime.message = reason, message })
}

// configFiles returns the runtime's configuration files, as far as they are known.
func (d *Daemon) configFiles() []string {
	if !d.Config.Configure {
		return nil
	}
	d.mu.Lock()
	info := d.runtime.info
	d.mu.Unlock()
	return configure.Files(d.Root, d.Config.Runtime, info)
}
