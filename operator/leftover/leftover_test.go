package leftover

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/label"
)

var startup = []string{"nvidia.com/gpu-not-ready"}

func managed(manager, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
}

// Agents installed by manifests leave conditions and features, and no record of an operator.
func TestAgentsWithoutAnOperatorLeaveConditionsAndFeatures(t *testing.T) {
	left := Find(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "T4", label.Present: "true"},
			Annotations: map[string]string{label.Features: "gpu.count,mig.config,gpu.deploy.operands"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "GPUReady", Status: "True"}}},
	}, startup)
	require.Equal(t, []string{"GPUReady"}, left.Conditions)
	require.Equal(t, []string{"nvidia.com/gpu.count"}, left.Labels)
	require.Equal(t, []string{label.Features}, left.Annotations)
	require.False(t, left.Uncordon)
	require.Equal(t, []Kept{{"label " + label.Present, "not recorded as gpuready's"}, {"label nvidia.com/gpu.product", "not recorded as gpuready's"}}, left.Kept)
}

func TestACordonOfAPersonStays(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{label.UpgradeState: "drain-required"},
		Annotations: map[string]string{label.OwnLabels: "present", label.InitiallyCordoned: "true"}}, Spec: corev1.NodeSpec{Unschedulable: true}}
	left := Find(node, startup)
	require.False(t, left.Uncordon, "it was cordoned before the upgrade")
	require.Equal(t, []string{label.UpgradeState}, left.Labels)
	delete(node.Annotations, label.InitiallyCordoned)
	node.Annotations[label.UpgradeCordoned] = "true"
	require.True(t, Find(node, startup).Uncordon)
}

func TestWhatOthersSetStaysAndIsNamed(t *testing.T) {
	left := Find(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"nvidia.com/gpu.count": "8"}, Annotations: map[string]string{label.Features: "gpu.count"},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("nfd\x1b[31m", `{"f:metadata":{"f:labels":{"f:nvidia.com/gpu.count":{}}},"f:status":{"f:conditions":{"k:{\"type\":\"GPUHealthy\"}":{}}}}`)}},
		Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup[0], Effect: "NoExecute"}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "GPUHealthy", Status: "True"}}},
	}, startup)
	require.Empty(t, left.Labels)
	require.Empty(t, left.Conditions)
	require.Empty(t, left.Taints)
	require.Len(t, left.Kept, 3)
	for _, k := range left.Kept {
		require.NotContains(t, k.Why, "\x1b")
	}
}

func TestPatchesNameTheNodeTheyAreBasedOn(t *testing.T) {
	left := Find(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup[0], Effect: "NoSchedule"}}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "GPUReady"}}},
	}, startup)
	body, err := left.StatusPatch()
	require.NoError(t, err)
	require.JSONEq(t, `{"metadata":{"uid":"u","resourceVersion":"7"},"status":{"conditions":[{"type":"GPUReady","$patch":"delete"}]}}`, string(body))
	body, err = left.At("8").Patch()
	require.NoError(t, err)
	require.JSONEq(t, `{"metadata":{"uid":"u","resourceVersion":"8"},"spec":{"taints":[]}}`, string(body))

	none := Find(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, startup)
	require.True(t, none.Empty())
	for _, patch := range []func() ([]byte, error){none.StatusPatch, none.Patch} {
		body, err := patch()
		require.NoError(t, err)
		require.Nil(t, body)
	}
	data, err := json.Marshal(none)
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"n"}`, string(data))
}

func TestLabelsThatPlaceNVIDIAsPodsStay(t *testing.T) {
	left := Find(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        "n",
		Labels:      map[string]string{label.Present: "true", label.Deploy + "driver": "true", label.Deploy + "dcgm": label.Paused, label.Driver: "jammy"},
		Annotations: map[string]string{label.OwnLabels: "present,deploy.driver,deploy.dcgm"},
	}}, startup).KeepOperands("theirs")
	require.Equal(t, []string{label.Driver, label.Deploy + "dcgm"}, left.Labels)
	require.Equal(t, []Kept{{"label " + label.Deploy + "driver", "theirs"}, {"label " + label.Present, "theirs"}}, left.Kept)
	body, err := left.Patch()
	require.NoError(t, err)
	require.JSONEq(t, `{"metadata":{"labels":{"nvidia.com/gpu.deploy.dcgm":null,"`+label.Driver+`":null},"annotations":{"`+label.OwnLabels+`":null}}}`, string(body))
}
