package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/controller"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// cluster returns a cluster that the operator has written to.
func cluster(t *testing.T, policyLabels map[string]string) client.WithWatch {
	scheme, err := controller.Scheme()
	require.NoError(t, err)
	yes := true
	policy := &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy", Labels: policyLabels}}
	policy.Spec.Node.StartupTaint.Manage = &yes // of the default key
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{label.PCI: "true", "person": "x", label.Deploy + "dcgm": "false", "nvidia.com/gpu.count": "8"},
			Annotations: map[string]string{"person": "x", label.Features: "gpu.count"}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"}, {Key: "person", Effect: "NoSchedule"}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True"}, {Type: "GPUReady", Status: "True"}, {Type: "GPUHealthy", Status: "True"}}},
	}
	patch := fleet.Observe(node).LabelPatch(fleet.Placement{Operands: []string{"driver", "dcgm"}, Driver: "simulated", Serve: "dra"})
	for _, m := range []struct {
		of   map[string]string
		with map[string]*string
	}{{node.Labels, patch.Labels}, {node.Annotations, patch.Annotations}} {
		for key, value := range m.with {
			m.of[key] = *value
		}
	}
	ours := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ours", Namespace: "gpuready", Labels: map[string]string(apply.Selector())}}
	theirs := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: "gpuready", Labels: map[string]string{label.ManagedBy: label.Operator}}}
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&corev1.Node{}).WithObjects(policy, node, ours, theirs, class("gpu.nvidia.com", apply.Selector()), class("copied", apply.Selector()), class("theirs", nil)).Build()
}

func class(name string, labels map[string]string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func names(t *testing.T, c client.Client) (all []string) {
	var sets appsv1.DaemonSetList
	require.NoError(t, c.List(t.Context(), &sets))
	for _, s := range sets.Items {
		all = append(all, s.Name)
	}
	return all
}

func TestCleanupRemovesExactlyWhatTheOperatorWrote(t *testing.T) {
	c := cluster(t, map[string]string{label.PartOf: label.Product})
	var out bytes.Buffer
	config := cleanup{client: c, namespace: "gpuready", out: &out}
	require.NoError(t, config.run(t.Context()))
	require.Equal(t, []string{"theirs"}, names(t, c))
	var classes resourcev1.DeviceClassList
	require.NoError(t, c.List(t.Context(), &classes))
	require.Len(t, classes.Items, 2)
	require.Equal(t, []string{"copied", "theirs"}, []string{classes.Items[0].Name, classes.Items[1].Name})
	var node corev1.Node
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &node))
	require.Equal(t, map[string]string{label.PCI: "true", "person": "x", label.Deploy + "dcgm": "false"}, node.Labels)
	require.Equal(t, map[string]string{"person": "x"}, node.Annotations)
	require.Len(t, node.Spec.Taints, 1)
	require.Len(t, node.Status.Conditions, 1)
	var policies v1.ClusterPolicyList
	require.NoError(t, c.List(t.Context(), &policies))
	require.Empty(t, policies.Items)
	require.Contains(t, out.String(), "delete *v1.DaemonSet ours")
	out.Reset()
	require.NoError(t, config.run(t.Context()))
	require.Empty(t, out.String(), "the second time there is nothing to do")
}

func TestForeignPolicyStaysWithItsObjects(t *testing.T) {
	c := cluster(t, nil)
	var out bytes.Buffer
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: &out}.run(t.Context()))
	require.Contains(t, out.String(), "ClusterPolicy policy has another owner")
	require.Len(t, names(t, c), 2)
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: &out, force: true}.run(t.Context()))
	require.Equal(t, []string{"theirs"}, names(t, c))
}

