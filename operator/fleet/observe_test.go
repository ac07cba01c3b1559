package fleet

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/operator/label"
)

func TestInjectionByVersions(t *testing.T) {
	for _, c := range []struct {
		kubelet, runtime string
		want             Injection
	}{
		{"v1.31.2", "containerd://2.0.1", NRI},
		{"v1.29.3+rke2r1", "containerd://2.1.0-k3s1", NRI},
		{"v1.29.0", "cri-o://1.29.4", NRI},
		{"v1.33.6", "cri-o://1.33.8-3.rhaos4.20.git9658698.el9", NRI},
		{"v1.31.2-eks-036c24b", "containerd://1.7.22", CDI},
		{"v1.29.0", "containerd://1.7.11+unknown", CDI},
		{"1.27.13-eks-036c24b", "containerd://1.7.11", Annotations},
		{"v1.28.9", "containerd://2.0.0-rc.1", Annotations},
		{"v1.25.16+9946c63", "cri-o://1.25.5-10.rhaos4.12.git37b2a50.el8", Annotations},
		{"v1.29.0", "cri-o://1.27.1", Annotations},
		{"v1.31.2", "containerd://1.6.36", Handler},
		{"v1.26.15", "containerd://1.6.21~ds1", Handler},
		{"v1.24.0", "cri-o://1.23.5", Handler},
		{"v1.31.2", "docker://27.1.1", Handler},
		{"v1.31.2", "", Handler},
		{"", "containerd://2.0.1", Annotations},
		{"v1.31.2", "containerd://", Handler},
		{"v1.31.2", "containerd://x.y.z", Handler},
		{"v1.99999999999999999999", "containerd://2.0.1", Annotations},
		{"v1", "cri-o://unknown", Handler},
	} {
		require.Equal(t, c.want, injectionOf(c.kubelet, c.runtime), "%s with %s", c.kubelet, c.runtime)
	}
}

func TestPoolPrefersNFDOverTheKubelet(t *testing.T) {
	kubelets := Pool{Arch: "amd64", OS: "ubuntu22.04", Kernel: "5.15.0-1042-aws"}
	require.Equal(t, kubelets, Observe(node(nil)).Pool)
	require.Equal(t, kubelets, Observe(node(with())).Pool)
	labels := with(label.Kernel, "4.18.0-372.51.1.el8_6.x86_64", label.OSID, "rhcos", label.OSVersion, "4.12", label.OSTree, "412.86.202303241612-0")
	require.Equal(t, Pool{Arch: "amd64", OS: "rhcos4.12", Kernel: "4.18.0-372.51.1.el8_6.x86_64", CoreOS: true, RHCOS: "412.86.202303241612-0"}, Observe(node(labels)).Pool)
	odd := node(map[string]string{corev1.LabelArchStable: "arm64"})
	odd.Status.NodeInfo = corev1.NodeSystemInfo{KernelVersion: "5.14.0-427.el9.aarch64+64k", OSImage: "nobody knows"}
	require.Equal(t, Pool{Arch: "arm64", Kernel: "5.14.0-427.el9.aarch64_64k"}, Observe(odd).Pool)
}

func TestPlatformsThatAreNotServedArePoolsOfTheirOwn(t *testing.T) {
	wsl, jetson := node(with(label.Present, "true")), node(with(label.Present, "true"))
	wsl.Status.NodeInfo.KernelVersion, jetson.Status.NodeInfo.KernelVersion = "5.15.153.1-microsoft-standard-WSL2", "5.15.148-tegra"
	vgpu, reported := node(with(label.Workload, "vm-vgpu")), node(with())
	reported.Status.Conditions = []corev1.NodeCondition{{Type: readyType, Status: corev1.ConditionFalse, Reason: "PlatformNotServed", Message: "driver: gpuready does not serve this machine"}}
	for name, n := range map[string]*corev1.Node{"WSL2": wsl, "Jetson": jetson, "a host of vGPUs": vgpu, "as the validator reports": reported} {
		pool := Observe(n).Pool
		require.True(t, pool.NotServed, name)
		require.Contains(t, pool.String(), "/not served", name)
	}
	igx, containers := node(with(label.PCI3D, "true")), node(with(label.Workload, "container"))
	igx.Status.NodeInfo.KernelVersion = "5.15.148-tegra"
	for name, n := range map[string]*corev1.Node{"IGX Orin with a GPU on its PCI bus": igx, "containers": containers, "any": node(with())} {
		require.False(t, Observe(n).Pool.NotServed, name)
	}
}

func TestALabelInOtherLettersIsNamed(t *testing.T) {
	for have, want := range map[string]string{
		"feature.node.kubernetes.io/pci-10DE.present=true":      label.PCI + "=true",
		"feature.node.kubernetes.io/PCI-0302_10de.present=true": label.PCI3D + "=true",
		"nvidia.com/gpu.present=True":                           label.Present + "=true",
		"nvidia.com/gpu.present=yes":                            label.Present + "=true",
		"nvidia.com/gpu.present=false":                          "",
		"nvidia.com/gpu.present=true":                           "",
		"example.com/gpu=true":                                  "",
	} {
		key, value, _ := strings.Cut(have, "=")
		similar, counts := SimilarGPULabel(map[string]string{key: value, "other": "x"})
		require.Equal(t, want, counts, have)
		if want != "" {
			require.Equal(t, have, similar)
			require.False(t, Observe(node(map[string]string{key: value})).GPU)
		}
	}
}

