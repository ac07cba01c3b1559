package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/kubectl/migrate"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/test/lab/golden"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func requireGolden(t *testing.T, name, have string) {
	t.Helper()
	golden.Require(t, "testdata/"+name, have)
}

// api is an API server with these objects, by the path of their list.
type api struct {
	lists     map[string][]any
	forbidden string                          // paths that end so are not to be read
	away      map[string]int                  // how often a path is not served
	made      func(*batchv1.Job) *batchv1.Job // what becomes of a Job that is created
	log       string
	asked     []string
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked = append(a.asked, r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	answer := func(code int, v any) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v)
	}
	status := func(code int, reason metav1.StatusReason) {
		answer(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: string(reason) + " " + r.URL.Path})
	}
	folder, name := filepath.Split(r.URL.Path)
	switch {
	case r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, cmp.Or(a.forbidden, "nothing")):
		var job batchv1.Job
		_ = json.NewDecoder(r.Body).Decode(&job)
		job.Name = "gpuready-prebuild-x7k2p"
		a.lists[r.URL.Path] = append(a.lists[r.URL.Path], a.made(&job))
		answer(http.StatusCreated, &job)
	case a.forbidden != "" && strings.HasSuffix(r.URL.Path, a.forbidden):
		status(http.StatusForbidden, metav1.StatusReasonForbidden)
	case a.away[r.URL.Path] > 0:
		a.away[r.URL.Path]--
		status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case name == "log":
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintf(w, a.log, r.URL.Query().Get("container"))
	case r.URL.Path == "/version":
		answer(200, map[string]string{"gitVersion": "v1.34.0"})
	case a.lists[r.URL.Path] != nil:
		a.page(answer, r)
	default:
		for _, o := range a.lists[strings.TrimSuffix(folder, "/")] {
			if o.(metav1.Object).GetName() == name {
				answer(200, o)
				return
			}
		}
		if strings.Contains(r.URL.Path, "/namespaces/") || strings.HasSuffix(r.URL.Path, "/clusterpolicies") {
			answer(200, map[string]any{"items": []any{}})
			return
		}
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// page responds with one object per page, as a server with a limit does.
func (a *api) page(answer func(int, any), r *http.Request) {
	var items []any
	selector, _ := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	for _, o := range a.lists[r.URL.Path] {
		if p, is := o.(*corev1.Pod); is && !selector.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)}) {
			continue
		}
		items = append(items, o)
	}
	at := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &at)
	meta := metav1.ListMeta{}
	if at+1 < len(items) {
		meta.Continue = fmt.Sprint(at + 1)
	}
	answer(200, map[string]any{"metadata": meta, "items": items[min(at, len(items)):min(at+1, len(items))]})
}

func serve(t *testing.T, a *api) *cluster.Client {
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	c, err := cluster.ForConfig(&rest.Config{Host: s.URL}, time.Minute)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

const pool = "amd64/ubuntu22.04/5.15.0-105-generic"

func policy() *v1.ClusterPolicy {
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(5 * time.Minute)}
	}
	return &v1.ClusterPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-cluster-policy", Generation: 2, CreationTimestamp: ago(100 * time.Hour), Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "old"}},
		Spec:       v1.ClusterPolicySpec{Driver: v1.DriverSpec{OperandSpec: v1.OperandSpec{ContainerSpec: v1.ContainerSpec{Env: []v1.EnvVar{{Name: "REGISTRY_TOKEN", Value: "hunter2"}, {Name: "HTTPS_PROXY", Value: "http://me:hunter2@proxy:3128"}}}}}},
		Status: v1.ClusterPolicyStatus{
			State: v1.NotReady, Namespace: "gpus", ObservedGeneration: 2,
			Conditions: []metav1.Condition{
				condition("Ready", "False", "NodesNotReady", "1 of 2 GPU nodes are ready, 1 failed; gpu-2: driver: ImagePullBackOff: pod gpus/nvidia-driver-daemonset-x: container nvidia-driver-ctr: image r/driver:1 is not there"),
				condition("Progressing", "False", "Settled", "nothing is in progress"),
				condition("Degraded", "True", "NodesFailed", "1 of 2 GPU nodes failed"),
				condition("Unserved", "False", "AllFieldsServed", "all fields that are set are served"),
			},
			Nodes:    &v1.NodesStatus{Total: 2, Ready: 1, Failed: 1},
			NotReady: []v1.NodeStatus{{Node: "gpu-2", Pool: pool, State: "driver", Reason: "ImagePullBackOff", Message: "image r/driver:1 is not there", Since: ago(3 * time.Hour)}},
			Pools: []v1.PoolStatus{
				{Name: pool, OS: "ubuntu22.04", Kernel: "5.15.0-105-generic", Arch: "amd64", Nodes: 2, Ready: 1, Variant: "precompiled", DaemonSet: "nvidia-driver-daemonset-5.15.0-105-generic-ubuntu22.04", Image: "nvcr.io/nvidia/driver:580-5.15.0-105-generic-ubuntu22.04", Reason: "PrecompiledImageMissing", Message: "nvcr.io/nvidia/driver:580-5.15.0-105-generic-ubuntu22.04 is not there; what runs is kept"},
			},
			Prebuilt: []v1.PrebuiltStatus{
				{Kernel: "5.15.0-107-generic", OSTag: "ubuntu22.04", Version: "580.95.05", Kind: "open", Image: "r.example/driver:580.95.05-5.15.0-107-generic-ubuntu22.04", State: v1.PrebuiltPresent},
				{Kernel: "6.8.0-100-generic", OSTag: "ubuntu22.04", Version: "580.95.05", Kind: "open", Image: "r.example/driver:580.95.05-6.8.0-100-generic-ubuntu22.04", State: v1.PrebuiltFailed, Message: "container build: BuildFailed: nv-mmap.c:42: error"},
			},
			Upgrade:      &v1.UpgradeStatus{Total: 2, Done: 1, Failed: 1},
			Provisioning: []v1.ProvisioningStatus{{Step: "feature-labels", Count: 40, SumSeconds: 4000, Buckets: []int64{0, 0, 0, 0, 0, 0, 0, 30, 9, 1}}},
		},
	}
}

