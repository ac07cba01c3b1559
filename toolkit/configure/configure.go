package configure

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/change"
	"github.com/gpuready/gpuready/toolkit/cri"
	"github.com/gpuready/gpuready/toolkit/engine"
)

// Reasons in the toolkit's state; part of the contract.
const (
	ReasonConfig  gpu.Reason = "RuntimeConfig"  // its configuration cannot be changed as it is
	ReasonRefused gpu.Reason = "RuntimeRefused" // it did not come back as wanted, and has its old configuration back
	ReasonRestart gpu.Reason = "RuntimeRestart" // it is configured and has to be restarted by somebody
)

// Problem is why a runtime is not as it was wanted, or not yet.
type Problem struct {
	Reason  gpu.Reason
	Message string // what is the matter, and what to do
	Err     error
}

func (p *Problem) Error() string { return p.Message }
func (p *Problem) Unwrap() error { return p.Err }

// Runtime is a container runtime of this host.
type Runtime interface {
	// Ask returns what it says of itself; its error says that it does not.
	Ask(ctx context.Context) (cri.Answer, error)
	// Plan says what to write for what is wanted; its error may be an *engine.Refusal.
	Plan(version string, want engine.Want) (engine.Plan, error)
	// May says whether Restart will try; else why not, and what a person has to do.
	May() (bool, string)
	// Restart makes it take in the edits, and returns when it was started anew. What
	// was done is returned in words.
	Restart(ctx context.Context, edits []engine.Edit) (string, error)
}

// Journal makes changes so that what was there before can come back whatever happens.
type Journal interface {
	// Plan compares with what is on the host.
	Plan(items []change.Item) ([]change.Change, error)
	// Begin makes the changes, after what was there has been kept. note is kept with
	// them until the end.
	Begin(changes []change.Change, note []byte) error
	// Pending returns the note of changes that have neither ended nor been undone.
	Pending() (note []byte, pending bool, err error)
	Commit() error
	Undo() error
	// Refused returns what was kept by Refuse last; nil: nothing.
	Refused() ([]byte, error)
	Refuse(note []byte) error
}

// note is what has to be known to end what was begun, also by another process.
type note struct {
	Before cri.Answer    `json:"before"`
	Want   engine.Want   `json:"want"`
	Edits  []engine.Edit `json:"edits"`
	Plan   string        `json:"plan"` // hash
}

// refusal is why not to try the same again.
type refusal struct {
	Plan    string `json:"plan"`
	Version string `json:"version"` // of the runtime
	Message string `json:"message"`
	// Undoing is there until the runtime has taken its old configuration back.
	Undoing *note  `json:"undoing,omitempty"`
	Why     string `json:"why,omitempty"` // of Undoing
}

// Configurer configures one runtime. Its methods follow each other.
type Configurer struct {
	Wishes  Wishes
	Runtime Runtime
	Journal Journal
	Same    func(a, b string) bool // two paths are one directory
	// Patience is how long a runtime may take to answer after it was started anew.
	Patience time.Duration
	// Tell is told of each step; nil: nobody is.
	Tell func(step string, took time.Duration)
}

// Outcome is what there was to do.
type Outcome struct {
	Answer   cri.Answer      // what the runtime says of itself now
	Edits    []engine.Edit   // that were made, or would be
	Changes  []change.Change // on the host
	Restarts int
	Undone   bool // all of it was taken back
}

// Plan says what Apply would do.
func (c *Configurer) Plan(ctx context.Context) (Outcome, error) {
	o, _, err := c.plan(ctx)
	return o, err
}

func (c *Configurer) plan(ctx context.Context) (Outcome, engine.Want, error) {
	answer, err := c.Runtime.Ask(ctx)
	o := Outcome{Answer: answer}
	if err != nil {
		return o, engine.Want{}, &Problem{cri.ReasonSilent, answer.Message + "; its configuration is not touched while it does not say what it can do", err}
	}
	want, ok := c.Wishes.Want(answer, c.Same)
	if !ok {
		return o, want, nil
	}
	plan, err := c.Runtime.Plan(answer.Version, want)
	if err != nil {
		return o, want, &Problem{ReasonConfig, err.Error(), err}
	}
	if o.Edits = plan.Edits; len(plan.Edits) > 0 {
		o.Changes, err = c.Journal.Plan(plan.Items)
	}
	return o, want, err
}

// Apply brings the runtime to what is wished, or back to where it was.
func (c *Configurer) Apply(ctx context.Context) (Outcome, error) {
	if o, done, err := c.resume(ctx); done || err != nil {
		return o, err
	}
	o, want, err := c.plan(ctx)
	if err != nil {
		return o, err
	}
	lacks := Lacks(o.Answer, o.Answer, want, c.Same)
	switch {
	case len(o.Edits) == 0 && len(lacks) == 0:
		return o, nil
	case len(o.Edits) == 0:
		return c.stale(ctx, o, want, lacks)
	}
	n := note{Before: o.Answer, Want: want, Edits: o.Edits, Plan: hash(o.Edits, want)}
	if was, err := c.refused(); err != nil || was.Plan == n.Plan && was.Version == o.Answer.Version {
		if err == nil {
			err = &Problem{ReasonRefused, was.Message + "; it is not tried again until the configuration, the runtime or what is wanted is another", nil}
		}
		return o, err
	}
	data, err := json.Marshal(n)
	if err != nil {
		return o, err
	}
	if err := c.step("write", func() error { return c.Journal.Begin(o.Changes, data) }); err != nil {
		return o, err
	}
	return c.finish(ctx, o, n)
}