// A validator that has not ended yet writes its conditions and labels once more.
func TestNodesAreCleanedAfterTheirValidatorsEnd(t *testing.T) {
	said := false
	c := interceptor.NewClient(cluster(t, map[string]string{label.PartOf: label.Product}), interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			changes, err := c.Watch(ctx, list, options...)
			if _, is := list.(*corev1.PodList); is && err == nil {
				said = true
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
				text := []byte(`{"metadata":{"labels":{"nvidia.com/gpu.memory":"1"},"annotations":{"gpuready.io/feature-labels":"gpu.count,gpu.memory"}}}`)
				require.NoError(t, c.Patch(ctx, node, client.RawPatch(types.MergePatchType, text)))
				require.NoError(t, c.Delete(ctx, validator()))
			}
			return changes, err
		},
	})
	require.NoError(t, c.Create(t.Context(), validator()))
	var out bytes.Buffer
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: &out}.run(t.Context()))
	require.True(t, said)
	var node corev1.Node
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &node))
	require.Equal(t, map[string]string{label.PCI: "true", "person": "x", label.Deploy + "dcgm": "false"}, node.Labels)
}

func TestWaitForAValidatorThatNeverEndsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, map[string]string{label.PartOf: label.Product})
		require.NoError(t, c.Create(t.Context(), validator()))
		var out bytes.Buffer
		began := time.Now()
		require.NoError(t, cleanup{client: c, namespace: "gpuready", out: &out}.run(t.Context()))
		require.Equal(t, endTimeout, time.Since(began))
		require.Contains(t, out.String(), "1 are still there, validator-n1 among them")
		require.Contains(t, out.String(), "patch node n1")
	})
}

func validator() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "validator-n1", Namespace: "gpuready", Labels: map[string]string{"app": "nvidia-operator-validator", label.PartOf: label.Product}}}
}

func TestDryRunChangesNothing(t *testing.T) {
	c := cluster(t, map[string]string{label.PartOf: label.Product})
	var out bytes.Buffer
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: &out, dryRun: true}.run(t.Context()))
	require.Len(t, names(t, c), 2)
	require.Contains(t, out.String(), "(dry run) patch node n1")
}

// named returns a Node with labels that its annotations list as gpuready's.
func named(labels map[string]string) *corev1.Node {
	var short, wrote []string
	for key := range labels {
		short = append(short, strings.TrimPrefix(key, "nvidia.com/"))
		wrote = append(wrote, strings.TrimPrefix(key, "nvidia.com/gpu."))
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "u1", Labels: maps.Clone(labels),
		Annotations: map[string]string{label.Features: strings.Join(short, ","), label.OwnLabels: strings.Join(wrote, ",")},
	}}
}

// recording returns a client of an empty cluster that records field managers as an API server does.
func recording(t *testing.T) client.WithWatch {
	t.Helper()
	scheme, err := controller.Scheme()
	require.NoError(t, err)
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&corev1.Node{}).WithReturnManagedFields().Build()
}

// cleaned cleans up a Node with labels of a manager. It returns the remaining labels and the
// output, and deletes the Node.
func cleaned(ctx context.Context, t require.TestingT, c client.WithWatch, node *corev1.Node, manager string) (map[string]string, string) {
	require.NoError(t, c.Create(ctx, node, client.FieldOwner(manager)))
	var out bytes.Buffer
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: &out}.run(ctx))
	var left corev1.Node
	require.NoError(t, c.Get(ctx, client.ObjectKey{Name: node.Name}, &left))
	require.NotContains(t, left.Annotations, label.Features)
	require.NotContains(t, left.Annotations, label.OwnLabels)
	require.NoError(t, c.Delete(ctx, &left))
	return left.Labels, out.String()
}

