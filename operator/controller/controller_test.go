package controller

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
)

// count is how many of the writes begin so.
func count(writes []string, prefix string) (n int) {
	for _, w := range writes {
		if strings.HasPrefix(w, prefix) {
			n++
		}
	}
	return n
}

func TestTheFirstPassWritesEachObjectAndEachNodeOnceAndTheSecondNothing(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"))
	writes := w.step()
	require.Equal(t, 2, count(writes, "patch "))
	require.Equal(t, len(w.model.objects), count(writes, "apply "))
	require.Contains(t, w.sets(), "nvidia-driver-daemonset")
	require.Equal(t, "simulated", w.node("n1").Labels[label.Driver])
	require.Equal(t, "true", w.node("n1").Labels[label.Deploy+"device-plugin"])
	require.Empty(t, w.step())
	w.start()
	require.Empty(t, w.step(), "a process that was started anew")
}

func TestAPolicyThatGoesTakesEverythingWithIt(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	before := w.Labels("n1")
	w.step()
	require.NotEqual(t, before, w.Labels("n1"))
	w.gone(simulated("policy"))
	w.step()
	require.Empty(t, w.sets())
	require.Equal(t, before, w.Labels("n1"))
	require.Empty(t, w.node("n1").Annotations)
	require.Empty(t, w.step())
}

func (w *world) Labels(name string) map[string]string {
	return w.node(name).Labels
}

func TestTheOldestPolicyIsInForceAndTheOtherSaysSo(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("a"), simulated("b"))
	w.step()
	require.Equal(t, v1.Ignored, w.policy("b").Status.State)
	require.Equal(t, v1.NotReady, w.policy("a").Status.State)
	require.Empty(t, w.step())
	w.gone(simulated("a"))
	w.step()
	require.Equal(t, v1.NotReady, w.policy("b").Status.State, "in force now")
	require.NotEmpty(t, w.sets())
	require.Empty(t, w.step())
}

func TestAnOperandThatIsDeletedByHandComesBackAtOnce(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.step()
	for _, o := range w.model.live() {
		w.gone(o)
		require.Equal(t, []string{"apply " + o.GetName()}, w.step())
	}
}

func TestNodesComeGoAndChange(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.step()
	w.create(gpuNode("n2"))
	require.ElementsMatch(t, []string{"patch n2", "status policy"}, w.step())
	w.gone(gpuNode("n1"))
	require.Equal(t, []string{"status policy"}, w.step())
	w.change("n2", func(n *corev1.Node) { delete(n.Labels, label.Deploy+"device-plugin") })
	require.Contains(t, w.step(), "patch n2", "a label that was removed by hand")
	require.Equal(t, "true", w.node("n2").Labels[label.Deploy+"device-plugin"])
	w.change("n2", func(n *corev1.Node) { n.Labels[label.Operands] = "false" })
	w.step()
	require.NotContains(t, w.node("n2").Labels, label.Deploy+"device-plugin")
	require.NotContains(t, w.node("n2").Labels, label.Driver)
	require.Empty(t, w.step())
}
