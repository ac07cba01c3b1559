package dra

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// The fleet of TestScheduling: nodes without a kubelet, whose slices are those that gpu-dra-driver would
// publish.
const (
	fleetNodes = 500
	fleetGPUs  = 8
	fleetPods  = 400 // of each kind of claim
)

// fleetClaims are kinds of claims that users of NVIDIA's driver write.
var fleetClaims = []struct {
	name    string
	devices resourceapi.DeviceClaim
}{
	{"one GPU", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{exactly(1)}}},
	{"by product and memory", resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{exactly(1,
		"device.attributes['gpu.nvidia.com'].productName.contains('H100') && device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0")}}},
	{"two GPUs of one PCIe root", resourceapi.DeviceClaim{
		Requests:    []resourceapi.DeviceRequest{exactly(2)},
		Constraints: []resourceapi.DeviceConstraint{{Requests: []string{"gpu"}, MatchAttribute: new(resourceapi.FullyQualifiedName("resource.kubernetes.io/pcieRoot"))}},
	}},
}

// exactly returns a request for a number of GPUs that CEL expressions select.
func exactly(count int64, expressions ...string) resourceapi.DeviceRequest {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, e := range expressions {
		r.Selectors = append(r.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: r}
}

// TestScheduling measures how many claims a second the scheduler allocates on a large cluster. Only a person
// can compare the figures, so it fails only if a claim is not allocated. GPUREADY_BENCH has it run: make
// bench-dra.
func TestScheduling(t *testing.T) {
	requireBench(t)
	s := &suite{e2e.Up(t, cluster.Config{Bare: true})}
	client := s.unlimitedClient(t)
	_, err := client.ResourceV1().DeviceClasses().Create(t.Context(), &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	createAll(t, fleetNodes, func(i int) error { return createFleetNode(t, client, fmt.Sprintf("fleet-%03d", i)) })
	t.Logf("%d nodes with %d GPUs each", fleetNodes, fleetGPUs)
	for k, kind := range fleetClaims {
		began := time.Now()
		createAll(t, fleetPods, func(i int) error { return createClaimPod(t, client, fmt.Sprintf("kind%d-%03d", k, i), kind.devices) })
		created := time.Since(began)
		s.World.Until(t, "all pods are scheduled", func() error {
			bound := 0
			for _, p := range s.World.Pods("default", fmt.Sprintf("kind=kind%d", k)) {
				if p.Spec.NodeName != "" {
					bound++
				}
			}
			if bound < fleetPods {
				return fmt.Errorf("%d of %d", bound, fleetPods)
			}
			return nil
		})
		took := time.Since(began)
		t.Logf("%-28s %5.1f claims/s: %d allocated in %.1f s (their objects were made in %.1f s)", kind.name, fleetPods/took.Seconds(), fleetPods, took.Seconds(), created.Seconds())
	}
}

// unlimitedClient returns a client that sends as many requests a second as it is asked for.
func (s *suite) unlimitedClient(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(s.World.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// fleetRoot returns the PCIe root of a GPU of fleetState.
func fleetRoot(a gpu.PCIAddress) string { return "pci" + string(a[:7]) }

// createAll calls create for the numbers below n, a few at a time.
func createAll(t *testing.T, n int, create func(int) error) {
	t.Helper()
	const workers = 8
	var group errgroup.Group
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error { return create(i) })
	}
	require.NoError(t, group.Wait())
}

// createFleetNode makes a Node that is ready and its ResourceSlices.
func createFleetNode(t *testing.T, client kubernetes.Interface, name string) error {
	resources := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: "128", corev1.ResourceMemory: "1Ti", corev1.ResourcePods: "110"} {
		resources[name] = resource.MustParse(text)
	}
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for i, slice := range inventory.New(fleetState(name), inventory.Problem{}, fleetRoot).Slices() {
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i), OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}}},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: inventory.Driver, NodeName: &name, Devices: slice.Devices,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// fleetState returns the state of a node with H100s, two on each PCIe root.
func fleetState(node string) nodestate.State {
	info := &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA}
	for i := range fleetGPUs {
		info.Inventory = append(info.Inventory, nodestate.GPU{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%s-%d", node, i)), Index: i, Minor: i, Product: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper",
			ComputeCapability: "9.0", PCI: gpu.PCIAddress(fmt.Sprintf("%04x:10:00.0", i/2)), MemoryBytes: 80 << 30, Condition: nodestate.Condition{Health: nodestate.Healthy},
		})
	}
	return nodestate.State{Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05", CUDAVersion: "13.0"}, DevicePlugin: info}
}

// createClaimPod makes a claim and the pod that waits for it.
func createClaimPod(t *testing.T, client kubernetes.Interface, name string, devices resourceapi.DeviceClaim) error {
	_, err := client.ResourceV1().ResourceClaims("default").Create(t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: devices},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kind": name[:len("kind0")]}},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // no kubelet renews the nodes' leases
			Containers: []corev1.Container{{
				Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
		},
	}, metav1.CreateOptions{})
	return err
}
