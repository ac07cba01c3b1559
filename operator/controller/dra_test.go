package controller

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
)

// serveDRA returns a policy whose nodes shall serve claims, one at a time.
func serveDRA(name string) *v1.ClusterPolicy {
	one := intstr.FromInt32(1)
	p := simulated(name)
	p.Spec.DRADriver.Enabled, p.Spec.DRADriver.Serve = new(true), v1.ServeDRA
	p.Spec.DRADriver.ServePolicy = &v1.ServePolicySpec{MaxUnavailable: &one}
	return p
}

// offer sets what a node offers: GPUs of the device plugin, and devices in a ResourceSlice.
func (w *world) offer(node string, gpus int64, devices int) {
	w.change(node, func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}
	})
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-slice"}, Spec: resourcev1.ResourceSliceSpec{NodeName: &node, Driver: draDriver, Devices: make([]resourcev1.Device, devices)}}
	stripSlice(s)
	updateSlice(w.model, s)
}

func (w *world) served(node string) string { return w.node(node).Labels[label.Serve] }

// edit changes the policy p.
func (w *world) edit(change func(*v1.ClusterPolicySpec)) {
	p := w.policy("p")
	change(&p.Spec)
	p.Generation++
	require.NoError(w, w.Update(w.Context(), p))
}

// classes returns the names of the DeviceClasses.
func (w *world) classes() (names []string) {
	var list resourcev1.DeviceClassList
	require.NoError(w, w.List(w.Context(), &list))
	for _, c := range list.Items {
		names = append(names, c.Name)
	}
	return names
}

func (w *world) serveDRAObjects() {
	w.slices.onServed(w.model, nil)
	w.slices.classes.synced()
	w.slices.slices.synced()
	w.drainInbox()
}

func TestDRADriverFollowsItsAPI(t *testing.T) {
	w := newWorld(t)
	w.create(serveDRA("p"), gpuNode("n1"))
	w.settle()
	require.NotContains(t, w.sets(), "gpu-dra-driver")
	degraded := meta.FindStatusCondition(w.policy("p").Status.Conditions, v1.ConditionDegraded)
	require.Equal(t, "DRAUnsupported", degraded.Reason)
	require.Contains(t, degraded.Message, "Kubernetes has from 1.34 on")
	require.Empty(t, w.served("n1"), "no node changes to a driver that cannot run")

	w.slices.onServed(w.model, nil)
	require.NotContains(t, w.settle(), "apply gpu.nvidia.com", "nothing is applied before the classes that exist are known")
	w.slices.classes.failed(errors.New("forbidden"))
	w.settle()
	require.ErrorContains(t, w.passErr, "read DeviceClasses: forbidden")
	w.slices.classes.synced()
	w.slices.slices.synced()
	w.settle()
	require.NoError(t, w.passErr)
	require.Contains(t, w.sets(), "gpu-dra-driver")
	require.Equal(t, []string{"gpu.nvidia.com", "mig.nvidia.com"}, w.classes())
	require.Equal(t, "true", w.node("n1").Labels["nvidia.com/gpu.deploy.dra-driver"])
	require.Empty(t, w.settle(), "all is as wanted")

	w.slices.onUnserved(w.model, nil)
	w.settle()
	require.NotContains(t, w.sets(), "gpu-dra-driver")
}