// heldUp returns the policy while a budget blocks the driver upgrade of gpu-1.
func heldUp() *v1.ClusterPolicy {
	p := policy()
	p.Status.Unserved = []string{"driver.manager: the operator itself clears a node before its driver is replaced: set driver.upgradePolicy"}
	p.Status.Upgrade = &v1.UpgradeStatus{Total: 2, InProgress: 1, Pending: 1, Waiting: []v1.UpgradeWait{
		{Node: "gpu-1", Message: "pod team/trainer cannot be evicted: The disruption budget trainer needs 1 healthy pods and has 1 currently"},
	}}
	return p
}

func node(name string, ready corev1.ConditionStatus, reason, message string) *corev1.Node {
	gpus := corev1.ResourceList{}
	if ready == corev1.ConditionTrue {
		gpus["nvidia.com/gpu"] = resource.MustParse("8")
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(time.Hour), Labels: map[string]string{
			label.PCI3D: "true", label.OSID: "ubuntu", label.OSVersion: "22.04", label.Kernel: "5.15.0-105-generic", label.Present: "true",
			label.GPUProduct: "NVIDIA-H200", "nvidia.com/gpu.count": "8", label.Driver: "5.15.0-105-generic-ubuntu22.04", label.UpgradeState: "upgrade-failed",
		}, Annotations: map[string]string{label.UpgradeReason: "the new driver has no image"}},
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"}}},
		Status: corev1.NodeStatus{
			Capacity: gpus, Allocatable: gpus,
			NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64", KubeletVersion: "v1.34.0", ContainerRuntimeVersion: "containerd://2.1.0"},
			Images:   []corev1.ContainerImage{{Names: []string{"x"}}},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: "True"},
				{Type: "GPUReady", Status: ready, Reason: reason, Message: message, LastTransitionTime: ago(30 * time.Minute), LastHeartbeatTime: ago(time.Minute)},
			},
		},
	}
}

func pod(name, app, node string, broken bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gpus", Labels: map[string]string{"app": app, label.PartOf: label.Product}, CreationTimestamp: ago(31 * time.Minute), OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet"}}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Env: []corev1.EnvVar{{Name: "NGC_API_KEY", Value: "hunter2"}, {Name: "PLAIN", Value: "shown"}}}}},
		Status: corev1.PodStatus{Phase: "Running", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "main", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}},
	}
	if broken {
		p.Status.Phase = "Pending"
		p.Status.Conditions[0].Status = "False"
		p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "main", Image: "r/driver:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "r/driver:1 is not there"}}}
	}
	return p
}

func fixture() *api {
	return &api{
		log: "%s: ready; got Authorization: Bearer abcdefgh12345678\n",
		lists: map[string][]any{
			"/apis/nvidia.com/v1/clusterpolicies": {policy()},
			"/apis/nvidia.com/v1":                 {},
			"/api/v1/nodes":                       {node("gpu-1", "True", "Ready", "8 of 8 GPUs ready, driver 580.95.05"), node("gpu-2", "False", "KernelModuleNotLoaded", "driver: no module nvidia; load it")},
			"/api/v1/namespaces/gpus/pods": {
				pod("nvidia-driver-daemonset-a", label.DriverApp, "gpu-1", false), pod("nvidia-driver-daemonset-b", label.DriverApp, "gpu-2", true), pod("nvidia-operator-validator-b", "nvidia-operator-validator", "gpu-2", false),
			},
			"/api/v1/namespaces/default/events": {
				&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, Type: "Warning", Reason: "ImagePullBackOff", Message: "driver: r/driver:1 is not there", LastTimestamp: ago(20 * time.Minute), Count: 3},
				&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Type: "Normal", Reason: "NodeReady", Message: "routine", Source: corev1.EventSource{Component: "kubelet"}, LastTimestamp: ago(time.Minute), Count: 1},
			},
		},
	}
}

