package health

import (
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// askedXID is an XID of which the driver decides whether the GPU needs a recovery.
type askedXID struct {
	fault gpu.Fault // zero: there is none
	at    time.Time
}

// askPatience bounds how long after an XID a recovery that the driver asks for counts as its consequence. The
// driver sets its recovery action at about the same time, in no fixed order.
const askPatience = time.Minute

// canAsk reports whether the driver can say what it wants of the GPU.
func (g GPU) canAsk() bool { return g.Device.Recovery != "" }

// recordQuestion records an XID of which the driver decides. Where the driver cannot say, the XID counts.
func (g GPU) recordQuestion(fault gpu.Fault, needs evidence, now time.Time) GPU {
	if !g.canAsk() {
		return g.addMark(wholeGPU, fault, needs, now)
	}
	g.asked = askedXID{fault, now}
	return g
}

// applyAnswer records the XID as the cause, if the driver now asks for a recovery or cannot say.
func (g GPU) applyAnswer(fault gpu.Fault, now time.Time) GPU {
	if asked := g.asked; asked.fault.Reason != "" {
		switch {
		case fault.Reason == "" && !g.canAsk(): // not any more
			g.asked = askedXID{}
			return g.addMark(wholeGPU, asked.fault, reset, now)
		case now.Sub(asked.at) > askPatience:
			g.asked = askedXID{}
		case fault.Reason == gpu.ReasonResetNeeded:
			g.asked = askedXID{}
			return g.addMark(wholeGPU, asked.fault, reset, now)
		}
	}
	return g
}

// Ignores reports whether an XID is not held against its GPU: by the policy, or because the driver decides and has
// not asked for anything. Call it after the event was applied.
func (s State) Ignores(e gpu.Event) bool {
	switch s.policy.Rule(e.XID).Action {
	case gpu.ActionIgnore:
		return true
	case gpu.ActionAsk:
		return e.UUID != "" && s.gpus[e.UUID].canAsk()
	}
	return false
}