// stale is of a runtime whose configuration is as wanted, and that does not do it.
func (c *Configurer) stale(ctx context.Context, o Outcome, want engine.Want, lacks []string) (Outcome, error) {
	what := o.Answer.Name + " at " + o.Answer.Socket + " is configured as wanted, but " + strings.Join(lacks, ", ")
	if was, err := c.refused(); err != nil || was.Plan == hash(nil, want) && was.Version == o.Answer.Version {
		if err == nil {
			err = &Problem{ReasonRefused, was.Message, nil}
		}
		return o, err
	}
	if may, why := c.Runtime.May(); !may {
		return o, &Problem{ReasonRestart, what + ": it has not been restarted since; " + why, nil}
	}
	answer, rest, err := c.restart(ctx, &o, nil, o.Answer, want)
	if err != nil || len(rest) == 0 {
		o.Answer = answer
		return o, err
	}
	message := what + ", also after a restart; see whether it reads another file than the one that was looked at, and give that with --runtime-config"
	if err := c.refuse(refusal{Plan: hash(nil, want), Version: answer.Version, Message: message}); err != nil {
		return o, err
	}
	return o, &Problem{ReasonRefused, message, nil}
}

// resume ends what an earlier process began.
func (c *Configurer) resume(ctx context.Context) (o Outcome, done bool, err error) {
	data, pending, err := c.Journal.Pending()
	if err != nil {
		return o, false, err
	}
	if !pending {
		was, err := c.refused()
		if err != nil || was.Undoing == nil {
			return o, false, err
		}
		o.Edits, o.Undone = was.Undoing.Edits, true
		o, err = c.back(ctx, o, *was.Undoing, was.Why)
		return o, true, err
	}
	var n note
	if err := json.Unmarshal(data, &n); err != nil || n.Plan == "" {
		// Nobody knows any more what for: what was there before is right.
		if err := c.Journal.Undo(); err != nil {
			return o, true, err
		}
		return o, false, nil
	}
	o.Edits = n.Edits
	answer, err := c.Runtime.Ask(ctx)
	if err == nil && len(Lacks(n.Before, answer, n.Want, c.Same)) == 0 {
		o.Answer = answer
		return o, true, c.commit()
	}
	o, err = c.finish(ctx, o, n)
	return o, true, err
}

// finish restarts the runtime, whose files are written, and looks what became of it.
func (c *Configurer) finish(ctx context.Context, o Outcome, n note) (Outcome, error) {
	if may, why := c.Runtime.May(); !may {
		return o, &Problem{ReasonRestart, fmt.Sprintf("%s is configured (%s) and has to be restarted; %s", n.Before.Name, keys(n.Edits), why), nil}
	}
	answer, lacks, err := c.restart(ctx, &o, n.Edits, n.Before, n.Want)
	if ctx.Err() != nil {
		return o, ctx.Err() // who comes next ends it
	}
	if err == nil && len(lacks) == 0 {
		o.Answer = answer
		return o, c.commit()
	}
	why := strings.Join(lacks, ", ")
	if err != nil {
		why = err.Error()
	}
	return c.undo(ctx, o, n, why)
}

// restart restarts the runtime and asks it until it says what is wanted, or its time
// is over; what it lacks then is returned.
func (c *Configurer) restart(ctx context.Context, o *Outcome, edits []engine.Edit, before cri.Answer, want engine.Want) (answer cri.Answer, lacks []string, err error) {
	o.Restarts++
	var did string
	err = c.step("restart", func() error {
		within, cancel := context.WithTimeout(ctx, doors*c.Patience)
		defer cancel()
		did, err = c.Runtime.Restart(within, edits)
		return err
	})
	if err != nil {
		return answer, nil, err
	}
	within, cancel := context.WithTimeout(ctx, c.Patience)
	defer cancel()
	err = c.step("verify", func() error {
		var said time.Time // when it answered first
		for pause := firstPause; ; pause = min(2*pause, lastPause) {
			if answer, err = c.Runtime.Ask(within); err == nil {
				if said.IsZero() {
					said = time.Now()
				}
				if lacks = Lacks(before, answer, want, c.Same); len(lacks) == 0 || time.Since(said) > c.Patience/settled {
					return nil
				}
			}
			select {
			case <-time.After(pause):
			case <-within.Done():
				if err != nil {
					err = fmt.Errorf("%s, and for %v since then: %w", did, c.Patience, errors.Join(errors.New(answer.Message), err))
				}
				return err
			}
		}
	})
	return answer, lacks, err
}

// How often a runtime that was just started is asked.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// doors is how many times its patience a restart may take: a unit stops before it
// starts, and each of that has 90 seconds by default (systemd-system.conf,
// DefaultTimeoutStopSec and DefaultTimeoutStartSec).
const doors = 3

// settled is the part of its patience after which what a runtime says is its last
// word: one that was told to reload answers for a moment as before.
const settled = 10

func (c *Configurer) commit() error {
	if err := c.Journal.Commit(); err != nil {
		return err
	}
	return c.Journal.Refuse(nil)
}

func (c *Configurer) refused() (r refusal, err error) {
	data, err := c.Journal.Refused()
	if err != nil || data == nil {
		return r, err
	}
	if unreadable := json.Unmarshal(data, &r) != nil; unreadable {
		r = refusal{} // it only spares a restart
	}
	return r, nil
}

func (c *Configurer) refuse(r refusal) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return c.Journal.Refuse(data)
}

func (c *Configurer) step(name string, do func() error) error {
	start := time.Now()
	err := do()
	if c.Tell != nil {
		c.Tell(name, time.Since(start))
	}
	return err
}

// hash tells one plan from another.
func hash(edits []engine.Edit, want engine.Want) string {
	data, err := json.Marshal(struct {
		Edits []engine.Edit
		Want  engine.Want
	}{edits, want})
	if err != nil {
		panic(err) // strings only
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
