package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/road"
	"github.com/gpuready/gpuready/operator/status"
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

// TestWhatAValidatorWritesOnItsNodeUntilItEndsGoesWithThePolicy has one that writes last
// when the operator has let go of its Node.
func TestWhatAValidatorWritesOnItsNodeUntilItEndsGoesWithThePolicy(t *testing.T) {
	w := newWorld(t)
	validator := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "validator", Namespace: namespace, Labels: map[string]string{"app": "nvidia-operator-validator"}}}
	validator.Spec.NodeName = "n1"
	w.create(gpuNode("n1"), simulated("policy"), validator)
	before := w.Labels("n1")
	w.step()
	w.gone(simulated("policy"))
	w.step()
	require.Equal(t, before, w.Labels("n1"))
	w.change("n1", func(n *corev1.Node) {
		n.Labels[label.GPUProduct] = "NVIDIA-L4"
		n.Annotations[label.Features] = "gpu.product"
	})
	w.gone(validator)
	w.step()
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestARefusedWriteIsTriedAgainAndNotBeforeItsTime(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.refuse = errors.New("no")
	w.show()
	w.turn(t.Context())
	first := len(w.writes)
	require.NotZero(t, first)
	require.False(t, w.alarm.IsZero())
	w.turn(t.Context())
	require.Len(t, w.writes, first, "not yet")
	w.refuse = nil
	w.step()
	require.NotEmpty(t, w.sets())
	require.Empty(t, w.step())
}

func rhcos(name, version string) *corev1.Node {
	return gpuNode(name, label.OSID, "rhcos", label.OSVersion, "4.12", label.OSTree, version, label.Kernel, "4.18.0-372.51.1.el8_6.x86_64")
}

func contained(name string) *v1.ClusterPolicy {
	p := simulated(name)
	p.Spec.Driver.Simulated = nil
	p.Spec.Driver.Repository, p.Spec.Driver.Image, p.Spec.Driver.Version = "registry.example", "driver", "535"
	return p
}

func TestEachVersionOfRHCOSHasItsDriverWhileANodeRunsIt(t *testing.T) {
	const old, next = "412.86.202303241612-0", "413.92.202306010245-0"
	w := newWorld(t)
	w.model.openShift, w.model.toolkit = true, map[string]string{old: "dtk@old"}
	w.changed()
	w.create(rhcos("n1", old), rhcos("n2", old), contained("policy"))
	w.step()
	require.Contains(t, w.sets(), "nvidia-driver-daemonset-"+old)
	w.change("n2", func(n *corev1.Node) { n.Labels[label.OSTree] = next })
	w.step()
	require.NotContains(t, w.sets(), "nvidia-driver-daemonset-"+next, "its tag is missing")
	require.Contains(t, fmt.Sprint(w.policy("policy").Status.Pools), next)
	w.model.toolkit[next] = "dtk@next"
	w.changed()
	w.step()
	require.Contains(t, w.sets(), "nvidia-driver-daemonset-"+next)
	require.Equal(t, next, w.node("n2").Labels[label.Driver])
	w.change("n1", func(n *corev1.Node) { n.Labels[label.OSTree] = next })
	w.step()
	require.NotContains(t, w.sets(), "nvidia-driver-daemonset-"+old, "its last node has gone")
	require.Empty(t, w.step())
}

func TestAPrecompiledDriverComesWhenItsImageDoes(t *testing.T) {
	yes := true
	p := contained("policy")
	p.Spec.Driver.UsePrecompiled = &yes
	image := "registry.example/driver:535-" + kernel + "-ubuntu22.04"
	w := newWorld(t)
	w.images[image] = driver.Presence{State: driver.Absent}
	w.changed()
	w.create(gpuNode("n1"), p)
	w.step()
	require.NotContains(t, fmt.Sprint(w.sets()), label.DriverApp)
	require.Contains(t, fmt.Sprint(w.policy("policy").Status.Pools), image)
	w.images[image] = driver.Presence{State: driver.Present}
	w.changed()
	w.step()
	require.Contains(t, w.sets(), label.DriverApp+"-"+kernel+"-ubuntu22.04")
	require.Equal(t, kernel+"-ubuntu22.04", w.node("n1").Labels[label.Driver])
}