func TestConditionsAndCordon(t *testing.T) {
	n := full(1)
	got := Observe(n)
	require.True(t, got.Ready)
	require.False(t, got.Cordoned)
	require.True(t, got.Served(false))
	require.False(t, got.Served(true))
	require.Equal(t, corev1.ConditionFalse, got.GPUReady.Status)
	require.Equal(t, "DriverMissing", got.GPUReady.Reason)
	require.Equal(t, "7", got.Version)
	other := full(1)
	other.ResourceVersion = "8"
	require.True(t, got.Equal(Observe(other)))
	for name, change := range map[string]func(){
		"label":     func() { other.Labels[label.Driver] = "x" },
		"cordon":    func() { other.Spec.Unschedulable = true },
		"taint":     func() { other.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} },
		"condition": func() { other.Status.Conditions[1].Reason = "x" },
		"handlers":  func() { other.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "crun"}} },
	} {
		before := Observe(other.DeepCopy())
		change()
		require.False(t, before.Equal(Observe(other)), name)
	}
	require.False(t, got.Equal(nil))
	require.Equal(t, []string{"nvidia", "runc"}, got.Handlers, "the one without a name is the default")
}

func TestStrippedNodeIsEquivalentAndSmall(t *testing.T) {
	whole, stripped := full(1), full(1)
	Strip(stripped)
	require.True(t, Observe(whole).Equal(Observe(stripped)))
	data, err := json.Marshal(stripped)
	require.NoError(t, err)
	require.Less(t, len(data), 6<<10, "in JSON; %s", data)
	again := stripped.DeepCopy()
	Strip(again)
	require.Equal(t, stripped, again)
}

// full returns a Node with all the data that real clusters have.
func full(i int) *corev1.Node {
	n := node(with(label.PCI3D, "true", label.Present, "true", label.Driver, "ubuntu22.04", label.Injection, "nri"))
	n.Name = fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/256, i%256)
	n.CreationTimestamp = metav1.Now().Rfc3339Copy()
	n.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: "runc", Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: new(true)}}, {Name: ""}, {Name: "nvidia"}}
	n.Annotations = map[string]string{label.OwnLabels: "present", "csi.volume.kubernetes.io/nodeid": `{"ebs.csi.aws.com":"i-0123456789abcdef0"}`}
	for _, operand := range []string{"driver", "container-toolkit", "device-plugin", "operator-validator", "gpu-feature-discovery", "dcgm", "dcgm-exporter"} {
		n.Labels[label.Deploy+operand] = "true"
	}
	for j := range 60 {
		n.Labels[fmt.Sprintf("%scpu-cpuid.FEATURE%d", label.Feature, j)] = "true"
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d@sha256:0123456789", j)}, SizeBytes: 1 << 20})
	}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":"` + strings.Repeat("x", 8<<10) + `"}`)}}
	n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	since := metav1.NewTime(time.Unix(1700000000, 0))
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: since, LastTransitionTime: since},
		{Type: readyType, Status: corev1.ConditionFalse, Reason: "DriverMissing", Message: "driver: there is none", LastTransitionTime: since},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
	}
	return n
}

func FuzzNoNodePanics(f *testing.F) {
	seed, err := json.Marshal(full(1))
	require.NoError(f, err)
	f.Add(seed, "present,deploy.driver=true")
	f.Add([]byte(`{"metadata":{"labels":{"nvidia.com/gpu.present":"true"}},"status":{"nodeInfo":{"osImage":"Ubuntu ","kubeletVersion":"v1."}}}`), ",=,")
	f.Fuzz(func(t *testing.T, data []byte, wrote string) {
		var n corev1.Node
		if json.Unmarshal(data, &n) != nil {
			return
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[label.OwnLabels] = wrote
		stripped := n.DeepCopy()
		Strip(stripped)
		observed := Observe(stripped)
		require.True(t, observed.Equal(Observe(&n)))
		p := Placement{Operands: []string{"driver"}, Driver: "x"}
		after := apply(&n, observed.LabelPatch(p))
		require.Empty(t, shown(Observe(after).LabelPatch(p)))
		_, err := observed.RemovalPatch(false).JSON()
		require.NoError(t, err)
	})
}

func BenchmarkObserve(b *testing.B) {
	n := full(1)
	Strip(n)
	b.ReportAllocs()
	for b.Loop() {
		Observe(n)
	}
}

func BenchmarkSteadyLabelPatch(b *testing.B) {
	n := full(1)
	Strip(n)
	p := Placement{Operands: []string{"driver", "container-toolkit", "device-plugin", "operator-validator", "gpu-feature-discovery", "dcgm", "dcgm-exporter"}, Driver: "ubuntu22.04"}
	observed := Observe(n)
	b.ReportAllocs()
	for b.Loop() {
		observed.LabelPatch(p)
	}
}

// BenchmarkMemory reports the memory of a cached Node and of its observed form.
func BenchmarkMemory(b *testing.B) {
	const count = 5000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		nodes, observed := make([]*corev1.Node, count), make([]*Node, count)
		for i := range nodes {
			nodes[i] = full(i)
			Strip(nodes[i])
			observed[i] = Observe(nodes[i])
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/count, "B/node")
		runtime.KeepAlive(nodes)
		runtime.KeepAlive(observed)
	}
}
