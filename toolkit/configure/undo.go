package configure

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/probe"
)

// undo restores the runtime's old configuration.
func (c *Configurer) undo(ctx context.Context, o Outcome, n note, why string) (Outcome, error) {
	// This comes first, so that after a kill the next process knows that the runtime has
	// not loaded the old configuration yet.
	if err := c.refuse(refusal{Plan: n.Plan, Version: n.Before.Version, Undoing: &n, Why: why}); err != nil {
		return o, err
	}
	o.Undone = true
	if err := c.step("undo", c.Store.Undo); err != nil {
		return o, fmt.Errorf("%s did not take its new configuration (%s), and the old one cannot be put back: %w; gpu-toolkit restore tries it again", n.Before.Name, why, err)
	}
	return c.restartOld(ctx, o, n, why)
}

// restartOld restarts the runtime with its old configuration, whose files are written.
func (c *Configurer) restartOld(ctx context.Context, o Outcome, n note, why string) (Outcome, error) {
	message := fmt.Sprintf("%s did not take %s: %s; its old configuration is back", n.Before.Name, keys(n.Edits), why)
	if may, what := c.Runtime.CanRestart(); !may {
		return o, &Problem{ReasonRestart, message + "; " + what, nil}
	}
	info, lacks, err := c.restart(ctx, &o, n.Edits, n.Before, runtime.Want{})
	if ctx.Err() != nil {
		return o, ctx.Err() // the next process finishes it
	}
	missing := strings.Join(lacks, ", ")
	switch {
	case err != nil:
		message += ", but with that it does not come back either: " + err.Error()
	case len(lacks) > 0:
		message += ", but with that " + missing
	default:
		o.Answer = info
	}
	if err == nil && len(lacks) > 0 && missing == why {
		// Another program had changed the configuration before, without a restart.
		if err := c.Store.Refuse(nil); err != nil {
			return o, err
		}
		return o, &Problem{ReasonRefused, message + ": that is not our change; apply again if it is intended", nil}
	}
	if err := c.refuse(refusal{Plan: n.Plan, Version: n.Before.Version, Message: message}); err != nil {
		return o, err
	}
	return o, &Problem{ReasonRefused, message, err}
}

// RestartRestored restarts a runtime whose configuration was restored, and verifies that it has all
// handlers of before except our own. did describes what was done.
func (c *Configurer) RestartRestored(ctx context.Context, before probe.RuntimeInfo, own []string) (did string, err error) {
	before.Handlers = slices.DeleteFunc(slices.Clone(before.Handlers), func(h string) bool { return slices.Contains(own, h) })
	if slices.Contains(own, before.Default) {
		before.Default = ""
	}
	var o Outcome
	_, lacks, err := c.restart(ctx, &o, nil, before, runtime.Want{})
	if err == nil && len(lacks) > 0 {
		err = fmt.Errorf("%s has its own configuration back, but with that %s; see its log", before.Name, strings.Join(lacks, ", "))
	}
	return before.Name + " was restarted with its own configuration", err
}
