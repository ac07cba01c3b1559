package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/status"
	"github.com/gpuready/gpuready/operator/upgrade"
	"github.com/gpuready/gpuready/test/lab/leak"
)

// count counts the writes with a prefix.
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
	writes := w.settle()
	require.Equal(t, 2, count(writes, "patch "))
	require.Equal(t, len(w.model.objects), count(writes, "apply "))
	require.Contains(t, w.sets(), "nvidia-driver-daemonset")
	require.Equal(t, "simulated", w.node("n1").Labels[label.Driver])
	require.Equal(t, "true", w.node("n1").Labels[label.Deploy+"device-plugin"])
	require.Empty(t, w.settle())
	w.start()
	require.Empty(t, w.settle(), "a process that was started anew")
}

func TestDeletingThePolicyRemovesEverything(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	before := w.Labels("n1")
	w.settle()
	require.NotEqual(t, before, w.Labels("n1"))
	w.deleteObject(simulated("policy"))
	w.settle()
	require.Empty(t, w.sets())
	require.Equal(t, before, w.Labels("n1"))
	require.Empty(t, w.node("n1").Annotations)
	require.Empty(t, w.settle())
}

// The validator writes its last labels after the operator has released the Node.
func TestLateValidatorLabelsAreRemovedWithThePolicy(t *testing.T) {
	w := newWorld(t)
	validator := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "validator", Namespace: namespace, Labels: map[string]string{"app": "nvidia-operator-validator"}}}
	validator.Spec.NodeName = "n1"
	w.create(gpuNode("n1"), simulated("policy"), validator)
	before := w.Labels("n1")
	w.settle()
	w.deleteObject(simulated("policy"))
	w.settle()
	require.Equal(t, before, w.Labels("n1"))
	w.change("n1", func(n *corev1.Node) {
		n.Labels[label.GPUProduct] = "NVIDIA-L4"
		n.Annotations[label.Features] = "gpu.product"
	})
	w.deleteObject(validator)
	w.settle()
	require.Equal(t, before, w.Labels("n1"))
	require.Empty(t, w.node("n1").Annotations)
	require.Empty(t, w.settle())
}

func (w *world) Labels(name string) map[string]string {
	return w.node(name).Labels
}

func TestOldestPolicyIsInForceAndOthersAreIgnored(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("a"), simulated("b"))
	w.settle()
	require.Equal(t, v1.Ignored, w.policy("b").Status.State)
	require.Equal(t, v1.NotReady, w.policy("a").Status.State)
	require.Empty(t, w.settle())
	w.deleteObject(simulated("a"))
	w.settle()
	require.Equal(t, v1.NotReady, w.policy("b").Status.State, "in force now")
	require.NotEmpty(t, w.sets())
	require.Empty(t, w.settle())
}

func TestDeletedOperandIsRecreatedAtOnce(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.settle()
	for _, o := range w.model.ownedObjects() {
		w.deleteObject(o)
		require.Equal(t, []string{"apply " + o.GetName()}, w.settle())
	}
}

func TestNodesAreAddedRemovedAndChanged(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.settle()
	w.create(gpuNode("n2"))
	require.ElementsMatch(t, []string{"patch n2", "status policy"}, w.settle())
	w.deleteObject(gpuNode("n1"))
	require.Equal(t, []string{"status policy"}, w.settle())
	w.change("n2", func(n *corev1.Node) { delete(n.Labels, label.Deploy+"device-plugin") })
	require.Contains(t, w.settle(), "patch n2", "a label that was removed by hand")
	require.Equal(t, "true", w.node("n2").Labels[label.Deploy+"device-plugin"])
	w.change("n2", func(n *corev1.Node) { n.Labels[label.Operands] = "false" })
	w.settle()
	require.NotContains(t, w.node("n2").Labels, label.Deploy+"device-plugin")
	require.NotContains(t, w.node("n2").Labels, label.Driver)
	require.Empty(t, w.settle())
}