func TestStatus(t *testing.T) {
	for name, c := range map[string]struct {
		policies []v1.ClusterPolicy
		look     style
	}{
		"status.txt":         {[]v1.ClusterPolicy{*policy()}, style{Width: 160}},
		"status-narrow.txt":  {[]v1.ClusterPolicy{*policy()}, style{Width: 40}},
		"status-color.txt":   {[]v1.ClusterPolicy{*policy()}, style{Width: 120, Color: true}},
		"status-held-up.txt": {[]v1.ClusterPolicy{*heldUp()}, style{Width: 120}},
		"status-dra.txt":     {[]v1.ClusterPolicy{*changing()}, style{Width: 120}},
		"status-none.txt":    {nil, style{Width: 80}},
		"status-two.txt": {[]v1.ClusterPolicy{
			{ObjectMeta: metav1.ObjectMeta{Name: "second", CreationTimestamp: ago(time.Hour)}, Status: v1.ClusterPolicyStatus{State: v1.Ignored, Conditions: []metav1.Condition{{Type: "Ready", Status: "False", Reason: "Ignored", Message: "ClusterPolicy first is older and in force; delete one of them", LastTransitionTime: ago(time.Hour)}}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "first", CreationTimestamp: ago(2 * time.Hour), Generation: 7}, Status: v1.ClusterPolicyStatus{State: v1.Ready, ObservedGeneration: 6, Nodes: &v1.NodesStatus{Total: 3, Ready: 3}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "third", CreationTimestamp: ago(time.Minute)}},
		}, style{Width: 80}},
		"status-foreign.txt": {[]v1.ClusterPolicy{
			{ObjectMeta: metav1.ObjectMeta{Name: "cluster-policy", CreationTimestamp: ago(2 * time.Hour), Generation: 1}, Status: v1.ClusterPolicyStatus{State: v1.Ready, Namespace: "gpu-operator"}},
		}, style{Width: 100}},
	} {
		var b bytes.Buffer
		require.NoError(t, summarize(c.policies, nil, now).text(&b, c.look))
		requireGolden(t, name, b.String())
	}
}

// Agents that were installed by manifests have neither an operator nor a definition of policies.
func TestAgentsWithoutAnOperator(t *testing.T) {
	a := fixture()
	delete(a.lists, "/apis/nvidia.com/v1/clusterpolicies")
	delete(a.lists, "/apis/nvidia.com/v1")
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "nvidia-operator-validator", Namespace: "gpus", Labels: map[string]string{label.PartOf: label.Product}}}
	a.lists["/apis/apps/v1/daemonsets"] = []any{set}
	third := []any{node("gpu-3", "False", "ReachedNothing", "driver: no module nvidia; load it")}
	a.lists["/api/v1/nodes"] = append(a.lists["/api/v1/nodes"], third...)
	a.lists["/api/v1/namespaces/gpus/pods"] = append(a.lists["/api/v1/namespaces/gpus/pods"], pod("nvidia-operator-validator-c", "nvidia-operator-validator", "gpu-3", false))
	for _, c := range []struct{ args, contains string }{
		{"status", "No ClusterPolicy: the agents run without an operator, 1 of 3 GPU nodes ready"},
		{"status", "gpu-2  False     KernelModuleNotLoaded"},
		{"status -o json", `"reason": "KernelModuleNotLoaded"`},
		{"explain gpu-1", "│ 8 of 8 GPUs ready, driver 580.95.05"},
		{"explain gpu-2", "pod gpus/nvidia-driver-daemonset-b: main: ErrImagePull: r/driver:1 is not there"},
		{"explain gpu-3", "ReachedNothing\n╎ no module nvidia"},
		{"explain gpu-3", "╎ → load it\n"},
		{"explain gpu-3 -o json", `"status": "failed"`},
	} {
		code, stdout, stderr := run(t, a, strings.Fields(c.args)...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, c.contains)
	}
}

func TestExplain(t *testing.T) {
	read := func(a *api, name string) cluster.Explanation {
		n, err := serve(t, a).Explain(t.Context(), name, "", now)
		require.NoError(t, err)
		return n
	}
	broken := read(fixture(), "gpu-2")
	text := func(n cluster.Explanation, look style) string {
		var b bytes.Buffer
		require.NoError(t, explanation(n).text(&b, look))
		return b.String()
	}
	requireGolden(t, "explain.txt", text(broken, style{Width: 100}))
	requireGolden(t, "explain-narrow.txt", text(broken, style{Width: 40}))
	requireGolden(t, "explain-ready.txt", text(read(fixture(), "gpu-1"), style{Width: 100}))
	var b bytes.Buffer
	require.NoError(t, writeJSON(&b, broken))
	requireGolden(t, "explain.json", b.String())
	page, err := os.ReadFile("../../docs/troubleshooting.md")
	require.NoError(t, err)
	_, example, _ := strings.Cut(string(page), "explain gpu-2\n")
	example, _, _ = strings.Cut(example, "\nFirst comes")
	rest := text(broken, style{Width: 100})
	for part := range strings.SplitSeq(strings.TrimSuffix(example, "\n"), "    …\n") {
		part = strings.TrimPrefix(strings.ReplaceAll("\n"+part, "\n    ", "\n"), "\n")
		require.Contains(t, rest, part, "docs/troubleshooting.md shows another explanation")
	}

	a := fixture()
	upgrading := node("gpu-1", "True", "Ready", "8 of 8 GPUs ready, driver 580.95.05")
	upgrading.Labels[label.UpgradeState], upgrading.Annotations = "pod-deletion-required", map[string]string{label.UpgradeSince: "2026-01-02T03:00:00Z"}
	a.lists["/api/v1/nodes"], a.lists["/apis/nvidia.com/v1/clusterpolicies"] = []any{upgrading}, []any{heldUp()}
	requireGolden(t, "explain-held-up.txt", text(read(a, "gpu-1"), style{Width: 100}))

	a = fixture()
	a.forbidden = "/pods"
	requireGolden(t, "explain-without-pods.txt", text(read(a, "gpu-2"), style{Width: 100}))
	a = fixture()
	a.lists["/apis/nvidia.com/v1/clusterpolicies"] = nil
	require.Equal(t, cluster.ReasonNoPolicy, read(a, "gpu-2").Cluster.Reason)
	plain := node("cpu", "", "", "")
	plain.Labels = nil
	a.lists["/api/v1/nodes"] = []any{plain}
	a.lists["/apis/nvidia.com/v1/clusterpolicies"] = []any{policy()}
	require.Equal(t, cluster.ReasonNoGPU, read(a, "cpu").Cluster.Reason)
	require.Equal(t, "no label says that the node has an NVIDIA GPU", read(a, "cpu").Cluster.Message)
	plain.Labels = map[string]string{label.Present: "True"}
	require.Equal(t, "its label nvidia.com/gpu.present=True does not say that it has an NVIDIA GPU", read(a, "cpu").Cluster.Message)

	a = fixture()
	withHandlers := node("gpu-1", "True", "Ready", "8 of 8 GPUs ready, driver 580.95.05")
	withHandlers.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: ""}, {Name: "runc"}, {Name: "crun"}}
	a.lists["/api/v1/nodes"] = []any{withHandlers}
	require.Empty(t, read(a, "gpu-1").Cluster.Notes, "there is no RuntimeClass")
	for handler, want := range map[string]int{"runc": 0, "nvidia": 1} {
		a.lists["/apis/node.k8s.io/v1/runtimeclasses"] = []any{&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: handler}}
		notes := read(a, "gpu-1").Cluster.Notes
		require.Len(t, notes, want)
		if want > 0 {
			require.Contains(t, notes[0], "pods with runtimeClassName: nvidia do not start here: the RuntimeClass has the handler nvidia, and the container runtime has crun, runc;")
		}
	}
	_, err = serve(t, fixture()).Explain(t.Context(), "nobody", "", now)
	require.ErrorContains(t, err, "see kubectl get nodes")
}

