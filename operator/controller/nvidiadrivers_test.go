package controller

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/label"
)

// syncDrivers updates the model with the API server's NVIDIADrivers.
func (w *world) syncDrivers() {
	var all unstructured.UnstructuredList
	all.SetGroupVersionKind(nvidiaDriverKind)
	require.NoError(w, w.List(w.Context(), &all))
	there := map[string]bool{}
	for i := range all.Items {
		updateDriver(w.model, &all.Items[i])
		there[all.Items[i].GetName()] = true
	}
	for name := range w.model.nvidiaDrivers {
		if !there[name] {
			gone := &unstructured.Unstructured{}
			gone.SetName(name)
			removeDriver(w.model, gone)
		}
	}
}

// newDriverWorld returns a world whose policy leaves drivers to NVIDIADrivers.
func newDriverWorld(t *testing.T) *world {
	w := newWorld(t)
	p := simulated("policy")
	yes := true
	p.Spec.Driver.UseNvidiaDriverCRD = &yes
	p.Spec.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
	w.create(p)
	w.drivers.onServed(w.model, &metav1.PartialObjectMetadata{})
	w.drivers.synced()
	return w
}

// simulatedDriver returns an NVIDIADriver with the simulated driver, for the nodes with the label
// tier=<name>; other is a value of its environment.
func simulatedDriver(name, other string) *v1alpha1.NVIDIADriver {
	yes := true
	d := &v1alpha1.NVIDIADriver{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1}}
	d.Spec.NodeSelector = map[string]string{"tier": name}
	d.Spec.Simulated = &v1.SimulatedSpec{}
	d.Spec.Simulated.Enabled = &yes
	if other != "" {
		d.Spec.Simulated.Env = []v1.EnvVar{{Name: "OTHER", Value: other}}
	}
	return d
}

func (w *world) nvidiaDriver(name string) *v1alpha1.NVIDIADriver {
	var d v1alpha1.NVIDIADriver
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Name: name}, &d))
	return &d
}

func (w *world) assigned(node string) string { return w.node(node).Labels[label.Driver] }

// runDriver gives a node the ready pod of a driver DaemonSet.
func (w *world) runDriver(node, daemonSet string) {
	var d appsv1.DaemonSet
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: daemonSet}, &d))
	yes := true
	w.create(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "driver-on-" + node, Namespace: namespace, UID: types.UID("driver-on-" + node), Labels: d.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: daemonSet, UID: d.UID, Controller: &yes}},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	})
}

func TestEachNodeGetsTheDriverOfItsNVIDIADriver(t *testing.T) {
	w := newDriverWorld(t)
	w.create(simulatedDriver("gold", "1"), simulatedDriver("silver", "2"), gpuNode("n1", "tier", "gold"), gpuNode("n2", "tier", "silver"), gpuNode("n3"))
	w.settle()
	require.Equal(t, "simulated_gold", w.assigned("n1"))
	require.Equal(t, "simulated_silver", w.assigned("n2"))
	require.Empty(t, w.assigned("n3"), "no NVIDIADriver selects it")
	require.Subset(t, w.sets(), []string{"nvidia-driver-daemonset-simulated-gold", "nvidia-driver-daemonset-simulated-silver"})
	require.NotContains(t, w.sets(), label.DriverApp)

	status := w.policy("policy").Status
	degraded := meta.FindStatusCondition(status.Conditions, v1.ConditionDegraded)
	require.Equal(t, "NoDriverSelected", degraded.Reason)
	require.Contains(t, degraded.Message, "no NVIDIADriver selects node n3")
	require.Equal(t, []string{"", "gold", "silver"}, []string{status.Pools[0].NVIDIADriver, status.Pools[1].NVIDIADriver, status.Pools[2].NVIDIADriver})
	gold := w.nvidiaDriver("gold").Status
	require.Equal(t, namespace, gold.Namespace)
	require.Equal(t, 1, gold.Nodes.Total)
	require.Equal(t, "nvidia-driver-daemonset-simulated-gold", gold.Pools[0].DaemonSet)
	require.Equal(t, "NothingFailed", meta.FindStatusCondition(gold.Conditions, v1.ConditionDegraded).Reason)
	require.Empty(t, w.settle(), "nothing is written again")

	rest := simulatedDriver("rest", "3")
	rest.Spec.NodeSelector, rest.Spec.Default = nil, true
	w.create(rest)
	w.settle()
	require.Equal(t, "simulated_rest", w.assigned("n3"))
	require.Equal(t, "simulated_gold", w.assigned("n1"), "the default is for the others")
}

