package static

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/scheduler"
)

// claimNode returns the slices of a node that has something for every claim: six whole H100s, one that is
// shared, one that is divided, and a network card beside GPU 3.
func claimNode() []*resourceapi.ResourceSlice {
	healthy := nodestate.Condition{Health: nodestate.Healthy}
	state := nodestate.State{Driver: &nodestate.DriverInfo{Version: "580.95.05", CUDAVersion: "13.0", Simulated: true}, DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA}}
	for i := range 8 {
		g := nodestate.GPU{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Minor: i, Product: "SIMULATED NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper",
			ComputeCapability: "9.0", PCI: gpu.PCIAddress(fmt.Sprintf("0000:%02x:00.0", 0x10+i)), NUMANode: new(i / 4), MemoryBytes: 80 << 30, ComputeMode: "DEFAULT",
			NVLinkDomain: "GPU-0", NVLinkNearest: "GPU-0", Condition: healthy}
		switch i {
		case 6:
			g.Sharing = &nodestate.Sharing{Shares: 4}
		case 7:
			g.MIGEnabled = true
			for n := range 7 {
				g.MIG = append(g.MIG, nodestate.MIGDevice{UUID: gpu.UUID(fmt.Sprintf("MIG-%d", n)), Index: n, Profile: "1g.10gb", GPUInstance: n + 7, MemoryBytes: 10 << 30, Multiprocessors: 16, Condition: healthy})
			}
		}
		state.DevicePlugin.Inventory = append(state.DevicePlugin.Inventory, g)
	}
	root := func(a gpu.PCIAddress) string { return "pci" + strings.TrimSuffix(string(a), ":00.0") }
	nic := resourceapi.Device{Name: "nic-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"resource.kubernetes.io/pcieRoot": {StringValue: new("pci0000:13")}}}
	return append(scheduler.Slices(inventory.Driver, inventory.New(state, inventory.Problem{}, root).Slices()),
		scheduler.Slices("rdma.example.com", []resourceslice.Slice{{Devices: []resourceapi.Device{nic}}})...)
}

// manifest has the objects of a file that concern claims.
type manifest struct {
	claims  []*resourceapi.ResourceClaim
	classes []*resourceapi.DeviceClass
	pods    []corev1.Pod
}

// readManifest reads a file strictly.
func readManifest(t *testing.T, path string) (m manifest) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var kind metav1.TypeMeta
		require.NoError(t, yaml.Unmarshal([]byte(document), &kind))
		read := func(into any) { require.NoError(t, yaml.UnmarshalStrict([]byte(document), into), path) }
		switch kind.Kind {
		case "ResourceClaim":
			c := &resourceapi.ResourceClaim{}
			read(c)
			m.claims = append(m.claims, c)
		case "ResourceClaimTemplate":
			template := resourceapi.ResourceClaimTemplate{}
			read(&template)
			m.claims = append(m.claims, &resourceapi.ResourceClaim{ObjectMeta: template.ObjectMeta, Spec: template.Spec.Spec})
		case "DeviceClass":
			class := &resourceapi.DeviceClass{}
			read(class)
			m.classes = append(m.classes, class)
		case "Pod":
			pod := corev1.Pod{}
			read(&pod)
			m.pods = append(m.pods, pod)
		}
	}
	for _, c := range m.claims {
		setDefaults(c)
	}
	return m
}