func TestMain(m *testing.M) { leak.Main(m) }

func TestRefusedWriteIsRetriedAfterItsBackoff(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"))
	w.refuse = errors.New("no")
	w.syncModel()
	w.runDue(t.Context())
	first := len(w.writes)
	require.NotZero(t, first)
	w.drainInbox()
	require.False(t, w.nextPass.IsZero())
	w.runDue(t.Context())
	require.Len(t, w.writes, first, "not yet")
	w.refuse = nil
	w.settle()
	require.NotEmpty(t, w.sets())
	require.Empty(t, w.settle())
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
	w.markChanged()
	w.create(rhcos("n1", old), rhcos("n2", old), contained("policy"))
	w.settle()
	require.Contains(t, w.sets(), "nvidia-driver-daemonset-"+old)
	w.change("n2", func(n *corev1.Node) { n.Labels[label.OSTree] = next })
	w.settle()
	require.NotContains(t, w.sets(), "nvidia-driver-daemonset-"+next, "its tag is missing")
	require.Contains(t, fmt.Sprint(w.policy("policy").Status.Pools), next)
	w.model.toolkit[next] = "dtk@next"
	w.markChanged()
	w.settle()
	require.Contains(t, w.sets(), "nvidia-driver-daemonset-"+next)
	require.Equal(t, next, w.node("n2").Labels[label.Driver])
	w.change("n1", func(n *corev1.Node) { n.Labels[label.OSTree] = next })
	w.settle()
	require.NotContains(t, w.sets(), "nvidia-driver-daemonset-"+old, "its last node has gone")
	require.Empty(t, w.settle())
}

func TestPrecompiledDriverIsDeployedOnceItsImageExists(t *testing.T) {
	yes := true
	p := contained("policy")
	p.Spec.Driver.UsePrecompiled = &yes
	image := "registry.example/driver:535-" + kernel + "-ubuntu22.04"
	w := newWorld(t)
	w.images[image] = driver.Presence{State: driver.Absent}
	w.markChanged()
	w.create(gpuNode("n1"), p)
	w.settle()
	require.NotContains(t, fmt.Sprint(w.sets()), label.DriverApp)
	require.Contains(t, fmt.Sprint(w.policy("policy").Status.Pools), image)
	w.images[image] = driver.Presence{State: driver.Present}
	w.markChanged()
	w.settle()
	require.Contains(t, w.sets(), label.DriverApp+"-"+kernel+"-ubuntu22.04")
	require.Equal(t, kernel+"-ubuntu22.04", w.node("n1").Labels[label.Driver])
}

func TestWhileNVIDIAsOperatorRunsNodesAreHandedOverOneByOne(t *testing.T) {
	w := newWorld(t)
	w.model.nvidiaOperators[types.NamespacedName{Namespace: "gpu-operator", Name: label.NVIDIADeployment}] = true
	w.markChanged()
	w.create(gpuNode("n1"), gpuNode("n2"), simulated("policy"))
	require.Empty(t, w.settle())
	w.change("n1", func(n *corev1.Node) { n.Labels[label.HandOver] = label.Product })
	w.settle()
	require.Equal(t, "simulated", w.node("n1").Labels[label.Driver])
	require.NotContains(t, w.node("n2").Labels, label.Driver)
	require.Empty(t, w.policy("policy").Status.State)
	require.Empty(t, w.settle())

	// Pods on n1 continue when NVIDIA's operator has ended: labels come before DaemonSets select by them.
	clear(w.model.nvidiaOperators)
	w.markChanged()
	writes := w.settle()
	labelled, placed, reported := slices.Index(writes, "patch n1"), slices.Index(writes, "apply nvidia-device-plugin-daemonset"), slices.Index(writes, "status policy")
	require.GreaterOrEqual(t, labelled, 0, writes)
	require.Greater(t, placed, labelled, writes)
	require.Greater(t, reported, placed, writes)
	require.NotEmpty(t, w.policy("policy").Status.Namespace)
}

