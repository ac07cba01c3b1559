package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/lab/binaries"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// StartupTaint is the taint of new GPU nodes, which the validator removes.
const StartupTaint = "nvidia.com/gpu-not-ready"

// PCILabel is the label by which the operator recognizes a GPU node. In production Node Feature
// Discovery sets it; here the kubelet registers it.
const PCILabel = "feature.node.kubernetes.io/pci-10de.present"

const (
	namespace = "gpuready-system"
	policy    = "gpu-cluster-policy"
)

// gpus are the PCI addresses of the GPUs of the policy's profile, h100-sxm.
var gpus = []string{
	"0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0", "0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0",
}

// Config describes a cluster whose only node has no GPU, with the operator and a policy for
// simulated GPUs.
type Config struct {
	Name      string        // of the cluster
	Bin       string        // folder of the built programs, with images/
	Manifests string        // deployments/static
	BootDelay time.Duration // additional start time of each simulated driver
	Out       io.Writer     // progress
}

// Cluster is a cluster started by Up.
type Cluster struct {
	*cluster.Cluster
	Kubectl string // the program
	program string // the Cluster Autoscaler
}

// Up starts the cluster and installs the operator. ctx bounds only that.
func Up(ctx context.Context, c Config) (*Cluster, error) {
	images, err := filepath.Glob(filepath.Join(c.Bin, "images", "*.tar"))
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("no images in %s; run make images", filepath.Join(c.Bin, "images"))
	}
	options := binaries.Options{Out: c.Out}
	dir, err := binaries.Ensure(ctx, options)
	if err != nil {
		return nil, err
	}
	autoscaler, err := binaries.EnsureAutoscaler(ctx, options)
	if err != nil {
		return nil, err
	}
	up, err := cluster.Up(ctx, cluster.Config{
		Name: c.Name, Images: images, Binaries: dir,
		Progress: func(s cluster.Step) { fmt.Fprintf(c.Out, "  %5.1f s  %s\n", s.Took.Seconds(), s.What) },
	})
	if err != nil {
		return nil, err
	}
	made := &Cluster{Cluster: up, Kubectl: dir.Path("kubectl"), program: autoscaler.Path("cluster-autoscaler")}
	if err := made.install(ctx, c); err != nil {
		return nil, errors.Join(err, up.Down())
	}
	fmt.Fprintln(c.Out, "  the operator is installed")
	return made, nil
}

// install follows docs/operator.md, without Helm.
func (c *Cluster) install(ctx context.Context, config Config) error {
	delay := fmt.Sprintf(`{"spec":{"driver":{"simulated":{"env":[{"name":"GPUSIM_BOOT_DELAY","value":%q}]}}}}`, config.BootDelay)
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", filepath.Join(config.Manifests, "operator.yaml")},
		{"wait", "--for=condition=Established", "--timeout=60s", "crd/clusterpolicies.nvidia.com"},
		{"apply", "-f", filepath.Join(config.Manifests, "examples", "clusterpolicy-simulated.yaml")},
		{"patch", "clusterpolicy", policy, "--type=merge", "-p", delay},
		// NFD's label for a node without a GPU.
		{"label", "node", "n1", "feature.node.kubernetes.io/system-os_release.ID=debian"},
		{"-n", namespace, "rollout", "status", "deployment/gpuready-operator", "--timeout=120s"},
		{"wait", "--for=condition=Ready", "--timeout=120s", "clusterpolicy/" + policy},
	} {
		cmd := exec.CommandContext(ctx, c.Kubectl, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %v: %w\n%s", args, err, out)
		}
	}
	return nil
}

// Nodes describes the group of GPU nodes.
type Nodes struct {
	Name     string // of the group; unique for each provider, because machines' names begin with it
	Max      int
	Taint    bool   // new nodes come with the startup taint
	GPULabel string // of the provider; see Group
}

// NewProvider creates a provider whose machines are new nodes of the cluster. It must be closed
// before the cluster's Down.
func (c *Cluster) NewProvider(ctx context.Context, n Nodes, log *slog.Logger) (*Provider, error) {
	template, err := c.template(ctx)
	if err != nil {
		return nil, err
	}
	m := machines{cluster: c.Cluster, spec: cluster.NodeSpec{Labels: map[string]string{PCILabel: "true"}, GPUs: gpus}}
	if n.Taint {
		m.spec.Taints = []string{StartupTaint + ":" + string(corev1.TaintEffectNoSchedule)}
		template.Spec.Taints = []corev1.Taint{{Key: StartupTaint, Effect: corev1.TaintEffectNoSchedule}}
	}
	return NewProvider(Group{Name: n.Name, Max: n.Max, Template: template, GPULabel: n.GPULabel}, m, log), nil
}

// template returns a GPU node as a cloud describes one before creating it: with the size of the
// cluster's first node.
func (c *Cluster) template(ctx context.Context) (corev1.Node, error) {
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-template", Labels: map[string]string{
			PCILabel: "true", corev1.LabelHostname: "gpu-template", corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
	}
	out, err := exec.CommandContext(ctx, c.Kubectl, "--kubeconfig="+c.Kubeconfig, "get", "node", "n1", "-o", "jsonpath={.status.capacity.cpu} {.status.capacity.memory} {.status.capacity.pods}").Output()
	if err != nil {
		return node, fmt.Errorf("how large a node is: %w", err)
	}
	var cpu, memory, pods string
	if _, err := fmt.Sscan(string(out), &cpu, &memory, &pods); err != nil {
		return node, fmt.Errorf("how large a node is: %q: %w", out, err)
	}
	node.Status.Capacity = corev1.ResourceList{}
	for name, value := range map[corev1.ResourceName]string{
		corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory, corev1.ResourcePods: pods, "nvidia.com/gpu": strconv.Itoa(len(gpus)),
	} {
		if node.Status.Capacity[name], err = resource.ParseQuantity(value); err != nil {
			return node, fmt.Errorf("%s of a node: %w", name, err)
		}
	}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return node, nil
}

// Log returns the file with the autoscaler's output, beside the logs of the cluster's programs.
func (c *Cluster) Log() string {
	return filepath.Join(filepath.Dir(c.Kubeconfig), "log", "cluster-autoscaler.log")
}

// Autoscale starts the autoscaler with additional flags.
func (c *Cluster) Autoscale(p *Provider, flags ...string) (*Autoscaler, error) {
	return Start(p, Process{Program: c.program, Kubeconfig: c.Kubeconfig, Log: c.Log(), Flags: flags})
}

// machines creates and removes nodes of a cluster.
type machines struct {
	cluster *cluster.Cluster
	spec    cluster.NodeSpec
}

// Add implements Machines.
func (m machines) Add(ctx context.Context, name string) error {
	m.spec.ProviderID = ProviderID(name)
	_, err := m.cluster.AddNode(ctx, name, m.spec)
	return err
}

// Remove implements Machines.
func (m machines) Remove(ctx context.Context, name string) error {
	return m.cluster.RemoveNode(ctx, name)
}