func TestAnnotationIsNoEvidenceOfALabelsOwner(t *testing.T) {
	people := map[string]string{
		"nvidia.com/pool": "secret", "nvidia.com/mig.config": "all-1g.10gb", "nvidia.com/device-plugin.config": "shared",
		"nvidia.com/gpu.workload.config": "vm-passthrough", "nvidia.com/gpu.deploy.operands": "true", "nvidia.com/gpu-driver-upgrade.skip": "true",
		"nvidia.com/gpu.product": "mine", "nvidia.com/gpu.present": "true", "nvidia.com/gpu.deploy.dcgm": "true",
	}
	left, said := cleaned(t.Context(), t, recording(t), named(people), "kubectl-label")
	require.Equal(t, people, left)
	require.Contains(t, said, `label nvidia.com/gpu.product of node n1 stays: "kubectl-label" set it`)

	left, _ = cleaned(t.Context(), t, recording(t), named(people), label.FieldManager)
	for _, key := range []string{"nvidia.com/gpu.product", "nvidia.com/gpu.present", "nvidia.com/gpu.deploy.dcgm"} {
		require.NotContains(t, left, key, "gpuready set it")
		delete(people, key)
	}
	require.Equal(t, people, left, "gpuready writes no labels of these names, whatever a field manager calls itself")
}

// Labels of people stay, whatever the annotations list.
func TestLabelsOfPeopleAreNeverRemoved(t *testing.T) {
	names := rapid.OneOf(
		rapid.StringMatching(`nvidia\.com/(gpu|cuda|gfd|mig|mps|pool)[.-]?[a-z0-9.-]{0,20}[a-z0-9]`),
		rapid.SampledFrom([]string{label.Present, label.Driver, label.Injection, label.UpgradeState, label.Deploy + "driver", label.Operands, "node-role.kubernetes.io/control-plane"}),
	)
	c := recording(t)
	rapid.Check(t, func(t *rapid.T) {
		people := rapid.MapOfN(names, rapid.SampledFrom([]string{"", "true", "false", "x", label.Paused, label.PreInstalled}), 1, 6).Draw(t, "labels")
		left, _ := cleaned(context.Background(), t, c, named(people),
			rapid.SampledFrom([]string{"kubectl-label", "kubelet", "nfd-master", "gpu-operator2", "GPU-validator"}).Draw(t, "manager"))
		require.Equal(t, people, left)
	})
}

func TestTaintOfAPersonStays(t *testing.T) {
	c := cluster(t, map[string]string{label.PartOf: label.Product})
	var node corev1.Node
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &node))
	theirs := []corev1.Taint{
		{Key: "nvidia.com/gpu-not-ready", Effect: "NoExecute"}, {Key: "person", Effect: "NoSchedule"},
	}
	node.Spec.Taints = append(theirs, corev1.Taint{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"})
	require.NoError(t, c.Update(t.Context(), &node))
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: io.Discard}.run(t.Context()))
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &node))
	require.Equal(t, theirs, node.Spec.Taints)
}

func TestLabelsWithAnotherOwnerStay(t *testing.T) {
	entry := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", Subresource: subresource,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	const labels = `{"f:metadata":{"f:labels":{"f:nvidia.com/gpu.deploy.dcgm":{}}}}`
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        "n1",
		Labels:      map[string]string{"nvidia.com/gpu.deploy.dcgm": "true", "nvidia.com/gpu.deploy.driver": "true"},
		Annotations: map[string]string{label.OwnLabels: "deploy.dcgm,deploy.driver"},
		ManagedFields: []metav1.ManagedFieldsEntry{
			entry("argocd", "", labels), entry(label.FieldManager, "", labels),
			entry("node-problem-detector", "status", `{"f:status":{"f:conditions":{"k:{\"type\":\"GPUHealthy\"}":{".":{},"f:type":{}}}}}`),
		},
	}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "GPUReady", Status: "True"}, {Type: "GPUHealthy", Status: "True"}}}}
	scheme, err := controller.Scheme()
	require.NoError(t, err)
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&corev1.Node{}).WithReturnManagedFields().WithObjects(node).Build()
	require.NoError(t, cleanup{client: c, namespace: "gpuready", out: io.Discard}.run(t.Context()))
	var after corev1.Node
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &after))
	require.Equal(t, map[string]string{"nvidia.com/gpu.deploy.dcgm": "true"}, after.Labels)
	require.Len(t, after.Status.Conditions, 1)
	require.Equal(t, "GPUHealthy", string(after.Status.Conditions[0].Type))
}
