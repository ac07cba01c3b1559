package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

func TestUnchangedNodeCausesNoPass(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.settle()
	plan := w.plan
	w.change("n1", func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now) })
	require.Empty(t, w.settle())
	require.Same(t, plan, w.plan)
}

// An operator that has followed all changes and one that has just started compute the same
// state.
func TestRestartedOperatorReachesTheSameState(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t)
			w.create(simulated("policy"))
			for range 1 + r.IntN(6) {
				for range 1 + r.IntN(3) {
					w.mutate(r)
				}
				w.settle()
			}
			before, counts := w.policy("policy").Status, w.plan.Counts
			other := w.model.nvidiaOperators
			w.start()
			w.model.nvidiaOperators = other
			require.Empty(t, w.settle())
			require.Equal(t, before.Nodes, w.policy("policy").Status.Nodes)
			require.Equal(t, counts, w.plan.Counts)
		})
	}
}

// mutate changes one of a few nodes at random, or all of them.
func (w *world) mutate(r *rand.Rand) {
	name := fmt.Sprint("n", r.IntN(5))
	if w.Get(w.Context(), types.NamespacedName{Name: name}, &corev1.Node{}) != nil {
		n := gpuNode(name)
		n.UID = types.UID(fmt.Sprint(name, "-", w.now.UnixNano(), len(w.writes))) // another than before
		w.create(n)
		return
	}
	yes := r.IntN(2) == 0
	set := func(key, value, other string) {
		w.change(name, func(n *corev1.Node) {
			n.Labels[key] = other
			if yes {
				n.Labels[key] = value
			}
		})
	}
	switch r.IntN(8) {
	case 0:
		w.deleteObject(gpuNode(name))
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
			n.Spec.Unschedulable = r.IntN(2) == 0
			n.Status.Conditions[0].Status = corev1.ConditionFalse
			if yes {
				n.Status.Conditions[0].Status = corev1.ConditionTrue
			}
		})
	case 6:
		key := types.NamespacedName{Namespace: "gpu-operator", Name: label.NVIDIADeployment}
		if yes {
			w.model.nvidiaOperators[key] = true
		} else {
			delete(w.model.nvidiaOperators, key)
		}
		w.markChanged()
	case 7:
		p := w.policy("policy")
		p.Spec.DCGM.Enabled = &yes
		p.Generation++
		require.NoError(w, w.Update(w.Context(), p))
	}
}

func TestChangeIsReportedOnceWithItsConsequences(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"))
	w.settle()
	w.writes, w.now = nil, w.now.Add(reportEvery)
	w.change("n1", func(n *corev1.Node) { n.Labels[label.PCI] = "false" })
	w.syncModel()
	w.runDue(t.Context())
	w.writePatches()
	require.Equal(t, []string{"patch n1"}, w.writes)
	require.Equal(t, w.now.Add(minRest), w.nextDue())
	w.now = w.now.Add(minRest)
	w.syncModel()
	w.runDue(t.Context())
	require.Equal(t, []string{"patch n1", "status policy"}, w.writes)
	plan := w.plan
	w.now = w.now.Add(reportEvery)
	w.syncModel() // the status, which is its own
	w.runDue(t.Context())
	require.Len(t, w.writes, 2)
	require.Same(t, plan, w.plan)
	require.True(t, w.nextDue().IsZero(), "until there is news")
}

func TestFailedRenderIsNotRetriedByTimer(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"))
	w.settle()
	w.rendered.err = errors.New("no")
	w.change("n2", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	for range 3 {
		w.syncModel()
		w.now = w.now.Add(reportEvery)
		w.runDue(t.Context())
	}
	require.ErrorContains(t, w.desired.err, "no")
	require.True(t, w.nextDue().IsZero(), "until there is news")
}

func TestChangesAreGatheredAfterAPass(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.settle()
	w.now = w.now.Add(time.Minute)
	change := func() {
		w.change("n1", func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
		w.syncModel()
	}
	change()
	require.False(t, w.nextDue().After(w.now), "the cluster was quiet")
	w.runDue(t.Context())
	plan := w.plan
	for range 3 {
		change()
		require.Equal(t, w.now.Add(minRest), w.nextDue())
		w.runDue(t.Context())
		require.Same(t, plan, w.plan)
	}
	w.now = w.now.Add(minRest)
	w.runDue(t.Context())
	require.NotSame(t, plan, w.plan)
	require.Equal(t, 400*time.Millisecond, restAfterPass(2000))
	require.Equal(t, maxRest, restAfterPass(20000))
}

// The validator's silence is noticed although nothing else changes.
func TestSilentValidatorIsReported(t *testing.T) {
	w := newWorld(t)
	n := gpuNode("n1")
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now)
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionFalse, Message: "toolkit: no", LastHeartbeatTime: metav1.NewTime(w.now), LastTransitionTime: metav1.NewTime(w.now)})
	w.create(n, simulated("policy"))
	w.settle()
	require.Equal(t, string(progress.Toolkit), w.policy("policy").Status.NotReady[0].State)
	for range 3 {
		w.now = w.now.Add(5 * time.Minute)
		w.change("n1", func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now) })
		w.settle()
	}
	require.Equal(t, string(progress.Driver), w.policy("policy").Status.NotReady[0].State, "its proof of the driver does not count any more")
}

// The labels of thousands of nodes are not compared again after each repeated report.
func TestRepeatedReportKeepsThePlacement(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.settle()
	placed := w.model.nodes["n1"].placed
	require.NotNil(t, placed)
	w.change("n1", func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now) })
	w.settle()
	require.Same(t, placed, w.model.nodes["n1"].placed)
	w.change("n1", func(n *corev1.Node) { n.Labels[label.Deploy+"device-plugin"] = "false" })
	w.syncModel()
	require.Nil(t, w.model.nodes["n1"].placed)
}

func TestChangesInSizeAreReported(t *testing.T) {
	w := newWorld(t)
	var sizes [][2]int
	w.Sized = func(nodes, pods int) { sizes = append(sizes, [2]int{nodes, pods}) }
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"))
	w.settle()
	require.Equal(t, [2]int{2, 0}, sizes[len(sizes)-1])
	told := len(sizes)
	w.change("n1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	w.settle()
	require.Len(t, sizes, told)
	require.NoError(t, w.Delete(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	w.settle()
	require.Equal(t, [2]int{1, 0}, sizes[len(sizes)-1])
}