// The label of the hand-over may stay for long. A label that is missing later, as after another operand
// was enabled, is no reason to take the pods from nodes that were never handed over.
func TestMissingLabelLongAfterTheHandOverMovesNoDaemonSet(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1", label.HandOver, label.Product), gpuNode("n2"), simulated("policy"))
	w.settle()
	w.change("n1", func(n *corev1.Node) { delete(n.Labels, label.Deploy+"device-plugin") })
	writes := w.settle()
	require.Contains(t, writes, "patch n1")
	for _, write := range writes {
		require.NotContains(t, write, "apply ")
	}
	require.Equal(t, "true", w.node("n1").Labels[label.Deploy+"device-plugin"])
}

// A request that failed once does not end the hand-over of a node early.
func TestANodeIsLabelledBeforeDaemonSetsAreMovedAlsoAfterARefusal(t *testing.T) {
	w := newWorld(t)
	nvidias := types.NamespacedName{Namespace: "gpu-operator", Name: label.NVIDIADeployment}
	w.model.nvidiaOperators[nvidias] = true
	w.markChanged()
	w.create(gpuNode("n1", label.HandOver, label.Product), simulated("policy"))
	w.settle()
	w.writes = nil
	clear(w.model.nvidiaOperators)
	w.model.unwritten["n1"] = errors.New("timeout")
	w.markChanged()
	writes := w.settle()
	require.Greater(t, slices.Index(writes, "apply nvidia-device-plugin-daemonset"), slices.Index(writes, "patch n1"), writes)
}

func TestStatusNamesWhatAnUpgradeWaitsFor(t *testing.T) {
	w := newWorld(t)
	policy := simulated("policy")
	policy.Spec.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
	w.create(gpuNode("n1", label.Driver, "simulated"), policy, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: namespace, UID: "old", Labels: map[string]string{
			"app": label.DriverApp, label.PartOf: label.Product, label.State: string(progress.Driver), label.DriverDigest: "another",
		}},
		Spec: corev1.PodSpec{NodeName: "n1"},
	})
	w.settle()
	require.Equal(t, []v1.UpgradeWait{{Node: "n1", Message: "its pods to be known"}}, w.policy("policy").Status.Upgrade.Waiting)
	w.blocked = map[string]string{"n1": "pod team/trainer cannot be evicted: a budget"}
	w.settle()
	got := w.policy("policy").Status
	require.Equal(t, []v1.UpgradeWait{{Node: "n1", Message: w.blocked["n1"]}}, got.Upgrade.Waiting)
	require.Contains(t, meta.FindStatusCondition(got.Conditions, v1.ConditionProgressing).Message, "n1: "+w.blocked["n1"])
}

func TestForeignObjectIsNotTakenOver(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"), simulated("policy"), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "nvidia-device-plugin-daemonset", Namespace: namespace}})
	require.NotContains(t, w.settle(), "apply nvidia-device-plugin-daemonset")
	require.Contains(t, fmt.Sprint(w.policy("policy").Status.Conditions), "DaemonSet gpuready/nvidia-device-plugin-daemonset is not this operator's: kubectl -n gpuready delete daemonset nvidia-device-plugin-daemonset, or deploy")
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

func TestStatusReportsANodeThatMayNotBePatched(t *testing.T) {
	w := newWorld(t)
	w.create(simulated("policy"), gpuNode("n1"))
	w.settle()
	w.create(gpuNode("n2")) // no object is another for it
	w.refuse = errors.New(`nodes "n2" is forbidden: User "u" cannot patch resource "nodes" in API group "" at the cluster scope`)
	for range 5 {
		w.now = w.now.Add(time.Hour) // past all pauses
		w.syncModel()
		w.runDue(w.Context())
		w.writePatches()
	}
	c := meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded)
	require.NotNil(t, c)
	require.Equal(t, status.ReasonRights, c.Reason)
	require.Contains(t, c.Message, "patch nodes in the cluster")
	w.refuse = nil
	w.writer.queue.Add("n2")
	w.writePatches()
	w.now = w.now.Add(time.Hour)
	w.settle()
	require.Equal(t, metav1.ConditionFalse, meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded).Status)
}

