package migrate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/kubectl/cluster"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	theirs = "gpu-operator"
	ours   = "gpuready-system"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster with both operators and one GPU node. The operators' work is simulated: after
// each change of the node's labels, pods leave and come at once.
type world struct {
	mu        sync.Mutex
	version   int
	lists     map[string][]any
	watches   map[string][]chan []byte // by path
	sent      map[string][]change      // by path; a watch begins with those after its version
	requests  []string
	stuck     bool // pods neither leave nor come
	conflict  int  // how many patches another client is faster than
	written   []map[string]any
	powerless string // namespace whose Deployments may not write Nodes
}

func newWorld() *world {
	w := &world{version: 1, watches: map[string][]chan []byte{}, sent: map[string][]change{}}
	w.lists = map[string][]any{
		"/apis/apps/v1/deployments": {operatorNamed(label.NVIDIADeployment, theirs, "v24.3.0"), operatorNamed(label.Deployment, ours, "v0.1.0")},
		"/apis/apps/v1/daemonsets": {
			daemonSet("nvidia-driver-daemonset", "driver"), daemonSet("nvidia-container-toolkit-daemonset", "container-toolkit"),
			daemonSet("nvidia-device-plugin-daemonset", "device-plugin"), daemonSet("nvidia-operator-validator", "operator-validator"),
		},
		"/apis/node.k8s.io/v1/runtimeclasses": {&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "nvidia"}, Handler: "nvidia"}},
		"/apis/nvidia.com/v1/clusterpolicies": {json.RawMessage(`{"apiVersion":"nvidia.com/v1","kind":"ClusterPolicy","metadata":{"name":"cluster-policy","creationTimestamp":"2026-01-01T00:00:00Z","managedFields":[{"manager":"helm","operation":"Apply","fieldsV1":{"f:spec":{}}}]},` +
			`"spec":{"driver":{"manager":{"image":"k8s-driver-manager"}},"newPart":{"enabled":true}},"status":{"state":"ready","namespace":"gpu-operator"}}`)},
		"/api/v1/nodes": {gpuNode("gpu-1")},
		"/api/v1/pods":  {},
	}
	w.settle()
	return w
}

func operatorNamed(name, namespace, version string) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/version": version}}, Status: appsv1.DeploymentStatus{Replicas: 1, AvailableReplicas: 1}}
	if name == label.Deployment {
		d.Labels[label.PartOf] = label.Product
	}
	return d
}

// daemonSet returns an operand of NVIDIA's operator.
func daemonSet(name, operand string) *appsv1.DaemonSet {
	controller := true
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: theirs, UID: "uid-" + "x", OwnerReferences: []metav1.OwnerReference{{APIVersion: "nvidia.com/v1", Kind: "ClusterPolicy", Name: "cluster-policy", Controller: &controller}}},
		Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeSelector: map[string]string{label.Deploy + operand: "true"}}}},
	}
}

func gpuNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1", ResourceVersion: "1", Labels: map[string]string{label.PCI3D: "true", label.GPUProduct: "NVIDIA-H200", label.OSID: "ubuntu", label.OSVersion: "22.04", label.Kernel: "5.15.0-105-generic"}},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{Architecture: "amd64", KubeletVersion: "v1.34.0", ContainerRuntimeVersion: "containerd://2.1.0"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(start)}},
		},
	}
}

// operandPod returns a ready pod of a DaemonSet.
func operandPod(set, namespace, operand string) *corev1.Pod {
	controller := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: set + "-x", Namespace: namespace, Labels: map[string]string{"app": set}, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set, UID: "uid-x", Controller: &controller}}},
		Spec:       corev1.PodSpec{NodeName: "gpu-1", NodeSelector: map[string]string{label.Deploy + operand: "true"}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}}}},
		},
	}
	if namespace == ours {
		p.Labels[label.PartOf], p.Spec.NodeSelector = label.Product, map[string]string{label.HandOver: label.Product}
	}
	return p
}

