package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

const fleetNamespace = "gpuready-system"

// fleet is a set of nodes without kubelets.
type fleet struct {
	config *restclient.Config
	client kubernetes.Interface
	nodes  int
}

// The kernels of its four pools, and the label with which NFD reports a GPU.
var kernels = []string{"5.15.0-112-generic", "5.15.0-113-generic", "6.8.0-45-generic", "6.8.0-47-generic"}

const gpuLabel = "feature.node.kubernetes.io/pci-10de.present"

// The patches with which NFD would report that a node has no GPU any more, and that it has one.
const (
	withoutGPU = `{"metadata":{"labels":{"` + gpuLabel + `":"false"}}}`
	withGPU    = `{"metadata":{"labels":{"` + gpuLabel + `":"true"}}}`
)

const fleetPolicy = `
apiVersion: v1
kind: Namespace
metadata: { name: gpuready-system }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: gpu-driver, namespace: gpuready-system }
---
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: { name: gpu-cluster-policy }
spec:
  driver: { repository: nvcr.io/nvidia, image: driver, version: 580.95.05 }
`

func newFleet(ctx context.Context, c *cluster.Cluster, kubectl string) (*fleet, error) {
	for _, manifest := range []string{string(deployments.ClusterPolicyCRD()), fleetPolicy} { // the policy is refused until the definition is served
		if err := retry(ctx, func() error {
			cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", c.Kubeconfig, "apply", "-f", "-")
			cmd.Stdin = strings.NewReader(manifest)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("kubectl apply: %w: %s", err, out)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	plain := restclient.CopyConfig(config)
	config.QPS, config.Burst = 2000, 4000
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	return &fleet{config: plain, client: client}, err
}

// retry retries for a minute.
func retry(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := do()
		if err == nil || pause(ctx, 200*time.Millisecond) != nil {
			return err
		}
	}
}

func name(i int) string { return fmt.Sprintf("gpu-%04d", i) }

// grow makes nodes until there are n.
func (f *fleet) grow(ctx context.Context, n int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for ; f.nodes < n; f.nodes++ {
		node := bareNode(f.nodes)
		g.Go(func() error {
			_, err := f.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

// bareNode returns a node as NFD and a kubelet describe it: dozens of labels, dozens of images.
func bareNode(i int) *corev1.Node {
	labels := map[string]string{
		"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name(i), gpuLabel: "true",
		"feature.node.kubernetes.io/kernel-version.full":                kernels[i%len(kernels)],
		"feature.node.kubernetes.io/system-os_release.ID":               "ubuntu",
		"feature.node.kubernetes.io/system-os_release.VERSION_ID":       "22.04",
		"node.kubernetes.io/instance-type":                              "p5.48xlarge",
		"topology.kubernetes.io/zone":                                   "eu-west-1a",
		"feature.node.kubernetes.io/cpu-model.vendor_id":                "Intel",
		"feature.node.kubernetes.io/memory-numa":                        "true",
		"feature.node.kubernetes.io/network-sriov.capable":              "true",
		"feature.node.kubernetes.io/storage-nonrotationaldisk":          "true",
		"feature.node.kubernetes.io/system-os_release.VERSION_ID.major": "22",
	}
	for j := range 45 {
		labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE%02d", j)] = "true"
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: labels}}
	quantity := apiresource.MustParse("192")
	n.Status = corev1.NodeStatus{
		Capacity: corev1.ResourceList{corev1.ResourceCPU: quantity}, Allocatable: corev1.ResourceList{corev1.ResourceCPU: quantity},
		NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64", OperatingSystem: "linux", OSImage: "Ubuntu 22.04.5 LTS",
			KernelVersion: kernels[i%len(kernels)], KubeletVersion: "v1.33.4", ContainerRuntimeVersion: "containerd://2.1.4"},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
	}
	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 1 << 30, Names: []string{
			fmt.Sprintf("registry.example.com/team/service-%02d@sha256:%064x", j, j), fmt.Sprintf("registry.example.com/team/service-%02d:v1.2.%d", j, j)}})
	}
	return n
}

// labelled waits until the operator has labelled n nodes.
func (f *fleet) labelled(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		// The API server counts: with a limit of one, it reports how many remain.
		l, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "nvidia.com/gpu.deploy.driver=true", ResourceVersion: "0"})
		if err != nil {
			return err
		}
		if len(l.Items) == n {
			return nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d of %d nodes are labelled: %w", len(l.Items), n, err)
		}
	}
}

// unlabel removes the operator's labels and annotations from all nodes.
func (f *fleet) unlabel(ctx context.Context) error {
	l, err := f.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "nvidia.com/gpu.present"})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, n := range l.Items {
		labels := map[string]any{}
		for key := range n.Labels {
			if strings.HasPrefix(key, "nvidia.com/") || strings.HasPrefix(key, "gpuready.io/") {
				labels[key] = nil
			}
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": map[string]any{"gpuready.io/labels": nil}}})
		if err != nil {
			return err
		}
		g.Go(func() error {
			_, err := f.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, body, metav1.PatchOptions{})
			return err
		})
	}
	return g.Wait()
}

// removeGPU removes a node's GPU label, and waits until the operator has removed its own labels.
func (f *fleet) removeGPU(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := f.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name(i)})
	if err != nil {
		return err
	}
	defer w.Stop()
	if err := f.patch(ctx, name(i), withoutGPU); err != nil {
		return err
	}
	for e := range w.ResultChan() {
		if n, ok := e.Object.(*corev1.Node); ok && n.Labels["nvidia.com/gpu.deploy.driver"] == "" && n.Labels[gpuLabel] == "false" {
			return nil
		}
	}
	return fmt.Errorf("the labels of %s are still there", name(i))
}

// addNode adds a node, and returns the time from its GPU label to its driver's pod.
func (f *fleet) addNode(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	w, err := f.client.CoreV1().Pods(fleetNamespace).Watch(ctx, metav1.ListOptions{LabelSelector: "app=nvidia-driver-daemonset"})
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	node := bareNode(f.nodes)
	f.nodes++
	delete(node.Labels, gpuLabel)
	if _, err := f.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	// The API server taints nodes that are not ready, and no controller here removes the taint.
	if err := f.patch(ctx, node.Name, `{"spec":{"taints":null}}`); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := f.patch(ctx, node.Name, withGPU); err != nil {
		return 0, err
	}
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && onNode(p) == node.Name {
			return time.Since(began), nil
		}
	}
	return 0, fmt.Errorf("no driver's pod was made for %s", node.Name)
}

func (f *fleet) patch(ctx context.Context, node, body string) error {
	_, err := f.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	return err
}

// onNode returns the node for which a DaemonSet's pod is created.
func onNode(p *corev1.Pod) string {
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, m := range t.MatchFields {
			if m.Key == "metadata.name" && len(m.Values) == 1 {
				return m.Values[0]
			}
		}
	}
	return ""
}