func TestNodesOfSeveralNVIDIADriversKeepWhatTheyHave(t *testing.T) {
	w := newDriverWorld(t)
	w.create(simulatedDriver("gold", "1"), gpuNode("n1", "tier", "gold"))
	w.settle()
	require.Equal(t, "simulated_gold", w.assigned("n1"))
	w.runDriver("n1", "nvidia-driver-daemonset-simulated-gold")
	all := simulatedDriver("all", "2")
	all.Spec.NodeSelector = nil
	w.create(all, gpuNode("n2"), gpuNode("n3", "tier", "gold"))
	w.settle()
	require.Equal(t, "simulated_gold", w.assigned("n1"), "it keeps its driver")
	require.Equal(t, "simulated_all", w.assigned("n2"))
	require.Empty(t, w.assigned("n3"), "it has none to keep")
	for _, name := range []string{"gold", "all"} {
		status := w.nvidiaDriver(name).Status
		require.Equal(t, v1.NotReady, status.State)
		for _, kind := range []string{v1.ConditionReady, v1.ConditionDegraded} {
			condition := meta.FindStatusCondition(status.Conditions, kind)
			require.Equal(t, "Conflict", condition.Reason)
			require.Contains(t, condition.Message, "NVIDIADrivers all, gold select node n1")
		}
	}
	require.Contains(t, meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded).Message, "NVIDIADrivers all, gold select node n1")

	w.deleteObject(all)
	w.settle()
	require.Equal(t, "simulated_gold", w.assigned("n3"))
	require.Equal(t, "simulated_all", w.assigned("n2"), "nothing is taken from the nodes of a deleted one")
	require.Contains(t, w.sets(), "nvidia-driver-daemonset-simulated-all")
}

func TestNVIDIADriverTakesOverWithoutAnUpgrade(t *testing.T) {
	w := newWorld(t)
	p := simulated("policy")
	p.Spec.Driver.UpgradePolicy = &v1.DriverUpgradePolicySpec{AutoUpgrade: true}
	w.create(p, gpuNode("n1"))
	w.settle()
	require.Equal(t, "simulated", w.assigned("n1"))
	w.runDriver("n1", label.DriverApp)
	w.settle()

	yes := true
	leave := w.policy("policy")
	leave.Spec.Driver.UseNvidiaDriverCRD = &yes
	leave.Generation++
	require.NoError(t, w.Update(t.Context(), leave))
	w.settle()
	require.Equal(t, "simulated", w.assigned("n1"), "the cluster has no NVIDIADrivers")
	require.Equal(t, "DriversUnknown", meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded).Reason)
	w.drivers.onServed(w.model, &metav1.PartialObjectMetadata{})
	w.settle()
	w.drivers.failed(errors.New("forbidden"))
	w.settle()
	require.Contains(t, meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded).Message, "read NVIDIADrivers: forbidden")
	w.drivers.synced()
	w.settle()
	require.Equal(t, "simulated", w.assigned("n1"))
	require.Contains(t, w.sets(), label.DriverApp)
	require.Equal(t, "NoDriverSelected", meta.FindStatusCondition(w.policy("policy").Status.Conditions, v1.ConditionDegraded).Reason)

	d := simulatedDriver("rest", "")
	d.Spec.NodeSelector, d.Spec.Default = nil, true
	w.create(d)
	w.settle()
	require.Equal(t, "simulated", w.assigned("n1"), "it is the same driver")
	require.Empty(t, w.node("n1").Labels[label.UpgradeState])
	require.Equal(t, 1, w.nvidiaDriver("rest").Status.Upgrade.Done)
	w.create(gpuNode("n2"))
	w.settle()
	require.Equal(t, "simulated_rest", w.assigned("n2"), "a new node gets the NVIDIADriver's own DaemonSet")

	d = w.nvidiaDriver("rest")
	d.Spec.Simulated.Env = []v1.EnvVar{{Name: "OTHER", Value: "x"}}
	d.Generation++
	require.NoError(t, w.Update(t.Context(), d))
	w.settle()
	require.NotEmpty(t, w.node("n1").Labels[label.UpgradeState], "another driver is an upgrade")
	require.Equal(t, 1, w.nvidiaDriver("rest").Status.Upgrade.InProgress)
}

func TestMovedNodeIsUpgradedByTheLimitsOfItsNewDriver(t *testing.T) {
	w := newDriverWorld(t)
	gold, silver := simulatedDriver("gold", "1"), simulatedDriver("silver", "2")
	no := false
	silver.Spec.UpgradePolicy = &v1alpha1.UpgradePolicySpec{AutoUpgrade: &no}
	w.create(gold, silver, gpuNode("n1", "tier", "gold"), gpuNode("n2", "tier", "silver"))
	w.settle()
	for node, tier := range map[string]string{"n1": "gold", "n2": "silver"} {
		w.runDriver(node, "nvidia-driver-daemonset-simulated-"+tier)
	}
	w.settle()
	w.change("n1", func(n *corev1.Node) { n.Labels["tier"] = "silver" })
	w.change("n2", func(n *corev1.Node) { n.Labels["tier"] = "gold" })
	w.settle()
	require.Empty(t, w.node("n1").Labels[label.UpgradeState], "silver's upgrades are not automatic")
	require.Equal(t, "simulated_gold", w.assigned("n1"))
	require.True(t, w.node("n2").Spec.Unschedulable)
	require.NotEmpty(t, w.node("n2").Labels[label.UpgradeState])
	require.Equal(t, 1, w.nvidiaDriver("silver").Status.Upgrade.Pending)
	require.Equal(t, 1, w.nvidiaDriver("gold").Status.Upgrade.InProgress)
}