// userPod returns a user's pod with a GPU.
func userPod(class string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "team", UID: "u"}, Spec: corev1.PodSpec{NodeName: "gpu-1", Containers: []corev1.Container{{
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
	}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	if class != "" {
		p.Spec.RuntimeClassName = &class
	}
	return p
}

func (w *world) node() *corev1.Node { return w.lists["/api/v1/nodes"][0].(*corev1.Node) }

var operandsOf = map[string]string{
	label.DriverApp: "driver", "nvidia-container-toolkit-daemonset": "container-toolkit",
	"nvidia-device-plugin-daemonset": "device-plugin", "nvidia-operator-validator": "operator-validator",
}

// settle does the work of both operators.
func (w *world) settle() {
	if w.stuck {
		return
	}
	node := w.node()
	pods := []any{}
	for _, p := range w.lists["/api/v1/pods"] {
		if p.(*corev1.Pod).OwnerReferences == nil {
			pods = append(pods, p)
		}
	}
	off := node.Labels[label.Operands] == "false"
	for set, operand := range operandsOf {
		delete(node.Labels, label.Deploy+operand)
		if !off {
			node.Labels[label.Deploy+operand] = "true"
			pods = append(pods, operandPod(set, theirs, operand))
		}
		if off && node.Labels[label.HandOver] == label.Product {
			pods = append(pods, operandPod(set, ours, operand))
			node.Status.Conditions = append(node.Status.Conditions[:1], corev1.NodeCondition{Type: "GPUReady", Status: corev1.ConditionTrue, Reason: "Ready", LastHeartbeatTime: metav1.NewTime(start.Add(time.Second))})
		}
	}
	w.lists["/api/v1/pods"] = pods
}

// publish sends all objects to the watches: those that are gone as deleted.
func (w *world) publish(before map[string][]any) {
	for _, path := range []string{"/api/v1/nodes", "/api/v1/pods"} {
		var events [][]byte
		for _, o := range before[path] {
			if !slices.ContainsFunc(w.lists[path], func(have any) bool { return nameOf(have) == nameOf(o) }) {
				events = append(events, event("DELETED", o))
			}
		}
		for _, o := range w.lists[path] {
			events = append(events, event("MODIFIED", o))
		}
		for _, e := range events {
			w.sent[path] = append(w.sent[path], change{w.version, e})
			for _, watch := range w.watches[path] {
				watch <- e
			}
		}
	}
}

func nameOf(o any) string {
	meta := o.(metav1.Object)
	return meta.GetNamespace() + "/" + meta.GetName()
}

// change is an event of a watch, and the version of the world that it led to.
type change struct {
	version int
	event   []byte
}

func event(kind string, o any) []byte {
	data, _ := json.Marshal(map[string]any{"type": kind, "object": o})
	return append(data, '\n')
}

func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requests = append(w.requests, r.Method+" "+r.URL.Path)
	out.Header().Set("Content-Type", "application/json")
	answer := func(code int, v any) {
		out.WriteHeader(code)
		_ = json.NewEncoder(out).Encode(v)
	}
	status := func(code int, reason metav1.StatusReason) {
		answer(code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason, Message: string(reason)})
	}
	switch path := r.URL.Path; {
	case r.Method == http.MethodPatch:
		w.patch(r, answer, status)
	case strings.HasSuffix(path, "/subjectaccessreviews"):
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status.Allowed = !strings.HasPrefix(review.Spec.User, "system:serviceaccount:"+w.powerless+":")
		answer(http.StatusCreated, review)
	case path == "/apis/resource.k8s.io" && w.lists["/apis/resource.k8s.io/v1/resourceclaims"] != nil:
		answer(http.StatusOK, metav1.APIGroup{PreferredVersion: metav1.GroupVersionForDiscovery{GroupVersion: "resource.k8s.io/v1", Version: "v1"}})
	case strings.HasSuffix(path, "/customresourcedefinitions/clusterpolicies.nvidia.com"):
		answer(http.StatusOK, map[string]any{"metadata": map[string]any{"name": "clusterpolicies.nvidia.com"}})
	case r.URL.Query().Get("watch") == "true":
		w.watch(out, r)
	case w.lists[path] != nil:
		var items []any
		for _, o := range w.lists[path] {
			if d, is := o.(*appsv1.Deployment); !is || r.URL.Query().Get("fieldSelector") == "metadata.name="+d.Name {
				items = append(items, o)
			}
		}
		answer(http.StatusOK, map[string]any{"metadata": metav1.ListMeta{ResourceVersion: fmt.Sprint(w.version)}, "items": items})
	default:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

// watch sends events until the client goes. It unlocks the world meanwhile.
func (w *world) watch(out http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, 1000)
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for _, c := range w.sent[r.URL.Path] {
		if c.version > since {
			events <- c.event
		}
	}
	w.watches[r.URL.Path] = append(w.watches[r.URL.Path], events)
	w.mu.Unlock()
	defer w.mu.Lock()
	out.WriteHeader(http.StatusOK)
	out.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			_, _ = out.Write(e)
			out.(http.Flusher).Flush()
		}
	}
}

