package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/upgrade"
)

func TestOfManyNodesThatIsLookedAtWhichHasChanged(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), gpuNode("n2"), gpuNode("n3"), simulated("policy"))
	w.step()
	require.Empty(t, w.roster.busy)
	w.change("n2", func(n *corev1.Node) { n.Labels[label.PCI] = "false" })
	w.show()
	scene := w.scene
	w.turn(t.Context())
	require.Equal(t, []string{"n2"}, slices.Collect(maps.Keys(w.plan.Settled)))
	require.Same(t, scene, w.scene, "what concerns all of them is as it was")
}

func TestANodeThatIsAsItWasMakesNoPass(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.step()
	plan := w.plan
	w.change("n1", func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now) })
	require.Empty(t, w.step())
	require.Same(t, plan, w.plan)
}

// An operator that has followed all that happened and one that has just been started want
// the same.
func TestWhoFollowedAndWhoComesAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		w.create(simulated("policy"))
		for range rapid.IntRange(1, 5).Draw(rt, "turns") {
			for range rapid.IntRange(1, 3).Draw(rt, "at once") {
				w.happen(rt)
			}
			w.step()
		}
		before := w.policy("policy").Status
		other := w.model.other
		w.start()
		w.model.other = other
		require.Empty(t, w.step())
		require.Equal(t, before.Nodes, w.policy("policy").Status.Nodes)
		require.Equal(t, upgrade.Make(w.whole()).Counts, w.plan.Counts)
	})
}

// whole is the input of a plan that looks at every node.
func (w *world) whole() upgrade.Input {
	in := upgrade.Input{Policy: w.scene.rolls, Targets: w.scene.targets, Sets: w.scene.sets, Drivers: map[string]*upgrade.Driver{}, Now: w.now}
	for _, on := range w.model.nodes {
		if on.node.Served(w.scene.handOver) {
			in.Nodes = append(in.Nodes, on.node)
		}
	}
	return in
}

// happen has something happen to one of a few nodes, or to all of them.
func (w *world) happen(t *rapid.T) {
	name := fmt.Sprint("n", rapid.IntRange(0, 4).Draw(t, "node"))
	if w.Get(w.Context(), types.NamespacedName{Name: name}, &corev1.Node{}) != nil {
		n := gpuNode(name)
		n.UID = types.UID(fmt.Sprint(name, "-", w.now.UnixNano(), len(w.writes))) // another than before
		w.create(n)
		return
	}
	set := func(key string, values ...string) {
		value := rapid.SampledFrom(values).Draw(t, key)
		w.change(name, func(n *corev1.Node) { n.Labels[key] = value })
	}
	switch rapid.IntRange(0, 7).Draw(t, "what") {
	case 0:
		w.gone(gpuNode(name))
	case 1:
		set(label.PCI, "true", "false")
	case 2:
		set(label.Operands, "true", "false")
	case 3:
		set(label.HandOver, label.Product, "nobody")
	case 4:
		set(label.Kernel, kernel, "6.8.0-45-generic")
	case 5:
		w.change(name, func(n *corev1.Node) {
			n.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned")
			n.Status.Conditions[0].Status = rapid.SampledFrom([]corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse}).Draw(t, "ready")
		})
	case 6:
		key := types.NamespacedName{Namespace: "gpu-operator", Name: otherName}
		if w.model.other[key] {
			delete(w.model.other, key)
		} else {
			w.model.other[key] = true
		}
		w.changed()
	case 7:
		p := w.policy("policy")
		p.Spec.DCGM.Enabled = new(rapid.Bool().Draw(t, "dcgm"))
		p.Generation++
		if err := w.Update(w.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
}
