// Package configure configures a container runtime so that it can give GPUs to containers.
// Apply queries the runtime for its abilities, plans the edit of its files (package
// runtime/containerd, runtime/crio or runtime/docker), writes them, restarts the runtime in
// its distribution's way, and verifies the result by another query. A runtime that does not
// restart as wanted gets its old configuration back. Restore does that later, on request.
//
// The files are written as a transaction of apply.Store, which holds the originals: Begin,
// then Commit or Undo. Its note lets the next process finish a change after a kill.
package configure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// Reasons in the toolkit's state; part of the contract.
const (
	ReasonConfig  gpu.Reason = "RuntimeConfig"  // its configuration cannot be changed as it is
	ReasonRefused gpu.Reason = "RuntimeRefused" // it did not restart as wanted, and has its old configuration back
	ReasonRestart gpu.Reason = "RuntimeRestart" // it is configured and has to be restarted by hand
	// ReasonUnavailable means that a restart did not begin: what restarts it, such as systemd, cannot
	// be reached or refused the request.
	ReasonUnavailable gpu.Reason = "RestartUnavailable"
)

// Problem is the reason why a runtime is not, or not yet, as wanted.
type Problem struct {
	Reason  gpu.Reason
	Message string // the problem, and what to do
	Err     error
}

func (p *Problem) Error() string { return p.Message }
func (p *Problem) Unwrap() error { return p.Err }

// Runtime is a container runtime of this host.
type Runtime interface {
	// Query queries the runtime's own description. It returns an error if the runtime does
	// not respond.
	Query(ctx context.Context) (runtime.Info, error)
	// Plan returns the plan for the wanted abilities. Its error may be an *runtime.Refusal.
	Plan(version string, want runtime.Want) (runtime.Plan, error)
	// CanRestart reports whether Restart is allowed. If not, it returns the reason and the manual
	// steps.
	CanRestart() (bool, string)
	// CheckRestart returns the error with which Restart would not begin, as far as that is known
	// without a request: which step failed, and what to do.
	CheckRestart(ctx context.Context) error
	// Restart makes the runtime load the edits, and returns when it has restarted. It
	// returns a description of what was done. An error for which isNotBegun is true means
	// that the runtime runs on as before.
	Restart(ctx context.Context, edits []runtime.Edit) (string, error)
}

// Configurer configures one runtime. Its methods must not be called concurrently.
type Configurer struct {
	Wishes  Wishes
	Runtime Runtime
	Store   *apply.Store
	Same    func(a, b string) bool // reports whether two paths are the same directory
	// Patience limits the time that a runtime may take to respond after a restart.
	Patience time.Duration
	// Observe is called after each step if it is not nil.
	Observe func(step string, took time.Duration)

	notRestarted refusal // the last plan of this process whose restart did not begin; it is not tried again
}

// Outcome is the result of Plan or Apply.
type Outcome struct {
	Answer   runtime.Info   // the runtime's current description, as it answered Query
	Edits    []runtime.Edit // the edits made or planned
	Changes  []apply.Change // on the host
	Restarts int
	Undone   bool // all of it was undone
}

// Plan returns what Apply would do.
func (c *Configurer) Plan(ctx context.Context) (Outcome, error) {
	o, _, err := c.plan(ctx)
	return o, err
}

func (c *Configurer) plan(ctx context.Context) (Outcome, runtime.Want, error) {
	info, err := c.Runtime.Query(ctx)
	o := Outcome{Answer: info}
	if err != nil {
		return o, runtime.Want{}, &Problem{runtime.ReasonSilent, info.Message + "; its configuration is not touched while it does not report its abilities", err}
	}
	want, ok := c.Wishes.Want(info, c.Same)
	if !ok {
		return o, want, nil
	}
	plan, err := c.Runtime.Plan(info.Version, want)
	if err != nil {
		return o, want, &Problem{ReasonConfig, err.Error(), err}
	}
	if o.Edits = plan.Edits; len(plan.Edits) > 0 {
		o.Changes, err = c.Store.Plan(plan.Items)
	}
	return o, want, err
}