func (w *world) patch(r *http.Request, answer func(int, any), status func(int, metav1.StatusReason)) {
	var body struct {
		Metadata struct {
			ResourceVersion string
			Labels          map[string]*string
		}
	}
	var raw map[string]any
	var text bytes.Buffer
	_, _ = text.ReadFrom(r.Body)
	_, _ = json.Unmarshal(text.Bytes(), &body), json.Unmarshal(text.Bytes(), &raw)
	before := maps.Clone(w.lists)
	old := w.node()
	node := old.DeepCopy()
	w.lists["/api/v1/nodes"] = []any{node}
	defer func() {
		w.version++
		node.ResourceVersion = fmt.Sprint(w.version)
		delete(before, "/api/v1/nodes")
		w.publish(before)
	}()
	if w.conflict > 0 {
		w.conflict--
		node.Labels["example.com/mine"] = fmt.Sprint(w.conflict)
	}
	if body.Metadata.ResourceVersion != old.ResourceVersion || node.Labels["example.com/mine"] != old.Labels["example.com/mine"] {
		status(http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	w.written = append(w.written, raw)
	for key, value := range body.Metadata.Labels {
		if value == nil {
			delete(node.Labels, key)
		} else {
			node.Labels[key] = *value
		}
	}
	w.settle()
	answer(http.StatusOK, node)
}

func serve(t *testing.T, w *world) *cluster.Client {
	s := httptest.NewServer(w)
	t.Cleanup(s.Close)
	c, err := cluster.ForConfig(&rest.Config{Host: s.URL}, time.Minute)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func mover(t *testing.T, w *world, to Side) (*Mover, *strings.Builder) {
	t.Helper()
	c := serve(t, w)
	s, err := Read(t.Context(), c)
	require.NoError(t, err)
	var progress strings.Builder
	return &Mover{Client: c, Snapshot: s, To: to, Timeout: 10 * time.Second, Progress: &progress}, &progress
}

func TestPlanNamesOperatorsFindingsAndTheNextCommand(t *testing.T) {
	w := newWorld()
	m, _ := mover(t, w, GPUReady)
	p := NewPlan(m.Snapshot, start)
	require.Equal(t, []Operator{{theirs, "gpu-operator", "v24.3.0", true, true}}, p.NVIDIA)
	require.Equal(t, []Operator{{ours, "gpuready-operator", "v0.1.0", true, true}}, p.GPUReady)
	require.Equal(t, "nvidia", p.Definition)
	require.Len(t, p.Policies, 1)
	require.True(t, p.Policies[0].InForce)
	require.Equal(t, []string{"spec.newPart"}, p.Policies[0].Pruned)
	require.Len(t, p.Policies[0].Unserved, 1)
	require.Contains(t, p.Policies[0].Unserved[0], "driver.manager: ")
	require.Len(t, p.DaemonSets, 4)
	require.Equal(t, []Node{{Name: "gpu-1", ServedBy: NVIDIA, Pods: []string{}, Next: "kubectl gpu migrate node gpu-1"}}, p.Nodes)
	require.Equal(t, []string{"kubectl gpu migrate node gpu-1"}, p.Next)
	require.Zero(t, p.CountRefusals())
	for _, request := range w.requests {
		if !strings.HasSuffix(request, "/subjectaccessreviews") {
			require.True(t, strings.HasPrefix(request, "GET "), request)
		}
	}
}

func TestPlanBeforeAndAfter(t *testing.T) {
	w := newWorld()
	w.lists["/apis/apps/v1/deployments"] = w.lists["/apis/apps/v1/deployments"][:1]
	m, _ := mover(t, w, GPUReady)
	p := NewPlan(m.Snapshot, start)
	require.Equal(t, []string{Installation()}, p.Next)
	require.Contains(t, p.Refused[0], "not installed")

	w = newWorld()
	w.node().Labels[label.Operands], w.node().Labels[label.HandOver] = "false", label.Product
	w.settle()
	m, _ = mover(t, w, GPUReady)
	p = NewPlan(m.Snapshot, start)
	require.Equal(t, GPUReady, p.Nodes[0].ServedBy)
	require.Empty(t, p.Nodes[0].Waits)
	require.Len(t, p.Next, 9)
	require.Contains(t, p.Next[3], "delete daemonset nvidia-container-toolkit-daemonset nvidia-device-plugin-daemonset nvidia-driver-daemonset nvidia-operator-validator")

	zero := int32(0)
	nvidias := w.lists["/apis/apps/v1/deployments"][0].(*appsv1.Deployment)
	nvidias.Spec.Replicas, nvidias.Status = &zero, appsv1.DeploymentStatus{}
	m, _ = mover(t, w, NVIDIA)
	require.Contains(t, m.Refusals("gpu-1")[0], "scaled to zero")
	p = NewPlan(m.Snapshot, start)
	require.Zero(t, p.CountRefusals())
	require.Contains(t, p.Notes[0], "scaled to zero")
	require.Empty(t, p.Next)
}

func TestNodeIsHandedOverAndGivenBack(t *testing.T) {
	w := newWorld()
	w.conflict = 1
	m, progress := mover(t, w, GPUReady)
	require.Equal(t, []string{"gpu-1"}, m.Candidates())
	require.Empty(t, m.Refusals("gpu-1"))
	require.NoError(t, m.Move(t.Context(), "gpu-1"), progress)
	require.Equal(t, "0", w.node().Labels["example.com/mine"], "what another client wrote meanwhile stays")
	require.Equal(t, label.Product, w.node().Labels[label.HandOver])
	require.Equal(t, "false", w.node().Labels[label.Operands])
	require.Contains(t, progress.String(), "kubectl label node gpu-1 --overwrite nvidia.com/gpu.deploy.operands=false gpuready.io/operator=moving")
	require.Contains(t, progress.String(), "gpuready.io/operator=gpuready")
	require.Contains(t, progress.String(), "done")
	for _, patch := range w.written {
		require.Len(t, patch, 1)
		require.ElementsMatch(t, []string{"labels", "resourceVersion", "uid"}, keys(patch["metadata"].(map[string]any)))
	}

	m, progress = mover(t, w, NVIDIA)
	require.NoError(t, m.Move(t.Context(), "gpu-1"), progress)
	require.NotContains(t, w.node().Labels, label.HandOver)
	require.NotContains(t, w.node().Labels, label.Operands)
	require.Empty(t, must(mover(t, w, NVIDIA)).Candidates())
}

func must(m *Mover, _ *strings.Builder) *Mover { return m }

func keys(m map[string]any) (all []string) {
	for key := range m {
		all = append(all, key)
	}
	return all
}

func TestDeadlineLeavesTheNodeAndASecondRunContinues(t *testing.T) {
	w := newWorld()
	w.stuck = true
	m, _ := mover(t, w, GPUReady)
	m.Timeout = 200 * time.Millisecond
	err := m.Move(t.Context(), "gpu-1")
	require.ErrorContains(t, err, "not done within 200ms (--timeout); it waited for this: NVIDIA's pods end: nvidia-container-toolkit-daemonset-x")
	require.ErrorContains(t, err, "kubectl gpu migrate back gpu-1")
	require.Equal(t, Moving, w.node().Labels[label.HandOver])

	m, _ = mover(t, w, GPUReady)
	p := NewPlan(m.Snapshot, start)
	require.Equal(t, Between, p.Nodes[0].ServedBy)
	require.Equal(t, []string{"kubectl gpu migrate node gpu-1"}, p.Next)
	w.mu.Lock()
	w.stuck = false
	w.settle()
	w.mu.Unlock()
	require.NoError(t, m.Move(t.Context(), "gpu-1"))
}

// A condition of an earlier validator proves nothing.
func TestOldProofDoesNotCount(t *testing.T) {
	w := newWorld()
	w.node().Labels[label.Operands], w.node().Labels[label.HandOver] = "false", label.Product
	w.settle()
	w.node().Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(start.Add(-time.Second))
	m, _ := mover(t, w, GPUReady)
	require.Equal(t, "driver-validation: the validator has not reported yet", NewPlan(m.Snapshot, start).Nodes[0].Waits)
}

func TestNodesWithKnownProblemsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string // "": not refused
		pods   bool
	}{
		"another name":      {func(w *world) { w.node().Name = "gpu-2" }, "there is no such Node", false},
		"not ready":         {func(w *world) { w.node().Status.Conditions[0].Status = corev1.ConditionFalse }, "the Node is not Ready", false},
		"kept off":          {func(w *world) { w.node().Labels[label.Operands] = "false" }, "the label nvidia.com/gpu.deploy.operands=false keeps all operands off", false},
		"one kept off":      {func(w *world) { w.node().Labels[label.Deploy+"dcgm"] = "false" }, "the label nvidia.com/gpu.deploy.dcgm=false keeps one operand off", false},
		"virtual machines":  {func(w *world) { w.node().Labels[label.Workload] = "vm-passthrough" }, "its use is vm-passthrough", false},
		"driver upgrade":    {func(w *world) { w.node().Labels[label.UpgradeState] = "drain-required" }, "an upgrade of its driver is in progress (drain-required)", false},
		"MIG":               {func(w *world) { w.node().Labels[migState] = "pending" }, "a change of its MIG layout is in progress", false},
		"pods with GPUs":    {func(w *world) { w.add(userPod("")) }, "its driver is a container's, and pods use its GPUs, which keeps the driver loaded: team/train.", false},
		"they are accepted": {func(w *world) { w.add(userPod("")) }, "", true},
		"runtime class":     {func(w *world) { w.add(userPod("nvidia")) }, "NVIDIA's toolkit takes the handler nvidia along when it leaves the node, and containers of these pods could not start again: team/train. Set toolkit.env CONTAINERD_RUNTIME_CLASS=nvidia", true},
		"it stays": {func(w *world) {
			w.add(userPod("nvidia"))
			w.policy(`{"toolkit":{"env":[{"name":"CONTAINERD_RUNTIME_CLASS","value":"nvidia"}]}}`)
		}, "", true},
		"without CDI": {func(w *world) { w.add(userPod("nvidia")); w.policy(`{"cdi":{"enabled":false}}`) }, "", true},
		"bad policy":  {func(w *world) { w.policy(`{"driver":{"enabled":[1]}}`) }, "ClusterPolicy cluster-policy: ", false},
		"a path in a container": {func(w *world) {
			w.policy(`{"toolkit":{"env":[{"name":"RUNTIME_CONFIG","value":"/runtime/config-dir/config.toml"}]}}`)
		}, "ClusterPolicy cluster-policy: toolkit.env RUNTIME_CONFIG is /runtime/config-dir/config.toml", false},
		"no driver for the system": {func(w *world) {
			w.node().Labels[label.OSID], w.node().Labels[label.OSVersion] = "debian", "12"
		}, "driver: OSNotSupported: NVIDIA publishes no image of driver ", false},
		"host driver": {func(w *world) { w.add(userPod("")); w.withoutDriver() }, "", false},
		"same namespace": {func(w *world) {
			w.lists["/apis/apps/v1/deployments"][1].(*appsv1.Deployment).Namespace = theirs
		}, "both operators are in namespace gpu-operator", false},
		"control characters": {func(w *world) { w.node().Labels[label.Workload] = "vm\x1b[31m" }, "its use is vm [31m", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.change(w)
			m, _ := mover(t, w, GPUReady)
			m.WithPods = c.pods
			all := m.Refusals("gpu-1")
			if c.want == "" {
				require.Empty(t, all)
				return
			}
			require.Len(t, all, 1)
			require.True(t, strings.HasPrefix(all[0], c.want), all[0])
		})
	}
}