func TestExplainTellsWhichNVIDIADriversSelectANode(t *testing.T) {
	yes := true
	of := func(name string, selector map[string]string) *v1alpha1.NVIDIADriver {
		return &v1alpha1.NVIDIADriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NVIDIADriverSpec{NodeSelector: selector}}
	}
	for name, c := range map[string]struct {
		drivers              []any
		pool, reason, action string
	}{
		"none":    {[]any{of("gold", map[string]string{"tier": "gold"})}, "", "NoDriverSelected", "label the node, or create an NVIDIADriver with spec.default"},
		"several": {[]any{of("a", nil), of("b", nil)}, "/a, b", "Conflict", "change a nodeSelector, or the node's labels"},
		"one":     {[]any{of("a", nil)}, "/a", "PodMissing", "kubectl -n"},
		"unread":  {nil, "", "DriversUnknown", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := fixture()
			p := policy()
			p.Spec.Driver.UseNvidiaDriverCRD, p.Spec.Driver.Simulated = &yes, nil
			fresh := node("fresh", "", "", "")
			a.lists["/api/v1/nodes"], a.lists["/apis/nvidia.com/v1/clusterpolicies"] = []any{fresh}, []any{p}
			if c.drivers != nil {
				a.lists["/apis/nvidia.com/v1alpha1/nvidiadrivers"] = c.drivers
			}
			n, err := serve(t, a).Explain(t.Context(), "fresh", "", now)
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(n.Cluster.Pool, c.pool), n.Cluster.Pool)
			require.Equal(t, c.reason, n.Cluster.Reason)
			if name != "one" && name != "unread" {
				require.Contains(t, n.Cluster.Message, "fresh")
				require.Equal(t, c.action, n.Cluster.Action)
			}
		})
	}
}

func TestTimers(t *testing.T) {
	p := *policy()
	a, err := computeAdvice(p, 4*time.Minute, 20)
	require.NoError(t, err)
	require.Equal(t, []any{int64(40), int64(90), int64(180), "15m", "10m"}, []any{a.Samples, a.HalfSeconds, a.P99Seconds, a.MaxNodeProvisionTime, a.ScaleDownUnneededTime})
	var b bytes.Buffer
	require.NoError(t, a.text(&b, style{Width: 100}))
	requireGolden(t, "timers.txt", b.String())

	p.Status.Provisioning[0].Buckets = []int64{12: 150, 14: 49, 15: 1}
	a, err = computeAdvice(p, 5*time.Minute, 20)
	require.NoError(t, err)
	require.Equal(t, []any{int64(200), int64(420), int64(900), "30m", "23m"}, []any{a.Samples, a.HalfSeconds, a.P99Seconds, a.MaxNodeProvisionTime, a.ScaleDownUnneededTime})
	_, err = computeAdvice(p, 0, 201)
	require.ErrorIs(t, err, errTooFew)
	p.Status.Provisioning[0].Buckets = []int64{16: 90, 17: 10}
	_, err = computeAdvice(p, 0, 20)
	require.ErrorIs(t, err, errTooSlow)
	p.Status.Provisioning = nil
	_, err = computeAdvice(p, 0, 1)
	require.ErrorIs(t, err, errTooFew)
}

// run runs the command line against an API server.
func run(t *testing.T, a *api, args ...string) (code int, stdout, stderr string) {
	return runOn(t, a, args...)
}