// setDefaults sets what the API server does.
func setDefaults(c *resourceapi.ResourceClaim) {
	mode := func(m *resourceapi.DeviceAllocationMode, count *int64) {
		if *m == "" {
			*m = resourceapi.DeviceAllocationModeExactCount
		}
		if *m == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i, r := range c.Spec.Devices.Requests {
		if r.Exactly != nil {
			mode(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			sub := &c.Spec.Devices.Requests[i].FirstAvailable[j]
			mode(&sub.AllocationMode, &sub.Count)
		}
	}
}

// selectors returns all CEL expressions of a manifest.
func (m manifest) selectors() (all []string) {
	add := func(list []resourceapi.DeviceSelector) {
		for _, s := range list {
			all = append(all, s.CEL.Expression)
		}
	}
	for _, c := range m.classes {
		add(c.Spec.Selectors)
	}
	for _, c := range m.claims {
		for _, r := range c.Spec.Devices.Requests {
			if r.Exactly != nil {
				add(r.Exactly.Selectors)
			}
			for _, sub := range r.FirstAvailable {
				add(sub.Selectors)
			}
		}
	}
	return all
}

func requireCompiles(t *testing.T, expressions []string) {
	t.Helper()
	for _, e := range expressions {
		result := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(e, cel.Options{})
		require.Nil(t, result.Error, e)
		require.Less(t, result.MaxCost, uint64(resourceapi.CELSelectorExpressionMaxCost), e)
	}
}

// allocate returns the devices that a claim gets.
func allocate(t *testing.T, s *scheduler.Scheduler, c *resourceapi.ResourceClaim) (devices []string) {
	t.Helper()
	result, err := s.Allocate(t.Context(), c)
	require.NoError(t, err)
	if result != nil {
		for _, r := range result.Devices.Results {
			devices = append(devices, r.Device)
		}
	}
	return devices
}

// Each example gets what it is for, by the scheduler's own code.
func TestExamplesOfClaimsAreAllocated(t *testing.T) {
	want := map[string]string{
		"claim.yaml": "gpu-0", "claim-selector.yaml": "gpu-0", "claim-nvlink.yaml": "gpu-0 gpu-1", "claim-prioritized.yaml": "gpu-0 gpu-1",
		"claim-mig.yaml": "gpu-7-mig-1g10gb-7-0", "claim-two-mig.yaml": "gpu-7-mig-1g10gb-7-0 gpu-7-mig-1g10gb-8-0", "claim-share.yaml": "gpu-6", "claim-mps.yaml": "gpu-6",
		"claim-admin.yaml": "gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-6", "claim-two-pods.yaml": "gpu-0", "claim-gpu-nic.yaml": "gpu-3 nic-0",
	}
	files, err := filepath.Glob("examples/claim*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(want))
	classes := append(readManifest(t, "dra-driver.yaml").classes, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "rdma.example.com"},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == 'rdma.example.com'`}}}}})
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			m := readManifest(t, file)
			requireCompiles(t, m.selectors())
			require.Len(t, m.claims, 1)
			require.NotEmpty(t, m.pods)
			for _, pod := range m.pods {
				require.Equal(t, m.claims[0].Namespace, pod.Namespace)
				require.Equal(t, pod.Spec.ResourceClaims[0].Name, pod.Spec.Containers[0].Resources.Claims[0].Name)
				name := pod.Spec.ResourceClaims[0].ResourceClaimTemplateName
				if name == nil {
					name = pod.Spec.ResourceClaims[0].ResourceClaimName
				}
				require.Equal(t, m.claims[0].Name, *name)
			}
			require.Equal(t, want[filepath.Base(file)], strings.Join(allocate(t, scheduler.New(classes, claimNode()...), m.claims[0]), " "))
		})
	}
}

// The scheduler makes a claim for one device of the class that names the resource.
func TestClassesOfExtendedResourcesDoNotOverlap(t *testing.T) {
	files, err := filepath.Glob("examples/extended-resource*.yaml")
	require.NoError(t, err)
	var classes []*resourceapi.DeviceClass
	for _, file := range files {
		m := readManifest(t, file)
		requireCompiles(t, m.selectors())
		classes = append(classes, m.classes...)
	}
	given := map[string]string{} // of each device, the resource that may give it
	for _, class := range classes {
		all := &resourceapi.ResourceClaim{}
		all.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "all", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeAll}}}
		for _, d := range allocate(t, scheduler.New(classes, claimNode()...), all) {
			require.Empty(t, given[d], d)
			given[d] = *class.Spec.ExtendedResourceName
		}
	}
	count := map[string]int{}
	for _, resource := range given {
		count[resource]++
	}
	require.Equal(t, map[string]int{"nvidia.com/gpu": 6, "nvidia.com/gpu.shared": 1, "nvidia.com/mig-1g.10gb": 7}, count)
}

// A share and a whole GPU exclude each other by the scheduler's count.
func TestExampleOfAShareLeavesRoomForThree(t *testing.T) {
	s := scheduler.New(readManifest(t, "dra-driver.yaml").classes, claimNode()...)
	c := readManifest(t, "examples/claim-share.yaml").claims[0]
	for range 4 {
		require.Equal(t, []string{"gpu-6"}, allocate(t, s, c))
	}
	require.Empty(t, allocate(t, s, c))
	watch := readManifest(t, "examples/claim-admin.yaml").claims[0]
	require.Empty(t, allocate(t, s, watch), "the scheduler counts administrative access as a share; docs/dra.md says so")
}