func TestFieldsWithoutEffectAreInTheNVIDIADriversStatus(t *testing.T) {
	w := newDriverWorld(t)
	d := simulatedDriver("gold", "")
	d.Spec.UseOpenKernelModules = &d.Spec.Default
	d.Spec.Manager.Image = "m"
	d.Spec.UpgradePolicy = &v1alpha1.UpgradePolicySpec{DrainSpec: &v1.DrainSpec{Enable: true, PodSelector: "a=b=c"}}
	w.create(d, gpuNode("n1", "tier", "gold"))
	w.settle()
	status := w.nvidiaDriver("gold").Status
	require.Equal(t, []string{"manager: the operator itself clears a node before its driver is replaced: set upgradePolicy"}, status.Unserved)
	require.True(t, meta.IsStatusConditionTrue(status.Conditions, v1.ConditionUnserved))
	degraded := meta.FindStatusCondition(status.Conditions, v1.ConditionDegraded)
	require.Equal(t, "UpgradePolicyInvalid", degraded.Reason)
	require.Contains(t, degraded.Message, "NVIDIADriver gold: spec.upgradePolicy.drain.podSelector")
}

func TestNVIDIADriversThatAreNotUsedSaySo(t *testing.T) {
	w := newWorld(t)
	w.create(simulated("policy"), simulatedDriver("gold", ""), gpuNode("n1", "tier", "gold"))
	w.drivers.onServed(w.model, &metav1.PartialObjectMetadata{})
	w.drivers.synced()
	w.settle()
	require.Equal(t, "simulated", w.assigned("n1"))
	status := w.nvidiaDriver("gold").Status
	require.Equal(t, v1.Disabled, status.State)
	require.Equal(t, "NotUsed", meta.FindStatusCondition(status.Conditions, v1.ConditionReady).Reason)
	w.drivers.onUnserved(w.model, nil)
	require.Empty(t, w.model.nvidiaDrivers)
	require.Empty(t, w.settle())
}

func TestNVIDIADriverThatCannotBeDecodedChangesNothing(t *testing.T) {
	w := newDriverWorld(t)
	w.create(simulatedDriver("gold", "1"), gpuNode("n1", "tier", "gold"))
	w.settle()
	strange := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "strange"}, "spec": map[string]any{"env": "A=b"}}}
	updateDriver(w.model, strange)
	w.markChanged()
	w.now = w.now.Add(reportEvery)
	w.runDue(t.Context())
	require.ErrorContains(t, w.model.unreadDrivers(), "read NVIDIADriver strange: ")
	require.Equal(t, "simulated_gold", w.assigned("n1"))
	require.Equal(t, "DriversUnknown", string(w.desired.choices[0].Problem.Reason))
	other := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "other"}, "spec": map[string]any{"env": "A=b"}}}
	updateDriver(w.model, other)
	removeDriver(w.model, other)
	w.drivers.synced() // at the operator's start
	w.drainInbox()
	require.ErrorContains(t, w.model.unreadDrivers(), "read NVIDIADriver strange: ")
	removeDriver(w.model, strange)
	w.settle()
	require.Nil(t, w.desired.choices[0].Problem)
}

// An operator that starts during an upgrade does not take the node for one without a driver.
func TestNoPassBeforeTheNVIDIADriversAreRead(t *testing.T) {
	w := newDriverWorld(t)
	w.create(simulatedDriver("gold", "1"), gpuNode("n1", "tier", "gold"))
	w.settle()
	w.model.driversError = errDriversPending
	w.model.changed = true
	require.Zero(t, w.passDue())
	w.drivers.synced()
	w.drainInbox()
	require.NotZero(t, w.passDue())
}

func TestChangeDuringTheWriteOfAStatusIsNotLost(t *testing.T) {
	w := newDriverWorld(t)
	w.create(simulatedDriver("gold", "1"), gpuNode("n1", "tier", "gold"))
	w.settle()
	have := w.model.nvidiaDrivers["gold"]
	changed := w.nvidiaDriver("gold")
	changed.Generation++
	changed.Spec.Version = "2"
	require.NoError(t, w.Update(t.Context(), changed))
	sum := have.Status
	sum.Namespace = "elsewhere"
	w.writeDriverStatus(t.Context(), have, sum)
	w.running.Wait()
	w.drainInbox()
	require.Equal(t, have.ResourceVersion, w.model.nvidiaDrivers["gold"].ResourceVersion, "the changed one is newer")
	w.syncDrivers()
	require.Equal(t, "2", w.model.nvidiaDrivers["gold"].Spec.Version)
}

func TestNVIDIADriversOfADefinitionThatIsBeingDeletedAreNotRead(t *testing.T) {
	w := newDriverWorld(t)
	w.create(simulatedDriver("gold", "1"), gpuNode("n1", "tier", "gold"))
	w.settle()
	at := metav1.Now()
	w.drivers.onServed(w.model, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &at}})
	require.ErrorIs(t, w.model.unreadDrivers(), errNoDrivers)
	w.drivers.synced()
	w.drainInbox()
	require.ErrorIs(t, w.model.unreadDrivers(), errNoDrivers)
}