func runOn(t *testing.T, a http.Handler, args ...string) (code int, stdout, stderr string) {
	s := httptest.NewServer(a)
	defer s.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, s.URL), 0o600))
	var out, errs bytes.Buffer
	code = runCommand(t.Context(), append(args, "--kubeconfig", file), &out, &errs)
	return code, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		code   int
		output string // is in what it says
	}{
		"status":          {[]string{"status"}, 0, "ClusterPolicy gpu-cluster-policy: notReady, 1 of 2 GPU nodes ready"},
		"status as JSON":  {[]string{"status", "-o", "json"}, 0, `"state": "notReady"`},
		"explain":         {[]string{"explain", "gpu-2"}, 0, "ImagePullBackOff"},
		"explain whom":    {[]string{"explain"}, 2, "explain takes 1 argument (NODE), not 0; see kubectl gpu explain --help"},
		"no such node":    {[]string{"explain", "x"}, 1, "see kubectl get nodes"},
		"timers":          {[]string{"timers"}, 0, "--max-node-provision-time"},
		"timers, few":     {[]string{"timers", "--min-samples", "41"}, 3, "too few nodes were measured: 40"},
		"version":         {[]string{"version"}, 0, "kubectl-gpu "},
		"format":          {[]string{"status", "-o", "xml"}, 2, "say text, json, yaml, wide or name"},
		"flag":            {[]string{"status", "--nope"}, 2, "see kubectl gpu status --help"},
		"command":         {[]string{"frobnicate"}, 2, `unknown command "frobnicate" (known here: status, explain,`},
		"context":         {[]string{"status", "--context", "other"}, 2, "other"},
		"help":            {[]string{"timers", "--help"}, 0, "--machine"},
		"help of cleanup": {[]string{"cleanup", "--help"}, 0, "--startup-taint"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, fixture(), c.args...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stdout+stderr, c.output)
			if code != 0 {
				require.Empty(t, stdout)
			}
		})
	}
	a := fixture()
	a.forbidden = "/clusterpolicies"
	code, _, stderr := run(t, a, "status")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "read ClusterPolicies: Forbidden")
	var out bytes.Buffer
	require.Equal(t, 0, runCommand(t.Context(), []string{"--help"}, &out, io.Discard))
	requireGolden(t, "help.txt", out.String())
}

// building returns a cluster whose policy names our driver. became sets the results of Jobs.
func building(change func(*v1.ClusterPolicy), became func(*batchv1.Job, *corev1.Pod)) *api {
	p := policy()
	p.UID = "uid"
	p.Spec.Driver.Repository, p.Spec.Driver.Version = "r.example", "580.95.05"
	p.Spec.Driver.Prebuild = &v1.PrebuildSpec{Repository: "r.example/driver"}
	if change != nil {
		change(p)
	}
	a := fixture()
	a.log = "{\n  \"image\": \"x\",\n  \"digest\": \"r.example/driver@sha256:1\"}%.0s"
	a.lists["/apis/nvidia.com/v1/clusterpolicies"] = []any{p}
	a.made = func(j *batchv1.Job) *batchv1.Job {
		yes := true
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: j.Name + "-0", Namespace: j.Namespace, Labels: j.Labels, OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: j.Name, Controller: &yes}}}}
		became(j, pod)
		a.lists["/api/v1/namespaces/gpus/pods"] = []any{pod}
		return j
	}
	return a
}

