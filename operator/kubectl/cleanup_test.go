package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
)

// writable is an API server whose Nodes can be patched.
type writable struct {
	*api
	conflicts int                // how many patches are refused because the Node has changed
	meanwhile func(*corev1.Node) // what others change before the first patch
}

func (w *writable) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPatch {
		w.api.ServeHTTP(out, r)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason metav1.StatusReason) {
		out.WriteHeader(code)
		_ = json.NewEncoder(out).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason})
	}
	if w.conflicts > 0 {
		w.conflicts--
		refuse(http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	body, _ := io.ReadAll(r.Body)
	name := path.Base(strings.TrimSuffix(r.URL.Path, "/status"))
	nodes := w.lists["/api/v1/nodes"]
	for i, o := range nodes {
		if o.(*corev1.Node).Name != name {
			continue
		}
		var based struct{ Metadata metav1.ObjectMeta }
		_ = json.Unmarshal(body, &based)
		if change := w.meanwhile; change != nil {
			w.meanwhile = nil
			change(o.(*corev1.Node))
		}
		if version := based.Metadata.ResourceVersion; version != "" && version != o.(*corev1.Node).ResourceVersion {
			refuse(http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		old, _ := json.Marshal(o)
		patched, err := jsonpatch.MergePatch(old, body)
		if strings.HasSuffix(r.URL.Path, "/status") {
			patched, err = strategicpatch.StrategicMergePatch(old, body, &corev1.Node{})
		}
		node := &corev1.Node{}
		if err != nil || json.Unmarshal(patched, node) != nil {
			refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		node.ResourceVersion += "1"
		nodes[i] = node
		_ = json.NewEncoder(out).Encode(node)
		return
	}
	refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
}

// leftNode is a Node after gpuready was removed while it upgraded the driver.
func leftNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "u-1", ResourceVersion: "7",
			Labels: map[string]string{
				"kubernetes.io/hostname": name, "nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "1",
				label.Present: "true", label.Deploy + "device-plugin": label.Paused, label.Deploy + "driver": "false", label.Driver: "jammy",
				label.UpgradeState: "pod-restart-required", label.HandOver: label.Product,
			},
			Annotations: map[string]string{
				"person": "x", label.Features: "gpu.count,gpu.product,gpu.memory", label.OwnLabels: "present,deploy.device-plugin", label.UpgradeCordoned: "true",
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "nfd-master", Operation: "Apply", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:nvidia.com/gpu.memory":{}}}}`)}},
		},
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{
			{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"}, {Key: "own", Effect: "NoSchedule"}, {Key: "team", Effect: "NoExecute"},
		}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: "Ready", Status: "True"}, {Type: "GPUReady", Status: "Unknown", Reason: "ValidatorStopped"}, {Type: "GPUHealthy", Status: "Unknown", Reason: "ValidatorStopped"},
		}},
	}
}

func abandoned(nodes ...*corev1.Node) *writable {
	a := &api{lists: map[string][]any{"/api/v1/nodes": {}, "/api/v1/pods": {}, "/apis/apps/v1/deployments": {}, "/apis/apps/v1/daemonsets": {}}}
	for _, n := range nodes {
		a.lists["/api/v1/nodes"] = append(a.lists["/api/v1/nodes"], n)
	}
	return &writable{api: a}
}

// clean runs kubectl gpu cleanup.
func clean(t *testing.T, w *writable, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runOn(t, w, append([]string{"cleanup"}, args...)...)
}

func TestCleanupListsAndRemovesWhatIsOurs(t *testing.T) {
	w := abandoned(leftNode("gpu-1"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cpu-1", Labels: map[string]string{"a": "b"}}})
	code, listed, stderr := clean(t, w)
	require.Zero(t, code, stderr)
	requireGolden(t, "cleanup.txt", listed)
	_, data, _ := clean(t, w, "-o", "json")
	requireGolden(t, "cleanup.json", data)
	for _, request := range w.asked {
		require.NotContains(t, request, "PATCH")
	}
	require.Equal(t, leftNode("gpu-1"), w.lists["/api/v1/nodes"][0], "a list changes nothing")

	w.conflicts = 2
	code, removed, stderr := clean(t, w, "--yes")
	require.Zero(t, code, stderr)
	requireGolden(t, "cleanup-yes.txt", removed)
	n := w.lists["/api/v1/nodes"][0].(*corev1.Node)
	require.Equal(t, map[string]string{"kubernetes.io/hostname": "gpu-1", "nvidia.com/gpu.memory": "1", label.Deploy + "driver": "false", label.HandOver: label.Product}, n.Labels)
	require.Equal(t, map[string]string{"person": "x"}, n.Annotations)
	require.False(t, n.Spec.Unschedulable)
	require.Equal(t, []corev1.Taint{{Key: "own", Effect: "NoSchedule"}, {Key: "team", Effect: "NoExecute"}}, n.Spec.Taints)
	require.Len(t, n.Status.Conditions, 1)

	code, listed, _ = clean(t, w, "--yes")
	require.Zero(t, code)
	require.Equal(t, "gpuready has left nothing on the Nodes\n", listed)
}

func TestCleanupRefusesNodesThatAreServed(t *testing.T) {
	w := abandoned(leftNode("gpu-1"), leftNode("gpu-2"))
	pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gpuready", Labels: map[string]string{label.PartOf: label.Product}},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	}
	w.lists["/api/v1/pods"] = []any{pod("validator-x", "gpu-1", corev1.PodRunning), pod("proof", "gpu-2", corev1.PodSucceeded)}
	code, said, stderr := clean(t, w, "--yes")
	require.Equal(t, 1, code)
	require.Contains(t, said, "pods of gpuready still run there: gpuready/validator-x")
	require.Contains(t, said, "gpu-2: removed")
	require.Contains(t, said, "cleaned up 1 of 2 nodes")
	require.Contains(t, stderr, "not cleaned up: 1 of 2 nodes, see above")
	require.Equal(t, leftNode("gpu-1"), w.lists["/api/v1/nodes"][0])

	w.lists["/api/v1/pods"] = []any{}
	operator := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: label.Deployment, Namespace: "gpuready-system", Labels: map[string]string{label.PartOf: label.Product}}}
	w.lists["/apis/apps/v1/deployments"] = []any{operator}
	code, said, _ = clean(t, w, "--yes")
	require.Equal(t, 1, code)
	require.Contains(t, said, "gpuready's operator runs, Deployment gpuready-system/gpuready-operator")
	require.Equal(t, leftNode("gpu-1"), w.lists["/api/v1/nodes"][0])
	operator.Spec.Replicas = new(int32)
	code, _, stderr = clean(t, w, "--yes")
	require.Zero(t, code, stderr)
}