func (w *world) add(p *corev1.Pod) { w.lists["/api/v1/pods"] = append(w.lists["/api/v1/pods"], p) }

// withoutDriver removes the driver's pod, as on a host with its own driver.
func (w *world) withoutDriver() {
	kept := []any{}
	for _, p := range w.lists["/api/v1/pods"] {
		if p.(*corev1.Pod).Labels["app"] != label.DriverApp {
			kept = append(kept, p)
		}
	}
	w.lists["/api/v1/pods"] = kept
}

func (w *world) policy(spec string) {
	w.lists["/apis/nvidia.com/v1/clusterpolicies"] = []any{json.RawMessage(`{"apiVersion":"nvidia.com/v1","kind":"ClusterPolicy","metadata":{"name":"cluster-policy"},"spec":` + spec + `}`)}
}

func TestAMoveEndsWhenTheAPIServerRefuses(t *testing.T) {
	w := newWorld()
	m, _ := mover(t, w, GPUReady)
	refusing := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			out.Header().Set("Content-Type", "application/json")
			out.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(out).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden, Message: "nodes is forbidden"})
			return
		}
		w.ServeHTTP(out, r)
	}))
	t.Cleanup(refusing.Close)
	var err error
	m.Client, err = cluster.ForConfig(&rest.Config{Host: refusing.URL}, time.Minute)
	require.NoError(t, err)
	t.Cleanup(m.Client.Close)
	require.ErrorContains(t, m.Move(t.Context(), "gpu-1"), "gpu-1: label the Node: nodes is forbidden")
}