func TestNodesChangeOneAfterTheOtherAndBack(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(serveDRA("p"), gpuNode("n1"), gpuNode("n2"), gpuNode("person", label.Serve, "plugin"))
	for _, node := range []string{"n1", "n2", "person"} {
		w.offer(node, 8, 0)
	}
	w.settle()
	require.Equal(t, []string{"dra", "", "plugin"}, []string{w.served("n1"), w.served("n2"), w.served("person")})
	status := w.policy("p").Status
	require.Equal(t, &v1.ServeStatus{Want: v1.ServeDRA, Total: 2, DRA: 1, InProgress: 1, Pending: 1, ByPerson: 1,
		Waiting: []v1.UpgradeWait{{Node: "n1", Message: "the device plugin still offers resources of nvidia.com to pods"}}}, status.Serve)
	require.Equal(t, map[string]int{"plugin": 1, "dra": 0, "changing": 1, "person": 1}, serveCounts(w.serving))
	require.Equal(t, "ServeSwitch", meta.FindStatusCondition(status.Conditions, v1.ConditionProgressing).Reason)

	w.offer("n1", 0, 0) // pods still hold its GPUs
	w.settle()
	require.Empty(t, w.served("n2"))
	w.offer("n1", 0, 8)
	w.settle()
	require.Equal(t, "dra", w.served("n2"))
	w.offer("n2", 0, 8)
	w.settle()
	require.Zero(t, w.policy("p").Status.Serve.InProgress)

	w.edit(func(s *v1.ClusterPolicySpec) { s.DRADriver.Enabled = nil })
	w.settle()
	require.Equal(t, []string{"", "dra"}, []string{w.served("n1"), w.served("n2")}, "back, one at a time")
	require.Contains(t, w.sets(), "gpu-dra-driver", "it stays until all nodes are back")
	require.Len(t, w.classes(), 2)
	w.offer("n1", 8, 0)
	w.settle()
	require.Empty(t, w.served("n2"))
	require.Contains(t, w.sets(), "gpu-dra-driver", "it has not withdrawn its devices yet")
	w.offer("n2", 8, 0)
	w.settle()
	require.NotContains(t, w.sets(), "gpu-dra-driver")
	require.Empty(t, w.classes())
	require.NotContains(t, w.node("n1").Labels, "nvidia.com/gpu.deploy.dra-driver")
	require.Equal(t, "plugin", w.served("person"))
	require.Nil(t, w.policy("p").Status.Serve)
}

func TestForeignDeviceClassIsUsedAsItIs(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(serveDRA("p"), gpuNode("n1"), &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}})
	w.settle()
	require.NoError(t, w.passErr)
	require.Equal(t, []string{"gpu.nvidia.com", "mig.nvidia.com"}, w.classes())
	require.Contains(t, w.policy("p").Status.Unserved[0], "DeviceClass gpu.nvidia.com is not the operator's")
	w.edit(func(s *v1.ClusterPolicySpec) { s.DRADriver = v1.DRADriverSpec{} })
	w.settle()
	require.Equal(t, []string{"gpu.nvidia.com"}, w.classes())
}

func TestNodesThatCannotServeAsTheirLabelSaysAreReported(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(simulated("p"), gpuNode("n1", label.Serve, "dra"))
	w.settle()
	degraded := func() *metav1.Condition {
		return meta.FindStatusCondition(w.policy("p").Status.Conditions, v1.ConditionDegraded)
	}
	require.Equal(t, "NoDRADriver", degraded().Reason)
	w.offer("n1", 0, 1) // another installation's
	w.settle()
	require.NotContains(t, degraded().Message, "gpu.serve")

	old := gpuNode("old")
	old.Status.NodeInfo.KubeletVersion = "v1.33.1"
	w.create(old)
	w.edit(func(s *v1.ClusterPolicySpec) { s.DRADriver = serveDRA("").Spec.DRADriver })
	w.settle()
	require.Equal(t, "NodesWithoutDRA", degraded().Reason)
	require.Contains(t, degraded().Message, "1 nodes keep the device plugin; old: claims need a kubelet of 1.34 and a container runtime with CDI, and it has kubelet v1.33.1 and containerd://2.1.0; upgrade it")
	require.Empty(t, w.served("old"))
}

func TestUnreadSlicesAreReportedAndKeepTheDRADriver(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(serveDRA("p"), gpuNode("n1"))
	w.offer("n1", 0, 8)
	w.settle()
	require.Equal(t, "dra", w.served("n1"))
	w.edit(func(s *v1.ClusterPolicySpec) { s.DRADriver.Enabled = nil })
	w.settle()
	require.Empty(t, w.served("n1"))

	// The operator is restarted while the driver has not withdrawn its devices.
	clear(w.model.published)
	w.model.slicesError, w.model.changed = errSlicesPending, true
	w.settle()
	require.Contains(t, w.sets(), "gpu-dra-driver", "nobody knows yet whether it publishes devices")
	require.NoError(t, w.passErr)
	w.slices.slices.failed(errors.New("forbidden"))
	w.settle()
	require.ErrorContains(t, w.passErr, "read ResourceSlices: forbidden")
	require.Contains(t, w.sets(), "gpu-dra-driver")
	w.slices.slices.synced()
	w.settle()
	require.NoError(t, w.passErr)
	require.NotContains(t, w.sets(), "gpu-dra-driver")
}

