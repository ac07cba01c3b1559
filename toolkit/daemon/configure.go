package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/toolkit/configure"
	"github.com/gpuready/gpuready/toolkit/target"
)

// Who writes the runtime's configuration anew each time that we have is not fought:
// so many times in such a time are enough, each is a restart of the runtime.
const (
	enough = 3
	spell  = 10 * time.Minute
)

// look has the runtime's configuration looked at.
func (d *Daemon) look() {
	select {
	case d.answered <- struct{}{}:
	default: // it will be
	}
}

// configureRuntime brings the container runtime to where it is wanted, again whenever
// it was started anew or its configuration was changed.
func (d *Daemon) configureRuntime(ctx context.Context, c *configure.Configurer) error {
	var made []time.Time // restarts
	failed := false      // of which no event tells the end
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
		made = slices.DeleteFunc(made, func(t time.Time) bool { return time.Since(t) > spell })
		tired := len(made) >= enough
		o, err := d.ConfigureRuntime(ctx, c, tired)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if tired && err == nil && len(o.Edits) > 0 {
			err = &configure.Problem{Reason: configure.ReasonConfig, Message: fmt.Sprintf("somebody else writes the container runtime's configuration: it was changed to have %s %d times in %v, and has it no more; find out who writes it, or leave it to them without --runtime-restart-mode", o.Edits[0], enough, spell)}
		}
		if o.Restarts > 0 && err == nil {
			made = append(made, time.Now())
		}
		_, expected := errors.AsType[*configure.Problem](err)
		failed = err != nil && !expected
		d.tellConfigured(o, err)
	}
}

// tellConfigured takes note of what became of the configuration.
func (d *Daemon) tellConfigured(o configure.Outcome, err error) {
	d.metrics.configured(o, err)
	for _, e := range o.Edits {
		if err == nil {
			d.log.Info("container runtime is configured", "path", e.File, "key", e.Key, "before", e.Before, "after", e.After)
		}
	}
	reason, message := d.Config.ProblemOf(err)
	d.metrics.problem(reason)
	d.mu.Lock()
	same := d.outside.problem == reason && d.outside.message == message
	d.mu.Unlock()
	if same {
		return
	}
	d.publish(func() { d.outside.problem, d.outside.message = reason, message })
}

// configFiles are the runtime's, as far as they are known.
func (d *Daemon) configFiles() []string {
	if !d.Config.Configure {
		return nil
	}
	d.mu.Lock()
	answer := d.outside.answer
	d.mu.Unlock()
	return target.Files(d.Root, d.Config.Runtime, answer)
}