// Whoever may edit one namespace can give Deployments, DaemonSets and pods any name and label.
func TestNamesAndLabelsInOtherNamespacesDoNotCount(t *testing.T) {
	w := newWorld()
	w.powerless = "team"
	for _, name := range []string{label.Deployment, label.NVIDIADeployment} {
		w.lists["/apis/apps/v1/deployments"] = append(w.lists["/apis/apps/v1/deployments"], operatorNamed(name, "team", "v9"))
	}
	set := daemonSet("nvidia-driver-daemonset", "driver")
	set.Namespace, set.Labels = "team", map[string]string{label.PartOf: label.Product}
	w.lists["/apis/apps/v1/daemonsets"] = append(w.lists["/apis/apps/v1/daemonsets"], set)
	w.withoutDriver()
	hidden := userPod("")
	hidden.Labels = map[string]string{label.PartOf: label.Product}
	w.add(hidden)
	validator := operandPod("nvidia-operator-validator", ours, "operator-validator")
	validator.Namespace = "team"
	w.add(validator)
	m, _ := mover(t, w, GPUReady)
	p := NewPlan(m.Snapshot, start)
	require.Len(t, p.NVIDIA, 1)
	require.Len(t, p.GPUReady, 1)
	require.Len(t, p.DaemonSets, 4)
	require.Equal(t, []string{"team/train"}, p.Nodes[0].Pods)
	require.Empty(t, m.Snapshot.oursOn(m.Snapshot.Nodes[0]))
}