// Apply configures the runtime as wanted, or restores its old configuration.
func (c *Configurer) Apply(ctx context.Context) (Outcome, error) {
	if o, done, err := c.resume(ctx); done || err != nil {
		return o, err
	}
	o, want, err := c.plan(ctx)
	if err != nil {
		return o, err
	}
	lacks := missing(o.Answer, o.Answer, want, c.Same)
	switch {
	case len(o.Edits) == 0 && len(lacks) == 0:
		return o, nil
	case len(o.Edits) == 0:
		return c.restartStale(ctx, o, want, lacks)
	}
	n := note{Before: o.Answer, Want: want, Edits: o.Edits, Plan: hash(o.Edits, want)}
	if was, err := c.refused(); err != nil || was.Plan == n.Plan && was.Version == o.Answer.Version {
		if err == nil {
			err = &Problem{ReasonRefused, was.Message + "; it is not tried again until the configuration, the runtime or the wanted abilities change", nil}
		}
		return o, err
	}
	if c.notRestarted.Plan == n.Plan && c.notRestarted.Version == o.Answer.Version {
		return o, &Problem{ReasonUnavailable, c.notRestarted.Message, nil}
	}
	if err := c.checkRestart(ctx, n); err != nil {
		return o, err
	}
	data, err := json.Marshal(n)
	if err != nil {
		return o, err
	}
	if err := c.step("write", func() error { return c.Store.Begin(o.Changes, data) }); err != nil {
		return o, err
	}
	return c.finish(ctx, o, n, true)
}

// checkRestart returns a Problem if the runtime may be restarted, but the restart would not begin. It
// is called before anything is written.
func (c *Configurer) checkRestart(ctx context.Context, n note) error {
	if may, _ := c.Runtime.CanRestart(); !may {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	err := c.Runtime.CheckRestart(within)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return &Problem{ReasonUnavailable, fmt.Sprintf("%s is not configured (%s), because it could not be restarted afterwards: %v", n.Before.Name, keys(n.Edits), err), err}
}

// restartStale restarts a runtime whose configuration is as wanted, but not in effect.
func (c *Configurer) restartStale(ctx context.Context, o Outcome, want runtime.Want, lacks []string) (Outcome, error) {
	what := o.Answer.Name + " at " + o.Answer.Socket + " is configured as wanted, but " + strings.Join(lacks, ", ")
	if was, err := c.refused(); err != nil || was.Plan == hash(nil, want) && was.Version == o.Answer.Version {
		if err == nil {
			err = &Problem{ReasonRefused, was.Message, nil}
		}
		return o, err
	}
	if may, why := c.Runtime.CanRestart(); !may {
		return o, &Problem{ReasonRestart, what + ": it has not been restarted since; " + why, nil}
	}
	info, rest, err := c.restart(ctx, &o, nil, o.Answer, want)
	if isNotBegun(err) && ctx.Err() == nil {
		return o, &Problem{ReasonUnavailable, what + fmt.Sprintf(": it has not been restarted since, and could not be: %v", err), err}
	}
	if ctx.Err() != nil {
		return o, ctx.Err() // the next process restarts it
	}
	if err == nil && len(rest) == 0 {
		o.Answer = info
		return o, nil
	}
	message := what + ", also after a restart; check whether it reads another file, and name that with --runtime-config"
	if err != nil {
		message = what + fmt.Sprintf(", and its restart failed: %v; see its log, and restart it by hand: the toolkit does not try again", err)
	}
	if refuse := c.refuse(refusal{Plan: hash(nil, want), Version: cmp.Or(info.Version, o.Answer.Version), Message: message}); refuse != nil {
		return o, errors.Join(err, refuse)
	}
	return o, &Problem{ReasonRefused, message, err}
}

// resume finishes the change of an earlier process.
func (c *Configurer) resume(ctx context.Context) (o Outcome, done bool, err error) {
	data, pending, err := c.Store.Pending()
	if err != nil {
		return o, false, err
	}
	if !pending {
		was, err := c.refused()
		if err != nil || was.Undoing == nil {
			return o, false, err
		}
		o.Edits, o.Undone = was.Undoing.Edits, true
		o, err = c.restartOld(ctx, o, *was.Undoing, was.Why)
		return o, true, err
	}
	var n note
	if err := json.Unmarshal(data, &n); err != nil || n.Plan == "" {
		// The purpose of the change is unknown, so restore the original.
		if err := c.Store.Undo(); err != nil {
			return o, true, err
		}
		return o, false, nil
	}
	o.Edits = n.Edits
	info, err := c.Runtime.Query(ctx)
	if err == nil && len(missing(n.Before, info, n.Want, c.Same)) == 0 {
		o.Answer = info
		return o, true, c.commit()
	}
	o, err = c.finish(ctx, o, n, false)
	return o, true, err
}

// finish restarts the runtime, whose files are written, and commits or undoes the change. fresh means
// that this process wrote them, so the runtime has not read them yet.
func (c *Configurer) finish(ctx context.Context, o Outcome, n note, fresh bool) (Outcome, error) {
	if may, why := c.Runtime.CanRestart(); !may {
		return o, &Problem{ReasonRestart, fmt.Sprintf("%s is configured (%s) and has to be restarted; %s", n.Before.Name, keys(n.Edits), why), nil}
	}
	info, lacks, err := c.restart(ctx, &o, n.Edits, n.Before, n.Want)
	if ctx.Err() != nil {
		return o, ctx.Err() // the next process finishes it
	}
	if err == nil && len(lacks) == 0 {
		o.Answer = info
		return o, c.commit()
	}
	if isNotBegun(err) && fresh {
		if undo := c.step("undo", c.Store.Undo); undo != nil {
			return o, fmt.Errorf("%s could not be restarted (%w), and its configuration cannot be put back: %w; gpu-toolkit restore tries it again", n.Before.Name, err, undo)
		}
		message := fmt.Sprintf("%s could not be restarted to load %s: %v; its configuration is as before, and the toolkit tries again when it is started the next time", n.Before.Name, keys(n.Edits), err)
		c.notRestarted = refusal{Plan: n.Plan, Version: n.Before.Version, Message: message}
		return o, &Problem{ReasonUnavailable, message, err}
	}
	why := strings.Join(lacks, ", ")
	if err != nil {
		why = err.Error()
	}
	return c.undo(ctx, o, n, why)
}

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
	// Nothing new is wanted: only what the runtime had before can be lacking.
	info, lacks, err := c.restart(ctx, &o, n.Edits, n.Before, runtime.Want{})
	if ctx.Err() != nil {
		return o, ctx.Err() // the next process finishes it
	}
	if isNotBegun(err) {
		// The note of undo stays, so that it is tried again.
		return o, &Problem{ReasonUnavailable, fmt.Sprintf("%s, but it could not be restarted with that: %v", message, err), err}
	}
	lacking := strings.Join(lacks, ", ")
	switch {
	case err != nil:
		message += ", but with that it does not come back either: " + err.Error()
	case len(lacks) > 0:
		message += ", but with that " + lacking
	default:
		o.Answer = info
	}
	if err == nil && len(lacks) > 0 && !slices.ContainsFunc(strings.Split(why, ", "), func(one string) bool { return !slices.Contains(lacks, one) }) {
		// It lacks the same with the old files, so our change is not the cause: another program
		// has changed the configuration, perhaps without a restart. With that one as the old
		// configuration, it can be tried again.
		if err := c.Store.SetNote(refusedNote, nil); err != nil {
			return o, err
		}
		return o, &Problem{ReasonRefused, message + ": that is not our change; apply again if it is intended", nil}
	}
	if err := c.refuse(refusal{Plan: n.Plan, Version: n.Before.Version, Message: message}); err != nil {
		return o, err
	}
	return o, &Problem{ReasonRefused, message, err}
}