// While the API server does not respond, the goroutine that owns the model continues: it
// waits for no write.
func TestControlLoopDoesNotBlockOnWrites(t *testing.T) {
	w := newWorld(t)
	var waiting []func()
	w.spawn = func(request func()) { waiting = append(waiting, request) }
	w.create(gpuNode("n1"), simulated("policy"))
	w.syncModel()
	w.runDue(t.Context())
	require.NotEmpty(t, waiting)
	require.LessOrEqual(t, len(waiting), maxInFlight)
	w.writePatches()
	require.Equal(t, []string{"patch n1"}, w.writes, "the node is labelled while its objects are on their way")
	w.now = w.now.Add(reportEvery)
	w.runDue(t.Context())
	objects := len(waiting)
	for range 3 { // passes and reports
		w.markChanged()
		w.now = w.now.Add(reportEvery)
		w.runDue(t.Context())
	}
	require.Len(t, waiting, objects, "each is sent once")
	w.spawn = func(request func()) { request() }
	for _, request := range waiting {
		request()
	}
	w.settle()
	require.Contains(t, w.sets(), "nvidia-driver-daemonset")
	require.Empty(t, w.settle())
	require.Zero(t, w.inFlight)
	require.Empty(t, w.requests)
}

// outdatedNode creates a Node with a pod of another driver.
func (w *world) outdatedNode(name string) {
	w.create(gpuNode(name, label.Driver, "simulated"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "old-" + name, Namespace: namespace, UID: types.UID("old-" + name), Labels: map[string]string{
			"app": label.DriverApp, label.PartOf: label.Product, label.State: string(progress.Driver), label.DriverDigest: "another",
		}},
		Spec: corev1.PodSpec{NodeName: name},
	})
}

// A node whose patches are refused lets other nodes go first after a while, is named in the
// status, and is upgraded once it may be written.
func TestUnwritableNodeLetsOtherNodesUpgradeFirst(t *testing.T) {
	for name, refusal := range map[string]error{
		"admission": apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("n1 is locked")),
		"gone":      apierrors.NewNotFound(corev1.Resource("nodes"), "n1"),
		"conflict":  apierrors.NewConflict(corev1.Resource("nodes"), "n1", errors.New("n1 is locked")),
		"hangs":     fmt.Errorf("patch: %w", context.DeadlineExceeded),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			policy := simulated("policy")
			policy.Spec.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
			w.create(policy)
			w.outdatedNode("n1")
			w.outdatedNode("n2")
			w.locked = map[string]error{"n1": refusal}
			began := func(name string) bool { return upgrade.State(w.Labels(name)[label.UpgradeState]).InFlight() }
			for range 10 {
				w.advance()
			}
			require.False(t, began("n2"), "one at a time")
			for range 60 {
				w.advance()
			}
			require.True(t, began("n2"))
			require.False(t, began("n1"))
			st := w.policy("policy").Status
			require.Equal(t, 1, st.Upgrade.Failed)
			require.Contains(t, fmt.Sprint(st.Upgrade.Waiting), "{n1 the Node cannot be written")
			require.Contains(t, meta.FindStatusCondition(st.Conditions, v1.ConditionDegraded).Message, "node n1: the Node cannot be written")
			require.NotEqual(t, status.ReasonUpgradeFailed, meta.FindStatusCondition(st.Conditions, v1.ConditionDegraded).Reason)
			tried := count(w.writes, "patch n1")
			for range 60 {
				w.advance()
			}
			require.LessOrEqual(t, count(w.writes, "patch n1")-tried, 10, "once a minute")
			require.False(t, began("n1"), "it waits for a turn")

			w.locked = nil
			w.deleteObject(w.node("n2"))
			for range 30 {
				w.advance()
			}
			require.True(t, began("n1"))
			require.Zero(t, w.policy("policy").Status.Upgrade.Failed)
		})
	}
}