// As in the chart, the operands may be in another namespace than the operator.
func TestOperandsMayHaveTheirOwnNamespace(t *testing.T) {
	w := newWorld()
	d := w.lists["/apis/apps/v1/deployments"][1].(*appsv1.Deployment)
	d.Spec.Template.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "OPERAND_NAMESPACE", Value: "operands"}}}}
	p := operandPod("nvidia-operator-validator", ours, "operator-validator")
	p.Namespace = "operands"
	w.add(p)
	m, _ := mover(t, w, GPUReady)
	require.Len(t, m.Snapshot.oursOn(m.Snapshot.Nodes[0]), 1)
}

func TestPodsUseGPUsByRuntimeClassClaimAndEnvironment(t *testing.T) {
	claim := func(name, driver string) any {
		return map[string]any{"metadata": map[string]any{"namespace": "team", "name": name}, "status": map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": []any{map[string]any{"driver": driver}}}}}}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"class":       {func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("nvidia") }, true},
		"other class": {func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("kata") }, false},
		"claim": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{ResourceClaimName: new("gpu")}}
		}, true},
		"other claim": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{ResourceClaimName: new("nic")}}
		}, false},
		"environment": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}}
		}, true},
		"none": {func(*corev1.Pod) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.lists["/apis/node.k8s.io/v1/runtimeclasses"] = append(w.lists["/apis/node.k8s.io/v1/runtimeclasses"], &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Handler: "kata"})
			w.lists["/apis/resource.k8s.io/v1/resourceclaims"] = []any{claim("gpu", "gpu.nvidia.com"), claim("nic", "nic.example.com")}
			p := userPod("")
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
			c.change(p)
			w.add(p)
			m, _ := mover(t, w, GPUReady)
			require.Equal(t, c.want, len(NewPlan(m.Snapshot, start).Nodes[0].Pods) == 1)
		})
	}
}

// uninstall removes an operator's Deployment, and NVIDIA's DaemonSets if its own is the first.
func (w *world) uninstall(i int) {
	w.lists["/apis/apps/v1/deployments"] = slices.Delete(slices.Clone(w.lists["/apis/apps/v1/deployments"]), i, i+1)
	if i == 0 {
		w.lists["/apis/apps/v1/daemonsets"] = []any{}
	}
}

func (w *world) scaleToZero(i int) {
	d := w.lists["/apis/apps/v1/deployments"][i].(*appsv1.Deployment)
	d.Spec.Replicas, d.Status = new(int32(0)), appsv1.DeploymentStatus{}
}

// NVIDIA's operator stops while a node belongs to neither.
func TestAMovingNodeIsHandedOverWithoutNVIDIAsOperator(t *testing.T) {
	moving := func() *world {
		w := newWorld()
		w.node().Labels[label.Operands], w.node().Labels[label.HandOver] = "false", Moving
		w.settle()
		return w
	}
	w := moving()
	w.scaleToZero(0)
	m, _ := mover(t, w, GPUReady)
	p := NewPlan(m.Snapshot, start)
	const left = "NVIDIA's operator does not run, and gpuready's would place the DaemonSets that it left beside its own. Start NVIDIA's again, or delete them: kubectl -n gpu-operator delete daemonset nvidia-container-toolkit-daemonset nvidia-device-plugin-daemonset nvidia-driver-daemonset nvidia-operator-validator"
	require.Equal(t, []string{left}, p.Nodes[0].Refused)
	require.Empty(t, p.Nodes[0].Next)
	require.Empty(t, p.Next)
	require.Equal(t, []string{"NVIDIA's operator is scaled to zero, so only nodes that are moving can be handed over: kubectl -n gpu-operator scale deployment/gpu-operator --replicas=1 starts it again"}, p.Notes)
	require.Equal(t, []string{left}, m.Refusals("gpu-1"))

	w.lists["/apis/apps/v1/daemonsets"] = []any{}
	for _, uninstalled := range []bool{false, true} {
		if uninstalled {
			w = moving()
			w.uninstall(0)
		}
		m, _ := mover(t, w, NVIDIA)
		require.Contains(t, m.Refusals("gpu-1")[0], "so it can take no node back")
		m, progress := mover(t, w, GPUReady)
		require.Equal(t, []string{"kubectl gpu migrate node gpu-1"}, NewPlan(m.Snapshot, start).Next)
		require.Equal(t, []string{"gpu-1"}, m.Candidates())
		require.Empty(t, m.Refusals("gpu-1"))
		require.NoError(t, m.Move(t.Context(), "gpu-1"), progress)
		require.Equal(t, label.Product, w.node().Labels[label.HandOver])
	}

	w = moving()
	w.uninstall(0)
	w.add(operandPod(label.DriverApp, theirs, "driver"))
	m, _ = mover(t, w, GPUReady)
	_, waits := m.next(m.Snapshot.Nodes[0])
	require.Equal(t, "NVIDIA's pods end: nvidia-driver-daemonset-x", waits, "its last pods are still to go")

	w = moving()
	w.uninstall(1)
	w.uninstall(0)
	m, _ = mover(t, w, GPUReady)
	require.Contains(t, m.Refusals("gpu-1")[0], "gpuready's operator is not installed")
}

