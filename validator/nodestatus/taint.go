package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/validator/check"
)

// Taint configures the handling of startup taints.
type Taint struct {
	Keys   []string      // removed, whatever their effect, once pods may be scheduled; none: taints stay
	Manage bool          // put the first one back, NoSchedule, when pods may no longer be scheduled
	Settle time.Duration // how long that must last before
}

// taintState is the wanted state of the startup taint.
type taintState string

const (
	taintKeep    taintState = ""      // unchanged
	taintAbsent  taintState = "gone"  // pods may be scheduled
	taintPresent taintState = "there" // pods may not be scheduled, and could not for a while
)

// wantedTaint returns the wanted state by the facts, and the time when it changes without
// other facts. The taint comes back if a layer is refused now, and some layer has been
// refused since Settle ago. A restart is over before that, and a pending proof is waited for.
func (p *Publisher) wantedTaint(f Facts, now time.Time) (w taintState, later time.Time) {
	if f.usable() {
		p.unusableSince = time.Time{}
		return taintAbsent, later
	}
	refused := slices.ContainsFunc(f.Outcomes, func(o check.Outcome) bool { return o.Kind == check.Failed })
	if !p.Taint.Manage || !refused {
		return taintKeep, later
	}
	if p.unusableSince.IsZero() {
		p.unusableSince = now
	}
	if due := p.unusableSince.Add(p.Taint.Settle); due.After(now) {
		return taintKeep, due
	}
	return taintPresent, later
}

// applyTaint applies the wanted state.
func (p *Publisher) applyTaint(ctx context.Context, node *corev1.Node, w taintState) error {
	taints := node.Spec.Taints
	own := func(t corev1.Taint) bool { return slices.Contains(p.Taint.Keys, t.Key) }
	there := slices.ContainsFunc(taints, own)
	switch {
	case len(p.Taint.Keys) == 0:
		return nil
	case w == taintAbsent && there:
		return p.setTaints(ctx, node, slices.DeleteFunc(slices.Clone(taints), own), "removed the startup taint")
	case w == taintPresent && !there:
		back := corev1.Taint{Key: p.Taint.Keys[0], Effect: corev1.TaintEffectNoSchedule}
		return p.setTaints(ctx, node, append(slices.Clone(taints), back), "put the startup taint back")
	}
	return nil
}

// setTaints replaces the Node's taints if they are still the ones read, so that no other
// change is lost.
func (p *Publisher) setTaints(ctx context.Context, node *corev1.Node, taints []corev1.Taint, what string) error {
	const path = "/spec/taints"
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// A test for null succeeds if there are no taints.
	test, change := op{"test", path, nil}, op{"replace", path, taints}
	if len(node.Spec.Taints) > 0 {
		test.Value = node.Spec.Taints
	} else {
		change.Op = "add"
	}
	if len(taints) == 0 {
		change = op{"remove", path, nil}
	}
	patch, err := json.Marshal([]op{test, change})
	if err != nil {
		return err
	}
	if err := p.Client.PatchNode(ctx, p.Node, patch); err != nil {
		return fmt.Errorf("%s of Node %s: %w", p.Taint.Keys[0], p.Node, err)
	}
	p.Log.Info(what, "taint", p.Taint.Keys[0])
	return nil
}
