package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Step is something that happened on the way from a bare GPU node to a CUDA job.
type Step struct {
	Name string
	At   time.Duration // since the GPU was plugged
}

// Steps of Provision, in the order in which NVIDIA's stack takes them. The files are those
// of /run/nvidia/validations.
const (
	Labelled      = "NFD has labelled the node"
	DriverStarts  = "the driver container starts"
	DriverLoaded  = "the driver root is there"
	DriverCtr     = ".driver-ctr-ready"
	DriverReady   = "driver-ready"
	ToolkitReady  = "toolkit-ready"
	Allocatable   = "nvidia.com/gpu is allocatable"
	CUDAReady     = "cuda-ready"
	PluginReady   = "plugin-ready"
	JobPassed     = "a pod has run vectorAdd"
	jobNamespace  = "default"
	jobName       = "vectoradd"
	jobImage      = "gpuready.test/vectoradd:1"
	validations   = "/run/nvidia/validations"
	driverLibrary = "/run/nvidia/driver/usr/bin/nvidia-smi"
)

// files are the steps that a file on the node tells.
var files = map[string]string{
	DriverLoaded: driverLibrary,
	DriverCtr:    validations + "/.driver-ctr-ready",
	DriverReady:  validations + "/driver-ready",
	ToolkitReady: validations + "/toolkit-ready",
	CUDAReady:    validations + "/cuda-ready",
	PluginReady:  validations + "/plugin-ready",
}

// job waits for a GPU from the start, as a user's would.
const job = `
apiVersion: v1
kind: Pod
metadata: {name: ` + jobName + `, namespace: ` + jobNamespace + `}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  containers:
    - name: main
      image: ` + jobImage + `
      resources: {limits: {nvidia.com/gpu: 1}}
`

// Provision applies the policy of a stack that is installed on a cluster of one node. When the
// operator has taken note of it, it plugs a GPU, and a user's pod asks for that. It returns
// when each step has happened. If ctx ends before, it returns the steps so far and an error.
func (b *Built) Provision(ctx context.Context, c *cluster.Cluster, s Stack) ([]Step, error) {
	policy, err := s.Policy(ctx)
	if err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	world, err := e2e.Watch(watching, c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	node := c.Nodes[0]
	waiting := map[string]func() (bool, error){
		Labelled: func() (bool, error) {
			return world.Node(node.Name).Labels["feature.node.kubernetes.io/pci-10de.present"] == "true", nil
		},
		DriverStarts: func() (bool, error) { return driverStarted(world, s.Namespace()), nil },
		Allocatable:  func() (bool, error) { return world.Allocatable(node.Name) > 0, nil },
		JobPassed:    func() (bool, error) { return hasPassed(world.Pod(jobNamespace, jobName)) },
	}
	for name, path := range files {
		waiting[name] = func() (bool, error) { return exists(node.PathOnNode(path)), nil }
	}
	if err := b.Apply(ctx, c, policy); err != nil {
		return nil, err
	}
	if _, err := b.Kubectl(ctx, c, "wait", "--for=jsonpath={.status.state}", "--timeout=120s", "clusterpolicies.nvidia.com", "--all"); err != nil {
		return nil, err
	}
	if err := b.Apply(ctx, c, job); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := Plug(node); err != nil {
		return nil, err
	}
	var steps []Step
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(waiting) > 0 {
		for name, happened := range waiting {
			yes, err := happened()
			if err != nil {
				return steps, err
			}
			if yes {
				steps = append(steps, Step{name, time.Since(began)})
				delete(waiting, name)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return steps, fmt.Errorf("%w: %d steps are missing; %s", context.Cause(ctx), len(waiting), world.Describe())
		}
	}
	out, err := b.Kubectl(ctx, c, "-n", jobNamespace, "logs", jobName)
	if err != nil {
		return steps, err
	}
	if err := checkOutput(out); err != nil {
		return steps, err
	}
	_, err = b.Kubectl(ctx, c, "-n", jobNamespace, "delete", "pod", jobName, "--grace-period=0", "--timeout=60s")
	return steps, err
}

// driverStarted reports whether a container of a driver pod runs.
func driverStarted(world *e2e.ClusterState, namespace string) bool {
	for _, p := range world.Pods(namespace, "app=nvidia-driver-daemonset") {
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == "nvidia-driver-ctr" && s.State.Running != nil {
				return true
			}
		}
	}
	return false
}

func hasPassed(pod *corev1.Pod) (bool, error) {
	if pod == nil {
		return false, nil
	}
	if pod.Status.Phase == corev1.PodFailed {
		return false, fmt.Errorf("the job has failed: %s %s", pod.Status.Reason, pod.Status.Message)
	}
	return pod.Status.Phase == corev1.PodSucceeded, nil
}

func exists(path string) bool {
	_, err := os.Lstat(filepath.Clean(path))
	return err == nil
}

// checkOutput returns an error unless vectorAdd says that it passed.
func checkOutput(out string) error {
	if strings.Contains(out, "Test PASSED") {
		return nil
	}
	return fmt.Errorf("the job has not passed: it says %q", out)
}
