package voice

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/validator/check"
)

// Taint is what is done about startup taints.
type Taint struct {
	Keys   []string      // that are removed, whatever their effect, once pods may come; none: taints are left alone
	Manage bool          // the first of them is put back, NoSchedule, when pods may come no more
	Settle time.Duration // how long they may not before that
}

// wish is what is to be true of the startup taint.
type wish string

const (
	wishNone wish = ""      // what is there stays
	wishGone wish = "gone"  // pods may come
	wishBack wish = "there" // they may not, and have not for a while
)

// taintWish says what the facts come to, and when they come to something else
// although they stay the same. A layer has to be refused now, and some layer must
// have been ever since Settle ago: what restarts comes back before, and a proof
// that is on its way is waited for.
func (v *Voice) taintWish(f Facts, now time.Time) (w wish, later time.Time) {
	if f.usable() {
		v.unusable = time.Time{}
		return wishGone, later
	}
	refused := slices.ContainsFunc(f.Outcomes, func(o check.Outcome) bool { return o.Kind == check.Failed })
	if !v.Taint.Manage || !refused {
		return wishNone, later
	}
	if v.unusable.IsZero() {
		v.unusable = now
	}
	if due := v.unusable.Add(v.Taint.Settle); due.After(now) {
		return wishNone, due
	}
	return wishBack, later
}

// sayTaint makes the wish true.
func (v *Voice) sayTaint(ctx context.Context, node *corev1.Node, w wish) error {
	taints := node.Spec.Taints
	ours := func(t corev1.Taint) bool { return slices.Contains(v.Taint.Keys, t.Key) }
	there := slices.ContainsFunc(taints, ours)
	switch {
	case len(v.Taint.Keys) == 0:
		return nil
	case w == wishGone && there:
		return v.setTaints(ctx, node, slices.DeleteFunc(slices.Clone(taints), ours), "removed the startup taint")
	case w == wishBack && !there:
		back := corev1.Taint{Key: v.Taint.Keys[0], Effect: corev1.TaintEffectNoSchedule}
		return v.setTaints(ctx, node, append(slices.Clone(taints), back), "put the startup taint back")
	}
	return nil
}

// setTaints makes the Node's taints those, if they still are what was read: nobody's
// change is lost.
func (v *Voice) setTaints(ctx context.Context, node *corev1.Node, taints []corev1.Taint, what string) error {
	const path = "/spec/taints"
	type op struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// That there are none is tested by null.
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
	if err := v.Client.PatchNode(ctx, v.Node, patch); err != nil {
		return fmt.Errorf("%s of Node %s: %w", v.Taint.Keys[0], v.Node, err)
	}
	v.Log.Info(what, "taint", v.Taint.Keys[0])
	return nil
}
