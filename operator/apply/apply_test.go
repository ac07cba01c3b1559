package apply

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpuready/gpuready/operator/label"
)

func daemonSet(name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gpuready", Labels: map[string]string(Selector())},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
				Spec: corev1.PodSpec{
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{
						Name: "main", Image: "gpuready/toolkit:v1", Args: []string{"run", "--flag"},
						Env:       []corev1.EnvVar{{Name: "A", Value: "1"}},
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1000m")}},
					}},
					Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			},
		},
	}
}

func owner() *corev1.Namespace {
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "policy", UID: "u1"}}
}

func none(client.Object) bool { return false }

// cluster is a fake cluster with a Planner.
type cluster struct {
	*testing.T
	client.Client
	planner *Planner
}

func newCluster(t *testing.T) *cluster {
	p := NewPlanner(scheme.Scheme)
	require.NoError(t, p.SetOwner(owner()))
	return &cluster{t, fake.NewClientBuilder().Build(), p}
}

func (w *cluster) live() []client.Object {
	var list appsv1.DaemonSetList
	require.NoError(w, w.List(w.Context(), &list, Selector()))
	var all []client.Object
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// reconcile makes a plan and carries it out, and returns why each object was applied.
func (w *cluster) reconcile(wanted ...Object) map[string]string {
	plan, err := w.planner.Plan(wanted, w.live(), none)
	require.NoError(w, err)
	why := map[string]string{}
	for _, c := range plan.Apply {
		have, err := Apply(w.Context(), w, c)
		require.NoError(w, err)
		require.NotEmpty(w, have.GetResourceVersion())
		why[c.Name] = c.Why
	}
	for _, o := range plan.Prune {
		require.NoError(w, Prune(w.Context(), w, o.Object))
		why[o.Name] = "pruned"
	}
	return why
}

func TestObjectsAreAppliedOnlyWhenTheyDiffer(t *testing.T) {
	w := newCluster(t)
	one, two := Object{daemonSet("one"), "d1"}, Object{daemonSet("two"), "d1"}
	require.Equal(t, map[string]string{"one": "missing", "two": "missing"}, w.reconcile(one, two))
	require.Empty(t, w.reconcile(one, two), "nothing to do")
	w.planner = NewPlanner(scheme.Scheme)
	require.NoError(t, w.planner.SetOwner(owner()))
	require.Empty(t, w.reconcile(one, two), "nothing to do for a process that was started anew")

	var have appsv1.DaemonSet
	require.NoError(t, w.Get(t.Context(), types.NamespacedName{Namespace: "gpuready", Name: "one"}, &have))
	require.Equal(t, types.UID("u1"), have.OwnerReferences[0].UID)
	require.Equal(t, "d1", have.Annotations[label.Digest])

	one.Digest = "d2"
	require.Equal(t, map[string]string{"one": "changed"}, w.reconcile(one, two))
	require.NoError(t, w.Delete(t.Context(), daemonSet("two")))
	require.Equal(t, map[string]string{"two": "missing"}, w.reconcile(one, two), "deleted by hand")
	require.Equal(t, map[string]string{"two": "pruned"}, w.reconcile(one))
	require.Empty(t, w.reconcile(one))
	other := owner()
	other.UID = "u2"
	require.NoError(t, w.planner.SetOwner(other))
	require.Equal(t, map[string]string{"one": "owner"}, w.reconcile(one), "the policy was made anew")
}

func TestKeptAndLeavingObjectsAreLeftAlone(t *testing.T) {
	p := NewPlanner(scheme.Scheme)
	leaving := daemonSet("leaving")
	now := metav1.Now()
	leaving.DeletionTimestamp = &now
	plan, err := p.Plan([]Object{{daemonSet("leaving"), "d"}}, []client.Object{leaving, daemonSet("kept"), daemonSet("old")},
		func(o client.Object) bool { return o.GetName() == "kept" })
	require.NoError(t, err)
	require.Empty(t, plan.Apply)
	require.Len(t, plan.Prune, 1)
	require.Equal(t, "old", plan.Prune[0].Name)
}

func TestEditsAreRevertedAndAdditionsAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*appsv1.DaemonSet)
		path string // "": left
	}{
		"image":         {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "x" }, ".spec.template.spec.containers[0].image"},
		"argument":      {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Args = []string{"run"} }, ".spec.template.spec.containers[0].args"},
		"toleration":    {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Tolerations = nil }, ".spec.template.spec.tolerations"},
		"variable":      {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Env[0].Value = "2" }, ".spec.template.spec.containers[0].env[0].value"},
		"variable gone": {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Env = nil }, ".spec.template.spec.containers[0].env"},
		"request":       {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Resources.Requests = nil }, ".spec.template.spec.containers[0].resources"},
		"label":         {func(d *appsv1.DaemonSet) { d.Spec.Template.Labels["app"] = "x" }, ".spec.template.metadata.labels.app"},
		"quantity, same": {func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1")
		}, ""},
		"a variable of theirs": {func(d *appsv1.DaemonSet) {
			c := &d.Spec.Template.Spec.Containers[0]
			c.Env = append([]corev1.EnvVar{{Name: "B"}}, c.Env...)
		}, ""},
		"a container of theirs": {func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.Containers = append([]corev1.Container{{Name: "side"}}, d.Spec.Template.Spec.Containers...)
		}, ""},
		"defaults": {func(d *appsv1.DaemonSet) {
			d.Spec.Template.Spec.DNSPolicy, d.Spec.Template.Spec.RestartPolicy = corev1.DNSClusterFirst, corev1.RestartPolicyAlways
			d.Spec.UpdateStrategy.Type, d.Status.NumberReady = appsv1.RollingUpdateDaemonSetStrategyType, 3
			d.TypeMeta = metav1.TypeMeta{}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			live := daemonSet("one")
			c.edit(live)
			path, err := firstDifference(daemonSet("one"), live)
			require.NoError(t, err)
			require.Equal(t, c.path, path)
		})
	}
}