// restart restarts the runtime and queries it until it has the wanted abilities or times
// out. It returns the abilities that are then lacking.
func (c *Configurer) restart(ctx context.Context, o *Outcome, edits []runtime.Edit, before runtime.Info, want runtime.Want) (info runtime.Info, lacks []string, err error) {
	var did string
	err = c.step("restart", func() error {
		within, cancel := context.WithTimeout(ctx, restartFactor*c.Patience)
		defer cancel()
		did, err = c.Runtime.Restart(within, edits)
		return err
	})
	if !isNotBegun(err) {
		o.Restarts++
	}
	if err != nil {
		return info, nil, err
	}
	within, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	err = c.step("verify", func() error {
		var first time.Time // of the first response
		for pause := firstPause; ; pause = min(2*pause, lastPause) {
			if info, err = c.Runtime.Query(within); err == nil {
				if first.IsZero() {
					first = time.Now()
				}
				if lacks = missing(before, info, want, c.Same); len(lacks) == 0 || time.Since(first) > c.Patience/settleFraction {
					return nil
				}
			}
			select {
			case <-time.After(pause):
			case <-within.Done():
				if err != nil {
					err = fmt.Errorf("%s, and for %v since then: %w", did, c.Patience, errors.Join(errors.New(info.Message), err))
				}
				return err
			}
		}
	})
	return info, lacks, err
}

// The pauses between queries of a runtime that was just started.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// restartFactor limits the time of a restart, as a multiple of Patience. A unit stops
// before it starts, and each of these has 90 seconds by default (systemd-system.conf,
// DefaultTimeoutStopSec and DefaultTimeoutStartSec).
const restartFactor = 3

// settleFraction is the fraction of Patience after which a runtime's response is final.
// After a reload, a runtime responds for a moment as before.
const settleFraction = 10

// step runs a step, and reports its duration to Observe.
func (c *Configurer) step(name string, do func() error) error {
	start := time.Now()
	err := do()
	if c.Observe != nil {
		c.Observe(name, time.Since(start))
	}
	return err
}