func TestPrebuild(t *testing.T) {
	pushed := func(j *batchv1.Job, p *corev1.Pod) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		p.Status.Phase = corev1.PodSucceeded
	}
	broken := func(j *batchv1.Job, p *corev1.Pod) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "build", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "gpu-driver: BuildFailed: no headers; name another image"}}}}
	}
	driverSet := func(container, tag string) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "nvidia-driver-ctr", Image: "r.example/driver:" + tag}}
		if container != "" {
			d.Labels = map[string]string{label.DriverContainer: container}
		}
		return d
	}
	nvidiaDriver := func(name, version, modules string) *v1alpha1.NVIDIADriver {
		d := &v1alpha1.NVIDIADriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.Spec.Repository, d.Spec.Image, d.Spec.Version = "n.example", "driver", version
		if modules != "" {
			d.Spec.Prebuild = &v1.PrebuildSpec{Repository: modules}
		}
		return d
	}
	gold, rest := nvidiaDriver("gold", "570.172.08", "n.example/modules"), nvidiaDriver("rest", "570.172.08", "")
	const image = "r.example/driver:580.95.05-6.8.0-100-generic-ubuntu22.04"
	for name, c := range map[string]struct {
		args    string
		change  func(*v1.ClusterPolicy)
		became  func(*batchv1.Job, *corev1.Pod)
		sets    []any
		drivers []any // NVIDIADrivers; the policy uses them if there are any
		code    int
		output  string
		nothing bool // is made
	}{
		"pushed":                  {became: pushed, output: image + "\nr.example/driver@sha256:1\n"},
		"pushed, as JSON":         {args: "-o json", became: pushed, output: `"digest": "r.example/driver@sha256:1"`},
		"ours runs":               {became: pushed, sets: []any{driverSet(label.Product, "580.95.05-ubuntu22.04")}, output: image},
		"failed":                  {became: broken, code: 5, output: "the modules are not built: Job gpus/gpuready-prebuild-x7k2p: container build: BuildFailed: no headers; name another image"},
		"failed, as JSON":         {args: "-o json", became: broken, code: 5, output: `"state": "Failed"`},
		"not waited for":          {args: "--wait=false", became: broken, output: "Job gpus/gpuready-prebuild-x7k2p builds " + image},
		"too slow":                {args: "--timeout 1ms", became: func(*batchv1.Job, *corev1.Pod) {}, code: 1, output: "not done within 1ms (--timeout)"},
		"dry":                     {args: "--dry-run", output: "- --driver-version\n        - 580.95.05\n", nothing: true},
		"dry, as JSON":            {args: "--dry-run -o json --kind proprietary", output: `"/shared/sources/kernel"`, nothing: true},
		"another version":         {args: "--driver-version 580.65.06 --os-tag debian12 --dry-run", output: "image: r.example/driver:580.65.06-debian12", nothing: true},
		"no repository":           {change: func(p *v1.ClusterPolicy) { p.Spec.Driver.Prebuild = nil }, code: 1, output: "set spec.driver.prebuild.repository", nothing: true},
		"no image":                {change: func(p *v1.ClusterPolicy) { p.Spec.Driver.Repository = "" }, code: 1, output: "names no driver image with a driver in it", nothing: true},
		"no version":              {change: func(p *v1.ClusterPolicy) { p.Spec.Driver.Version = "580" }, code: 1, output: "set --driver-version", nothing: true},
		"NVIDIA's":                {change: func(p *v1.ClusterPolicy) { p.Spec.Driver.Repository = "nvcr.io/nvidia" }, code: 1, output: "nvcr.io/nvidia/driver:580.95.05-ubuntu22.04 is no driver container of gpuready", nothing: true},
		"another tag is NVIDIA's": {became: pushed, sets: []any{driverSet("", "570.1-ubuntu22.04")}, output: image},
		"a mirror of it":          {sets: []any{driverSet("", "580.95.05-ubuntu22.04")}, code: 1, output: "is no driver container of gpuready", nothing: true},
		"which system": {change: func(p *v1.ClusterPolicy) {
			p.Status.Pools = append(p.Status.Pools, v1.PoolStatus{Name: "b", OS: "rhcos4.18"})
		}, code: 1, output: "GPU nodes have rhcos4.18, ubuntu22.04; set --os-tag", nothing: true},
		"the nodes' architecture": {args: "--dry-run", output: "kubernetes.io/arch: amd64", nothing: true},
		"the kernel's":            {args: "--dry-run --kernel 6.1.0-50-arm64", output: "kubernetes.io/arch: arm64", nothing: true},
		"as it is said":           {args: "--dry-run --arch arm64", output: "kubernetes.io/arch: arm64", nothing: true},
		"that of the nodes that run it": {args: "--dry-run", change: func(p *v1.ClusterPolicy) {
			p.Status.Pools = append(p.Status.Pools, v1.PoolStatus{Name: "b", OS: "ubuntu22.04", Arch: "arm64", Kernel: "6.8.0-100-generic"})
		}, output: "kubernetes.io/arch: arm64", nothing: true},
		"which architecture": {change: func(p *v1.ClusterPolicy) {
			p.Status.Pools = append(p.Status.Pools, v1.PoolStatus{Name: "b", OS: "ubuntu22.04", Arch: "arm64"})
		}, code: 1, output: "GPU nodes have amd64, arm64; set --arch", nothing: true},
		"no nodes, no architecture": {args: "--os-tag ubuntu22.04", change: func(p *v1.ClusterPolicy) { p.Status.Pools = nil }, code: 1, output: "set --arch", nothing: true},
		"wrong architecture":        {args: "--arch x86_64", code: 2, output: "say amd64 or arm64", nothing: true},
		"no nodes":                  {change: func(p *v1.ClusterPolicy) { p.Status.Pools = nil }, code: 1, output: "set --os-tag", nothing: true},
		"wrong kind":                {args: "--kind closed", code: 2, output: "say open or proprietary", nothing: true},
		"the only NVIDIADriver":     {args: "--dry-run", drivers: []any{gold}, output: "n.example/modules:570.172.08-6.8.0-100-generic-ubuntu22.04", nothing: true},
		"a named NVIDIADriver":      {args: "--nvidia-driver gold", became: pushed, drivers: []any{gold, rest}, output: "n.example/modules:570.172.08-6.8.0-100-generic-ubuntu22.04"},
		"which NVIDIADriver":        {drivers: []any{gold, rest}, code: 2, output: "--nvidia-driver must name one of gold, rest", nothing: true},
		"no such NVIDIADriver":      {args: "--nvidia-driver red", drivers: []any{gold}, code: 1, output: "there is no NVIDIADriver red; there are gold", nothing: true},
		"it has no repository":      {args: "--nvidia-driver rest", drivers: []any{gold, rest}, code: 1, output: "NVIDIADriver rest names no repository for modules: set spec.prebuild.repository", nothing: true},
		"no NVIDIADrivers are used": {args: "--nvidia-driver gold", code: 1, output: "leave out --nvidia-driver", nothing: true},
		"no kernel":                 {args: "--kernel=", code: 2, output: "needs --kernel and --toolkit-image", nothing: true},
	} {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if c.drivers != nil {
				change = func(p *v1.ClusterPolicy) { p.Spec.Driver.UseNvidiaDriverCRD = new(true) }
			}
			a := building(change, c.became)
			a.lists["/apis/apps/v1/namespaces/gpus/daemonsets"] = c.sets
			a.lists["/apis/nvidia.com/v1alpha1/nvidiadrivers"] = c.drivers
			code, stdout, stderr := run(t, a, append([]string{"prebuild", "--kernel", "6.8.0-100-generic", "--toolkit-image", "headers:6.8"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stdout+stderr, c.output)
			require.Equal(t, c.nothing, len(a.lists["/apis/batch/v1/namespaces/gpus/jobs"]) == 0)
		})
	}
	a := building(nil, pushed)
	code, stdout, _ := run(t, a, "prebuild", "--kernel", "6.8.0-100-generic", "--toolkit-image", "headers:6.8", "--dry-run")
	require.Zero(t, code)
	require.Contains(t, stdout, "runAsUser: 65534")
	a.lists["/apis/security.openshift.io"] = []any{&corev1.Pod{}}
	code, _, stderr := run(t, a, "prebuild", "--kernel", "6.8.0-100-generic", "--toolkit-image", "headers:6.8", "--dry-run")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "no GPU node runs kernel 6.8.0-100-generic yet, and an upgrade of OpenShift changes it; set --os-tag")
	code, stdout, _ = run(t, a, "prebuild", "--kernel", "5.15.0-105-generic", "--toolkit-image", "headers:5.15", "--dry-run")
	require.Zero(t, code, "a node runs it")
	require.NotContains(t, stdout, "runAsUser:")
	a.forbidden = "/jobs"
	code, _, stderr = run(t, a, "prebuild", "--kernel", "6.8.0-100-generic", "--toolkit-image", "headers:6.8", "--os-tag", "rhcos4.18")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "create a Job in gpus: Forbidden")
}

