package check

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpuready/gpuready/internal/readiness"
)

// Pipeline is the sequence of steps. The others build on the driver's; each is run only if
// its Basis passed.
type Pipeline struct {
	Driver DriverCheck
	Steps  []Step
	// Begin, when not nil, is called before the check of each layer.
	Begin func(readiness.Layer)
	// End, when not nil, is called with each outcome as soon as it is known. It is not called
	// for an interrupted check, nor for the layers that depend on it.
	End func(Outcome)
}

// DriverCheck checks layer driver and returns the proven driver.
type DriverCheck func(context.Context, Node) (Driver, Outcome)

// LayerCheck checks another layer. Driver is the proven one.
type LayerCheck func(context.Context, Node, Driver) Outcome

// Step checks one layer above the driver, or an optional layer.
type Step struct {
	Layer readiness.Layer
	// Check is nil where the layer is not wanted; its outcome is then NotAsked.
	Check LayerCheck
	Basis Basis
}

// Basis names the steps that a step builds on. If one of them did not pass, the step is not run.
type Basis int

// The values of Basis. Only a step that builds on all blocks the steps after it.
const (
	OnAll    Basis = iota // all steps of the pipeline before it
	OnDriver              // the driver alone
	OnHost                // nothing: Driver is its zero value where that was not proven
)

// Run checks the layers, nil for all of them. The driver is always among them, since the
// others build on it.
func (p Pipeline) Run(ctx context.Context, node Node, layers []readiness.Layer) []Outcome {
	var driver Driver
	out := []Outcome{p.runTimed(ctx, readiness.Driver, func() (o Outcome) {
		driver, o = p.Driver(ctx, node)
		return o
	})}
	blocked := blocks(out[0])
	for _, s := range p.Steps {
		if layers != nil && !slices.Contains(layers, s.Layer) {
			continue
		}
		stopped := map[Basis]*Outcome{OnAll: blocked, OnDriver: blocks(out[0])}[s.Basis]
		switch {
		case s.Check == nil:
			out = append(out, notAsked(s.Layer))
		case stopped != nil:
			o := stopped.notRunAfter(s.Layer)
			if !stopped.interrupted() {
				p.callEnd(o)
			}
			out = append(out, o)
		default:
			o := p.runTimed(ctx, s.Layer, func() Outcome { return s.Check(ctx, node, driver) })
			out = append(out, o)
			if s.Basis == OnAll {
				blocked = blocks(o)
			}
		}
	}
	return out
}

func (p Pipeline) runTimed(ctx context.Context, l readiness.Layer, check func() Outcome) Outcome {
	if p.Begin != nil {
		p.Begin(l)
	}
	start := time.Now()
	o := check()
	if o.Kind == Failed && ctx.Err() != nil {
		// The failure of an interrupted check says nothing about the layer.
		o = Fail(ReasonInterrupted, fmt.Sprintf("the check was cut off: %v", context.Cause(ctx)), "run it again")
	}
	o.Layer, o.Elapsed = l, time.Since(start)
	if !o.interrupted() {
		p.callEnd(o)
	}
	return o
}

func (p Pipeline) callEnd(o Outcome) {
	if p.End != nil {
		p.End(o)
	}
}

func (o Outcome) interrupted() bool {
	return o.NotReady != nil && o.NotReady.Reason == ReasonInterrupted
}

func blocks(o Outcome) *Outcome {
	if o.Kind == Passed {
		return nil
	}
	return &o
}

// notRunAfter returns the Outcome of a layer that was not checked because o did not pass.
func (o Outcome) notRunAfter(l readiness.Layer) Outcome {
	if o.Kind == Absent {
		return Outcome{Layer: l, Kind: Absent, NotReady: o.NotReady}
	}
	return Outcome{Layer: l, Kind: NotRun, NotReady: &readiness.NotReady{
		Reason:  ReasonNotRun,
		Message: fmt.Sprintf("not run: %s is not ready (%s)", o.Layer, o.NotReady.Reason),
		Action:  fmt.Sprintf("see %s", o.Layer),
	}}
}

// notAsked returns the Outcome of an optional layer that is not wanted.
func notAsked(l readiness.Layer) Outcome {
	return Outcome{Layer: l, Kind: NotWanted, NotReady: &readiness.NotReady{
		Reason: ReasonNotWanted, Message: "not asked for", Action: "to have it checked, say --optional " + string(l),
	}}
}