// Going back does not need gpuready's operator: the label of the hand-over places its pods.
func TestANodeIsGivenBackWithoutGPUReadysOperator(t *testing.T) {
	handedOver := func() *world {
		w := newWorld()
		w.node().Labels[label.Operands], w.node().Labels[label.HandOver] = "false", label.Product
		w.settle()
		return w
	}
	for name, c := range map[string]struct {
		change func(*world)
		start  string
	}{
		"not ready": {func(w *world) {
			w.lists["/apis/apps/v1/deployments"][1].(*appsv1.Deployment).Status.AvailableReplicas = 0
		}, "kubectl -n gpuready-system describe deployment/gpuready-operator says why it is not"},
		"scaled to zero": {func(w *world) { w.scaleToZero(1) }, "kubectl -n gpuready-system scale deployment/gpuready-operator --replicas=1"},
		"uninstalled":    {func(w *world) { w.uninstall(1) }, "install it again"},
	} {
		t.Run(name, func(t *testing.T) {
			w := handedOver()
			c.change(w)
			m, _ := mover(t, w, GPUReady)
			if name != "not ready" {
				n := NewPlan(m.Snapshot, start).Nodes[0]
				require.Equal(t, Nobody, n.ServedBy)
				require.Equal(t, []string{"the label gpuready.io/operator=gpuready gives it to gpuready's operator, which does not run: " + c.start + ", or give the node back: kubectl gpu migrate back gpu-1"}, n.Refused)
				require.Empty(t, m.Candidates())
			}
			m, progress := mover(t, w, NVIDIA)
			require.Equal(t, []string{"gpu-1"}, m.Candidates())
			require.Empty(t, m.Refusals("gpu-1"))
			require.NoError(t, m.Move(t.Context(), "gpu-1"), progress)
			require.NotContains(t, w.node().Labels, label.HandOver)

			w = handedOver()
			c.change(w)
			for _, p := range w.lists["/api/v1/pods"] {
				p.(*corev1.Pod).Spec.NodeSelector = map[string]string{label.Deploy + "x": "true"}
			}
			m, _ = mover(t, w, NVIDIA)
			require.Equal(t, []string{"gpuready's operator is not ready, and only it takes these pods off the node: nvidia-container-toolkit-daemonset-x, nvidia-device-plugin-daemonset-x, nvidia-driver-daemonset-x, nvidia-operator-validator-x. Either " + c.start + ", or delete its DaemonSets: kubectl -n gpuready-system delete daemonset -l app.kubernetes.io/part-of=gpuready"}, m.Refusals("gpu-1"))
		})
	}
}

func TestAdviceNamesThePodsThatAreWaitedFor(t *testing.T) {
	w := newWorld()
	w.node().Labels[label.Operands], w.node().Labels[label.HandOver] = "false", label.Product
	w.settle()
	w.stuck = true
	m, _ := mover(t, w, NVIDIA)
	m.Timeout = 200 * time.Millisecond
	err := m.Move(t.Context(), "gpu-1")
	require.ErrorContains(t, err, "it waited for this: gpuready's pods end")
	require.ErrorContains(t, err, "see gpuready's pods there, and run the command again to continue, or kubectl gpu migrate node gpu-1")
	require.Contains(t, m.advice("gpu-1", false), "see NVIDIA's pods there")
}