func TestEditIsDetectedByItsGeneration(t *testing.T) {
	w := newCluster(t)
	one := Object{daemonSet("one"), "d1"}
	w.reconcile(one)
	require.Empty(t, w.reconcile(one))
	edited := w.live()[0].(*appsv1.DaemonSet)
	edited.Spec.Template.Spec.Containers[0].Image, edited.Generation = "x", 2
	require.NoError(t, w.Update(t.Context(), edited))
	require.Contains(t, w.reconcile(one)["one"], "edited: .spec.template")
}

func TestPruningAMissingObjectSucceeds(t *testing.T) {
	w := newCluster(t)
	require.NoError(t, Prune(t.Context(), w, daemonSet("nobody")))
}

// The API server refuses another handler of a RuntimeClass.
func TestRuntimeClassWithAnotherHandlerIsReplaced(t *testing.T) {
	class := func(handler string) *nodev1.RuntimeClass {
		return &nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: metav1.ObjectMeta{Name: "nvidia", UID: "u1"}, Handler: handler}
	}
	w := newCluster(t)
	applied := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": map[string]any{"name": "nvidia"}, "handler": "runc"}}
	for name, live := range map[string]client.Object{"from a watch": class("runc"), "as applied": applied} {
		plan, err := w.planner.Plan([]Object{{class("nvidia"), "d2"}}, []client.Object{live}, none)
		require.NoError(t, err)
		require.Empty(t, plan.Apply, name)
		require.Len(t, plan.Prune, 1, name)
		plan, err = w.planner.Plan([]Object{{class("runc"), "d1"}}, []client.Object{live}, none)
		require.NoError(t, err)
		require.Len(t, plan.Apply, 1, name)
		require.Empty(t, plan.Prune, name)
	}
	plan, err := w.planner.Plan([]Object{{class("nvidia"), "d2"}}, nil, none)
	require.NoError(t, err)
	require.Equal(t, "missing", plan.Apply[0].Why)
	leaving := class("runc")
	leaving.DeletionTimestamp = &metav1.Time{}
	plan, err = w.planner.Plan([]Object{{class("nvidia"), "d2"}}, []client.Object{leaving}, none)
	require.NoError(t, err)
	require.True(t, plan.Empty())
}