func TestPrebuildWaitsForAnAPIServerThatIsAwayForAWhile(t *testing.T) {
	a := building(nil, func(j *batchv1.Job, p *corev1.Pod) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		p.Status.Phase = corev1.PodSucceeded
	})
	args := []string{"prebuild", "--kernel", "6.8.0-100-generic", "--toolkit-image", "headers:6.8"}
	a.away = map[string]int{"/apis/batch/v1/namespaces/gpus/jobs/gpuready-prebuild-x7k2p": 1}
	code, stdout, stderr := run(t, a, args...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "r.example/driver@sha256:1")
	require.Contains(t, stderr, "read Job gpuready-prebuild-x7k2p: ServiceUnavailable")
	a.forbidden = "/pods"
	code, _, stderr = run(t, a, args...)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "read the pods of Job gpuready-prebuild-x7k2p: Forbidden")
}

func files(t *testing.T, archive string) map[string]string {
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	zip, err := gzip.NewReader(f)
	require.NoError(t, err)
	all := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		_, name, _ := strings.Cut(h.Name, "/")
		all[name] = string(data)
	}
}

func TestMustGather(t *testing.T) {
	to := filepath.Join(t.TempDir(), "all.tar.gz")
	a := fixture()
	code, stdout, stderr := run(t, a, "must-gather", "--to", to)
	require.Equal(t, 0, code, stderr)
	require.Equal(t, to+"\n", stdout)
	require.Contains(t, stderr, "Pods in gpus\n")
	all := files(t, to)
	var names []string
	for name, content := range all {
		names = append(names, name)
		for _, secret := range []string{"hunter2", "abcdefgh12345678", "last-applied"} {
			require.NotContains(t, content, secret, name)
		}
	}
	slices.Sort(names)
	require.Equal(t, []string{
		"clusterpolicies.json", "daemonsets.json", "deployments.json", "deviceclasses.json", "errors.txt", "events.json",
		"logs/nvidia-driver-daemonset-a/main.log", "logs/nvidia-operator-validator-b/main.log",
		"node-events.json", "nodes.json", "pods.json", "resourceclaims.json", "resourceslices.json", "versions.json",
	}, names)
	require.Contains(t, all["pods.json"], "shown")
	require.Contains(t, all["clusterpolicies.json"], "proxy:3128")
	require.NotContains(t, all["nodes.json"], `"images"`)
	require.Contains(t, all["versions.json"], "v1.34.0")
	require.Empty(t, all["errors.txt"])
	for _, path := range a.asked {
		require.NotContains(t, path, "secrets")
	}
	info, err := os.Stat(to)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	a = fixture()
	a.forbidden = "/nodes"
	code, _, stderr = run(t, a, "must-gather", "--to", to, "--log-nodes", "1")
	require.Equal(t, 4, code, stderr)
	all = files(t, to)
	require.Contains(t, all["errors.txt"], "GPU nodes: Forbidden /api/v1/nodes\n")
	require.Contains(t, all["errors.txt"], "logs: those of 1 nodes are left out (--log-nodes)\n")
	require.Contains(t, all, "logs/nvidia-operator-validator-b/main.log", "the node that is not ready")
	require.NotContains(t, all, "logs/nvidia-driver-daemonset-a/main.log")
	left, err := filepath.Glob(filepath.Join(filepath.Dir(to), "*"))
	require.NoError(t, err)
	require.Equal(t, []string{to}, left)
}