func TestANodeNeedsOneNVIDIADriver(t *testing.T) {
	of := func(name string, spec v1alpha1.NVIDIADriverSpec) any {
		return &v1alpha1.NVIDIADriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	const path = "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version + "/" + v1alpha1.Resource
	gold := v1alpha1.NVIDIADriverSpec{NodeSelector: map[string]string{"tier": "gold"}}
	for name, c := range map[string]struct {
		drivers []any // nil: they cannot be read
		labels  map[string]string
		want    string
	}{
		"one":         {[]any{of("all", v1alpha1.NVIDIADriverSpec{})}, nil, ""},
		"none":        {[]any{of("gold", gold)}, nil, "gpuready would not place a driver on it: no NVIDIADriver selects node gpu-1"},
		"there is no": {[]any{}, nil, "gpuready would not place a driver on it: spec.driver.useNvidiaDriverCRD is set, and there is no NVIDIADriver"},
		"several":     {[]any{of("all", v1alpha1.NVIDIADriverSpec{}), of("gold", gold)}, map[string]string{"tier": "gold"}, "gpuready would not place a driver on it: NVIDIADrivers all, gold select node gpu-1"},
		"invalid":     {[]any{of("vm", v1alpha1.NVIDIADriverSpec{DriverType: v1alpha1.TypeHostManager})}, nil, "gpuready would not place a driver on it: NVIDIADriver vm: driverType is vgpu-host-manager"},
		"unread":      {nil, nil, "gpuready would not place a driver on it: spec.driver.useNvidiaDriverCRD is set, and the NVIDIADrivers are not known"},
		"host driver": {[]any{}, map[string]string{label.Deploy + "driver": label.PreInstalled}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.policy(`{"driver":{"useNvidiaDriverCRD":true}}`)
			if c.drivers != nil {
				w.lists[path] = c.drivers
			}
			maps.Copy(w.node().Labels, c.labels)
			m, _ := mover(t, w, GPUReady)
			all := m.Refusals("gpu-1")
			if c.want == "" {
				require.Empty(t, all)
				return
			}
			require.Len(t, all, 1)
			require.True(t, strings.HasPrefix(all[0], c.want), all[0])
			require.Equal(t, all, NewPlan(m.Snapshot, start).Nodes[0].Refused)
			require.Empty(t, must(mover(t, w, NVIDIA)).Refusals("gpu-1"), "NVIDIA's operator has its own rules")
		})
	}
}

// The snapshot of a long run is old when a node's turn comes.
func TestANodeIsRefusedForWhatHappenedSinceTheSnapshot(t *testing.T) {
	w := newWorld()
	w.lists["/apis/resource.k8s.io/v1/resourceclaims"] = []any{}
	m, _ := mover(t, w, GPUReady)
	require.Empty(t, m.Refusals("gpu-1"))
	p := userPod("")
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{ResourceClaimName: new("gpu")}}
	w.mu.Lock()
	w.add(p)
	w.lists["/apis/resource.k8s.io/v1/resourceclaims"] = []any{map[string]any{"metadata": map[string]any{"namespace": "team", "name": "gpu"}, "status": map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": []any{map[string]any{"driver": "gpu.nvidia.com"}}}}}}}
	w.node().Labels[label.UpgradeState] = "drain-required"
	w.mu.Unlock()
	err := m.Move(t.Context(), "gpu-1")
	require.ErrorIs(t, err, ErrRefused)
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Len(t, refused.Reasons, 2)
	require.Contains(t, refused.Reasons[0], "an upgrade of its driver is in progress")
	require.Contains(t, refused.Reasons[1], "keeps the driver loaded: team/train.")
	require.Empty(t, w.written)

	m.WithPods = true
	delete(w.node().Labels, label.UpgradeState)
	require.NoError(t, m.Move(t.Context(), "gpu-1"))
	w.node().Labels[label.UpgradeState] = "drain-required"
	require.NoError(t, m.Move(t.Context(), "gpu-1"), "nothing is to be written any more")
}

func TestVersionOf(t *testing.T) {
	for want, c := range map[string]struct{ image, olm, chart string }{
		"v24.3.0": {"nvcr.io/nvidia/gpu-operator:v24.3.0", "", "devel-ubi8"},
		"v25.3.1": {"registry:5000/gpu-operator@sha256:0", "gpu-operator-certified.v25.3.1", ""},
		"v23.9.2": {"registry:5000/gpu-operator", "", "v23.9.2"},
		"":        {"10.0.0.1:5000/gpu-operator", "", ""},
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app.kubernetes.io/version": c.chart}}}
		if c.olm != "" {
			d.Labels["olm.owner"] = c.olm
		}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Image: c.image}}
		require.Equal(t, want, versionOf(d))
	}
}