// A pod that may not be evicted blocks only its own node. Another node is upgraded, and the
// condition Degraded names node and pod until the pod is gone.
func TestBlockedNodeLetsOtherNodesUpgradeFirst(t *testing.T) {
	w := newWorld(t)
	policy := simulated("policy")
	policy.Spec.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
	w.create(policy)
	w.outdatedNode("n1")
	w.outdatedNode("n2")
	w.onNodes = map[string][]*upgrade.Pod{"n1": {{Namespace: "team", Name: strings.Repeat("b", 253), GPU: true}}, "n2": {}}
	for range 5 {
		w.advance()
	}
	state := func(name string) upgrade.State { return upgrade.State(w.Labels(name)[label.UpgradeState]) }
	require.Equal(t, upgrade.Required, state("n1"))
	require.Equal(t, upgrade.PodRestart, state("n2"))
	degraded := meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded)
	require.Equal(t, string(reasonBlocked), degraded.Reason)
	require.Contains(t, degraded.Message, "node n1: pod team/bbb")
	require.Equal(t, 1, w.policy("policy").Status.Upgrade.Failed)
	w.onNodes["n1"] = nil
	w.model.changed = true
	for range 20 {
		w.advance()
	}
	require.Equal(t, upgrade.Required, state("n1"), "it waits for a turn")
	w.deleteObject(w.node("n2"))
	for range 5 {
		w.advance()
	}
	require.Equal(t, upgrade.PodRestart, state("n1"))
	require.Zero(t, w.policy("policy").Status.Upgrade.Failed)
}

// The API server refuses Events with longer messages.
func TestEventsFitTheAPIServersLimit(t *testing.T) {
	w := newWorld(t)
	w.create(gpuNode("n1"))
	w.settle()
	long := strings.Repeat("pod ü/n ", 200)
	w.recordNodeEvent(&corev1.Node{}, upgrade.Event{Reason: upgrade.Reason, Message: long})
	w.recordEvent(simulated("policy"), status.Event{Type: "Normal", Reason: "R", Message: long})
	w.recordEvent(simulated("policy"), status.Event{Node: "n1", Type: "Normal", Reason: "R", Message: long})
	for range 3 {
		_, note, _ := strings.Cut(<-w.events.Events, "pod")
		require.LessOrEqual(t, len("pod")+len(note), 1024)
		require.Greater(t, len(note), 1000)
	}
}

// A hundred Nodes whose patches hang in a webhook delay no other.
func TestSlowNodesDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := make(chan time.Time, 1)
		scheme, err := Scheme()
		require.NoError(t, err)
		c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
				if o.GetName() != "good" {
					<-ctx.Done()
					return ctx.Err()
				}
				written <- time.Now()
				return nil
			},
		}).Build()
		w := newWriter(c, newInbox(), func(*corev1.Node, upgrade.Event) {}, time.Now, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _ = w.run(ctx) })
		for i := range 100 {
			w.set(fmt.Sprint("slow-", i), &upgrade.Patch{})
		}
		time.Sleep(30 * time.Second)
		began := time.Now()
		w.set("good", &upgrade.Patch{})
		require.Zero(t, (<-written).Sub(began))
		cancel()
		done.Wait()
	})
}

// advance advances the time by a few seconds.
func (w *world) advance() {
	w.now = w.now.Add(5 * time.Second)
	for range 3 {
		w.syncModel()
		w.runDue(w.Context())
		for w.writer.queue.Len() > 0 {
			w.writePatches()
		}
		for name := range w.writer.wanted {
			w.writer.queue.Add(name) // its back-off is over
		}
		w.writePatches()
		w.now = w.now.Add(minRest)
	}
}