func TestWhileNVIDIAsOperatorRunsNodesAreHandedOverOneByOne(t *testing.T) {
	w := newWorld(t)
	w.model.other[types.NamespacedName{Namespace: "gpu-operator", Name: otherName}] = true
	w.changed()
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"))
	require.Equal(t, []string{"status policy"}, w.step())
	require.Equal(t, v1.Disabled, w.policy("policy").Status.State)
	w.change("n1", func(n *corev1.Node) { n.Labels[label.HandOver] = label.Product })
	w.step()
	require.Equal(t, "simulated", w.node("n1").Labels[label.Driver])
	require.NotContains(t, w.node("n2").Labels, label.Driver)
	require.NotEqual(t, v1.Disabled, w.policy("policy").Status.State)
	require.Empty(t, w.step())
}

func TestThePolicySaysWhatAnUpgradeWaitsFor(t *testing.T) {
	w := newWorld(t)
	policy := simulated("policy")
	policy.Spec.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
	w.create(gpuNode("n1", label.Driver, "simulated"), policy, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: namespace, UID: "old", Labels: map[string]string{
			"app": label.DriverApp, label.PartOf: label.Product, label.State: string(road.Driver), label.DriverDigest: "another",
		}},
		Spec: corev1.PodSpec{NodeName: "n1"},
	})
	w.step()
	require.Equal(t, []v1.UpgradeWait{{Node: "n1", Message: "its pods to be known"}}, w.policy("policy").Status.Upgrade.Waiting)
	w.blocked = map[string]string{"n1": "pod team/trainer cannot be evicted: a budget"}
	w.step()
	got := w.policy("policy").Status
	require.Equal(t, []v1.UpgradeWait{{Node: "n1", Message: w.blocked["n1"]}}, got.Upgrade.Waiting)
	require.Contains(t, meta.FindStatusCondition(got.Conditions, v1.ConditionProgressing).Message, "n1: "+w.blocked["n1"])
}

func TestAnObjectOfSomebodyElsesIsNotTaken(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "nvidia-device-plugin-daemonset", Namespace: namespace}})
	require.NotContains(t, w.step(), "apply nvidia-device-plugin-daemonset")
	require.Contains(t, fmt.Sprint(w.policy("policy").Status.Conditions), "is not this operator's")
}

func TestTheDriverToolkitsImagesAreRead(t *testing.T) {
	u := untyped(imageStreamKind)
	u.Object["spec"] = map[string]any{"tags": []any{
		map[string]any{"name": "412", "from": map[string]any{"kind": "DockerImage", "name": "quay.io/a@sha256:1"}, "annotations": map[string]any{}},
		map[string]any{"name": "latest", "from": map[string]any{"kind": "ImageStreamTag", "name": "412"}},
	}}
	u.Object["status"] = map[string]any{"tags": []any{map[string]any{"tag": "411", "items": []any{map[string]any{"dockerImageReference": "quay.io/a@sha256:0"}}}}}
	stripped, err := stripImageStream(u)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"412": "quay.io/a@sha256:1", "411": "quay.io/a@sha256:0"}, tags(stripped.(*unstructured.Unstructured)))
}

func TestANodeThatMayNotBePatchedIsToldOfInTheStatus(t *testing.T) {
	w := newWorld(t)
	w.create(simulated("policy"), gpuNode("n1"))
	w.step()
	w.create(gpuNode("n2")) // no object is another for it
	w.refuse = errors.New(`nodes "n2" is forbidden: User "u" cannot patch resource "nodes" in API group "" at the cluster scope`)
	for range 5 {
		w.now = w.now.Add(time.Hour) // past all pauses
		w.show()
		w.turn(w.Context())
		w.drain()
	}
	c := meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded)
	require.NotNil(t, c)
	require.Equal(t, status.ReasonRights, c.Reason)
	require.Contains(t, c.Message, "patch nodes in the cluster")
	w.refuse = nil
	w.writer.queue.Add("n2")
	w.drain()
	w.now = w.now.Add(time.Hour)
	w.step()
	require.Equal(t, metav1.ConditionFalse, meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded).Status)
}
