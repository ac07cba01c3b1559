package configure

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// undo gives the runtime its old configuration back.
func (c *Configurer) undo(ctx context.Context, o Outcome, n note, why string) (Outcome, error) {
	// First, so that who comes after a kill knows that the old one is not taken in yet.
	if err := c.refuse(refusal{Plan: n.Plan, Version: n.Before.Version, Undoing: &n, Why: why}); err != nil {
		return o, err
	}
	o.Undone = true
	if err := c.step("undo", c.Journal.Undo); err != nil {
		return o, fmt.Errorf("%s did not take its new configuration (%s), and the old one cannot be put back: %w; gpu-toolkit restore tries it again", n.Before.Name, why, err)
	}
	return c.back(ctx, o, n, why)
}

// back has the runtime take in its old configuration, whose files are written.
func (c *Configurer) back(ctx context.Context, o Outcome, n note, why string) (Outcome, error) {
	message := fmt.Sprintf("%s did not take %s: %s; its old configuration is back", n.Before.Name, keys(n.Edits), why)
	if may, what := c.Runtime.May(); !may {
		return o, &Problem{ReasonRestart, message + "; " + what, nil}
	}
	answer, lacks, err := c.restart(ctx, &o, n.Edits, n.Before, engine.Want{})
	if ctx.Err() != nil {
		return o, ctx.Err() // who comes next ends it
	}
	missing := strings.Join(lacks, ", ")
	switch {
	case err != nil:
		message += ", but with that it does not come back either: " + err.Error()
	case len(lacks) > 0:
		message += ", but with that " + missing
	default:
		o.Answer = answer
	}
	if err == nil && len(lacks) > 0 && missing == why {
		// Somebody had changed it before us and not restarted it: it is none of ours.
		if err := c.Journal.Refuse(nil); err != nil {
			return o, err
		}
		return o, &Problem{ReasonRefused, message + ": that is not ours; apply it again if that is as it should be", nil}
	}
	if err := c.refuse(refusal{Plan: n.Plan, Version: n.Before.Version, Message: message}); err != nil {
		return o, err
	}
	return o, &Problem{ReasonRefused, message, err}
}

// Return has a runtime take in the configuration that was put back, and proves that it
// has all handlers of before but our own. did says what was done.
func (c *Configurer) Return(ctx context.Context, before cri.Answer, own []string) (did string, err error) {
	before.Handlers = slices.DeleteFunc(slices.Clone(before.Handlers), func(h string) bool { return slices.Contains(own, h) })
	if slices.Contains(own, before.Default) {
		before.Default = ""
	}
	var o Outcome
	_, lacks, err := c.restart(ctx, &o, nil, before, engine.Want{})
	if err == nil && len(lacks) > 0 {
		err = fmt.Errorf("%s has its own configuration back, but with that %s; see its log", before.Name, strings.Join(lacks, ", "))
	}
	return before.Name + " was started anew with its own configuration", err
}