// The Nodes are read long before the last of many is patched.
func TestCleanupKeepsWhatOthersWroteMeanwhile(t *testing.T) {
	w := abandoned(leftNode("gpu-1"))
	added := corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"}
	w.meanwhile = func(n *corev1.Node) { n.ResourceVersion, n.Spec.Taints = "8", append(n.Spec.Taints, added) }
	code, _, stderr := clean(t, w, "--yes")
	require.Zero(t, code, stderr)
	n := w.lists["/api/v1/nodes"][0].(*corev1.Node)
	require.Contains(t, n.Spec.Taints, added)
	require.NotContains(t, n.Spec.Taints, corev1.Taint{Key: "nvidia.com/gpu-not-ready", Effect: "NoSchedule"})
	require.Len(t, n.Status.Conditions, 1)
}

func TestCleanupKeepsTheLabelsOfNVIDIAsPods(t *testing.T) {
	node := leftNode("gpu-1")
	node.Labels[label.Deploy+"device-plugin"] = "true"
	w := abandoned(node)
	w.lists["/apis/apps/v1/deployments"] = []any{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: label.NVIDIADeployment, Namespace: "nvidia"}}}
	code, said, stderr := clean(t, w, "--yes")
	require.Zero(t, code, stderr)
	require.Contains(t, said, "NVIDIA's operator runs, Deployment nvidia/gpu-operator")
	n := w.lists["/api/v1/nodes"][0].(*corev1.Node)
	require.Equal(t, "true", n.Labels[label.Present])
	require.Equal(t, "true", n.Labels[label.Deploy+"device-plugin"])
	require.NotContains(t, n.Labels, label.Driver)
	require.Len(t, n.Status.Conditions, 1)
}

func TestCleanupNamesObjectsThatStayAndFollowsAPolicysTaint(t *testing.T) {
	w := abandoned(leftNode("gpu-1"), leftNode("gpu-2"))
	policy := &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	policy.Spec.Node.StartupTaint.Key = "own"
	w.lists["/apis/nvidia.com/v1/clusterpolicies"] = []any{policy}
	w.lists["/apis/apps/v1/daemonsets"] = []any{&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "gpuready", Labels: map[string]string{label.PartOf: label.Product}}}}
	code, said, stderr := clean(t, w, "gpu-2", "--yes")
	require.Zero(t, code, stderr)
	require.Contains(t, said, "taints: nvidia.com/gpu-not-ready, own")
	require.Contains(t, said, "kubectl delete clusterpolicy p")
	require.Contains(t, said, "DaemonSet gpuready/d stays")
	require.Equal(t, leftNode("gpu-1"), w.lists["/api/v1/nodes"][0], "it was not named")

	code, _, stderr = clean(t, w, "gpu-9")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "there is no Node gpu-9")
}

func TestCleanupNeedsToReadPodsAndReportsRefusedWrites(t *testing.T) {
	w := abandoned(leftNode("gpu-1"))
	w.forbidden = "/pods"
	code, _, stderr := clean(t, w, "--yes")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "read gpuready's pods, of all namespaces: Forbidden")
	w.forbidden, w.conflicts = "", 100
	code, said, _ := clean(t, w, "--yes")
	require.Equal(t, 1, code)
	require.Contains(t, said, "cleaned up 0 of 1 nodes")
}

func TestPatchNodeSendsWhoWrites(t *testing.T) {
	var asked *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		_, _ = io.WriteString(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","resourceVersion":"8"}}`)
	}))
	t.Cleanup(s.Close)
	c, err := cluster.ForConfig(&rest.Config{Host: s.URL}, 1e9)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	n, err := c.PatchNode(t.Context(), "n", "status", []byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, "8", n.ResourceVersion)
	require.Equal(t, "/api/v1/nodes/n/status?fieldManager=kubectl-gpu", asked.URL.String())
	require.Equal(t, "application/strategic-merge-patch+json", asked.Header.Get("Content-Type"))
}