func TestMigrationPlan(t *testing.T) {
	found := migrate.Plan{
		NVIDIA:     []migrate.Operator{{Namespace: "gpu-operator", Name: "gpu-operator", Version: "v24.3.0", Runs: true, Ready: true}},
		GPUReady:   []migrate.Operator{{Namespace: "gpuready-system", Name: "gpuready-operator", Version: "v0.1.0", Runs: true, Ready: true}},
		Definition: "nvidia",
		Policies: []migrate.Policy{{Name: "cluster-policy", InForce: true, State: "ready", Pruned: []string{"spec.newPart"},
			Unserved: []string{"driver.manager: the operator itself clears a node before its driver is replaced: set driver.upgradePolicy"}}},
		DaemonSets: []migrate.DaemonSet{{Side: migrate.NVIDIA, Namespace: "gpu-operator", Name: "nvidia-device-plugin-daemonset", Desired: 2, Ready: 2}, {Side: migrate.GPUReady, Namespace: "gpuready-system", Name: "nvidia-device-plugin-daemonset", Desired: 1}},
		Nodes: []migrate.Node{
			{Name: "gpu-1", ServedBy: migrate.GPUReady, Pods: []string{"team/train"}},
			{Name: "gpu-2", ServedBy: migrate.NVIDIA, Pods: []string{"team/a", "team/b", "team/c"}, Next: "kubectl gpu migrate node gpu-2"},
			{Name: "gpu-3", ServedBy: migrate.NVIDIA, Refused: []string{"the Node is not Ready: see kubectl describe node gpu-3"}},
			{Name: "gpu-4", ServedBy: migrate.Between, Waits: "its labels are on the way from one operator to the other", Next: "kubectl gpu migrate node gpu-4"},
			{Name: "gpu-5", ServedBy: migrate.Nobody},
		},
		Next: []string{"kubectl gpu migrate node gpu-4"},
	}
	require.Equal(t, []string{"node/gpu-1", "node/gpu-2", "node/gpu-3", "node/gpu-4", "node/gpu-5"}, migrationPlan(found).names())
	for name, look := range map[string]style{"migrate.txt": {Width: 120}, "migrate-narrow.txt": {Width: 40}} {
		var b bytes.Buffer
		require.NoError(t, migrationPlan(found).text(&b, look))
		requireGolden(t, name, b.String())
	}
	var b bytes.Buffer
	require.NoError(t, migrationPlan{Next: []string{migrate.Installation()}}.text(&b, style{Width: 120}))
	require.Contains(t, b.String(), "in a clone of gpuready's repository")
	require.Contains(t, b.String(), "\n  helm install gpuready deployments/helm/gpuready -n gpuready-system")
	b.Reset()
	moves := nodeMoves{{Node: "gpu-1", Done: true}, {Node: "gpu-2", Steps: migrate.Steps(migrate.GPUReady)}, {Node: "gpu-3", Refused: []string{"the Node is not Ready"}}}
	require.NoError(t, moves.text(&b, style{Width: 100}))
	require.ErrorContains(t, moves.outcome(), "nodes refused: 1 of 3")
	b.WriteString("\n")
	moves = nodeMoves{{Node: "gpu-2", Steps: migrate.Steps(migrate.NVIDIA)}}
	require.NoError(t, moves.text(&b, style{Width: 100}))
	require.NoError(t, nodeMoves{}.text(&b, style{Width: 100}))
	requireGolden(t, "migrate-node.txt", b.String())
}

func TestMovesGoOnAfterANodeThatIsRefusedInItsTurn(t *testing.T) {
	planned := func() nodeMoves {
		return nodeMoves{{Node: "a", Steps: migrate.Steps(migrate.GPUReady)}, {Node: "b", Refused: []string{"the Node is not Ready"}}, {Node: "c", Steps: migrate.Steps(migrate.GPUReady)}}
	}
	moves := planned()
	err := moves.run(func(node string) error {
		if node == "a" {
			return fmt.Errorf("%s: %w", node, &migrate.RefusedError{Reasons: []string{"pods use its GPUs"}})
		}
		return nil
	})
	require.EqualError(t, err, "nodes refused: 2 of 3, see above")
	require.Equal(t, nodeMoves{{Node: "a", Refused: []string{"pods use its GPUs"}}, {Node: "b", Refused: []string{"the Node is not Ready"}}, {Node: "c", Steps: migrate.Steps(migrate.GPUReady), Done: true}}, moves)

	moves = planned()
	require.EqualError(t, moves.run(func(string) error { return errors.New("too late") }), "too late")
	require.Equal(t, planned(), moves)
}

func TestMigrateUsage(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	server := httptest.NewServer(&api{forbidden: "/deployments"})
	t.Cleanup(server.Close)
	require.NoError(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}]}`, server.URL), 0o600))
	for args, want := range map[string]struct {
		exit int
		text string
	}{
		"migrate --help":                     {0, "kubectl gpu migrate back NODE..."},
		"migrate node --help":                {0, "3  the cluster cannot be read"},
		"migrate nodes":                      {2, `unknown command "nodes", did you mean "node"? See kubectl gpu migrate --help`},
		"migrate node":                       {2, "name the nodes, or say --all"},
		"migrate back --all gpu-1":           {2, "name the nodes, or say --all"},
		"migrate node a --timeout 0s":        {2, "--timeout must be above 0"},
		"migrate plan gpu-1":                 {2, "plan takes no arguments, not 1"},
		"migrate --kubeconfig=" + kubeconfig: {3, "read Deployments: Forbidden"},
	} {
		var out strings.Builder
		require.Equal(t, want.exit, runCommand(t.Context(), strings.Fields(args), &out, &out), args)
		require.Contains(t, out.String(), want.text, args)
	}
}