// What the policy has said of the driver is gone with it: its image and pull secrets, where its pods may run.
func TestADRADriverThatIsKeptStaysAsItWas(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	p := serveDRA("p")
	p.Spec.DRADriver.Repository, p.Spec.DRADriver.ImagePullSecrets = "registry.example.com/mirror", []string{"pull"}
	w.create(p, gpuNode("n1"))
	w.offer("n1", 0, 8)
	w.settle()
	driver := func() appsv1.DaemonSetSpec {
		var d appsv1.DaemonSet
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: w.Cluster.Namespace, Name: "gpu-dra-driver"}, &d))
		return d.Spec
	}
	before := driver()
	require.Contains(t, before.Template.Spec.Containers[0].Image, "registry.example.com/mirror")
	w.edit(func(s *v1.ClusterPolicySpec) { s.DRADriver = v1.DRADriverSpec{} })
	w.settle()
	require.Empty(t, w.served("n1"))
	require.Equal(t, before, driver())
}

// kubectl get deviceclass gpu.nvidia.com -o yaml, with another name and selector: labels and annotations are copied.
func TestACopyOfADeviceClassIsItsOwners(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(serveDRA("p"), gpuNode("n1"))
	w.settle()
	var c resourcev1.DeviceClass
	require.NoError(t, w.Get(t.Context(), client.ObjectKey{Name: "gpu.nvidia.com"}, &c))
	mine := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "large-gpus", Labels: c.Labels, Annotations: c.Annotations}, Spec: c.Spec}
	w.create(mine)
	w.settle()
	require.Equal(t, []string{"gpu.nvidia.com", "large-gpus", "mig.nvidia.com"}, w.classes())
}

// A node that cannot serve claims any more changes back, while the others change the other way.
func TestNodesAreCountedByTheirOwnWay(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(serveDRA("p"), gpuNode("n1"))
	w.offer("n1", 0, 8)
	w.settle()
	require.Equal(t, "dra", w.served("n1"))
	w.change("n1", func(n *corev1.Node) { n.Labels[label.Deploy+label.DRAOperand] = "false" })
	w.settle()
	require.Empty(t, w.served("n1"))
	require.Equal(t, map[string]int{"plugin": 0, "dra": 0, "changing": 1, "person": 0}, serveCounts(w.serving))
}

// The driver withdraws its devices first and releases them later: those of claims when the claims end. What
// it has not released, no pod can get.
func TestTheDRADriverStaysUntilItHasReleasedAllDevices(t *testing.T) {
	w := newWorld(t)
	w.serveDRAObjects()
	w.create(serveDRA("p"), gpuNode("n1"))
	w.offer("n1", 0, 8)
	w.settle()
	w.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "driver", Namespace: w.Cluster.Namespace, Labels: map[string]string{"app": "gpu-dra-driver"}}, Spec: corev1.PodSpec{NodeName: "n1"}})
	w.edit(func(s *v1.ClusterPolicySpec) { s.DRADriver = v1.DRADriverSpec{} })
	w.settle()
	require.Empty(t, w.served("n1"))
	w.offer("n1", 0, 0)
	w.settle()
	require.Contains(t, w.sets(), "gpu-dra-driver", "no device is released")
	w.change("n1", func(n *corev1.Node) {
		n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(8, resource.DecimalSI)}
	})
	w.offer("n1", 5, 0)
	w.settle()
	require.Contains(t, w.sets(), "gpu-dra-driver", "claims have 3 GPUs")
	w.offer("n1", 8, 0)
	w.settle()
	require.NotContains(t, w.sets(), "gpu-dra-driver")
}
