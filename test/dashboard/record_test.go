package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

const namespace = "gpuready-system" // of the operator and its operands

// policy is the cluster's: four simulated GPUs a node, and configurations of the device plugin.
var policy = `
apiVersion: v1
kind: ConfigMap
metadata: { name: plugin-configs, namespace: gpuready-system }
data:
  default: "version: v1\n"
  spare: "version: v1\ndevices: { exclude: ['0'] }\n"
---
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: { name: gpu-cluster-policy }
spec:
  mig: { strategy: mixed }
  devicePlugin: { config: { name: plugin-configs, default: default } }
  driver:
    simulated: { enabled: true, profile: h100-sxm, version: ` + e2e.Version() + `, env: [{ name: GPUSIM_GPUS, value: "4" }] }
    upgradePolicy: { autoUpgrade: true, maxParallelUpgrades: 1, maxUnavailable: 1, drain: { enable: false } }
`

// workload is a Deployment whose pods compute a little, over and over.
var workload = `
apiVersion: v1
kind: Namespace
metadata: { name: %[1]s }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: %[2]s, namespace: %[1]s }
spec:
  replicas: %[3]d
  selector: { matchLabels: { app: %[2]s } }
  template:
    metadata: { labels: { app: %[2]s } }
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 0
      containers:
      - name: main
        image: gpuready/cuda-samples:` + e2e.Version() + `
        imagePullPolicy: IfNotPresent
        command: [vectoradd, --for, 1h, --every, 5s, --elements, "1000"]
        resources: { limits: { %[4]s } }
`

// story is a cluster on which things happen at certain times.
type story struct {
	*e2e.Suite
	began time.Time
}

// TestDashboard records a cluster on which things happen, and draws the dashboard.
func TestDashboard(t *testing.T) {
	dir := os.Getenv("GPUREADY_DASHBOARD")
	if dir == "" {
		t.Skip("make dashboard-picture records a cluster")
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "data")))
	s := &story{Suite: e2e.Up(t, cluster.Config{Nodes: 2, Images: e2e.NextImages(t)})}
	for _, n := range s.Nodes {
		s.Kubectl(t, "label", "node", n.Name, "nvidia.com/gpu.present=true")
	}
	targets := filepath.Join(dir, "targets.json")
	s.followTargets(t, s.proxy(t), targets)
	p, err := startPrometheus(t.Context(), dir, targets)
	require.NoError(t, err)
	stop := sync.OnceValue(p.close)
	t.Cleanup(func() { _ = stop() })
	s.Kubectl(t, "apply", "--server-side", "-f", "../../deployments/static/operator.yaml")
	s.World.Until(t, "policies are served", func() error {
		out, err := s.TryKubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/clusterpolicies.nvidia.com")
		return annotate(err, out)
	})
	from := time.Now()
	s.ApplyText(t, policy)
	s.World.WaitAllocatable(t, 4, "n1", "n2")
	s.play(t)
	recorded, err := json.Marshal(span{From: from.Truncate(interval), To: time.Now().Truncate(interval)})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "span.json"), recorded, 0o644))
	require.NoError(t, stop())

	t.Chdir("../..")
	empty, err := drawRecording(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, empty, "panels without data and without a reason in noData")
}

func annotate(err error, out string) error {
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// proxy runs kubectl proxy until the end of the test and returns its address.
func (s *story) proxy(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(s.KubectlPath(), "--kubeconfig", s.Kubeconfig, "proxy", "--port=0")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, lines) }() // ends with the process
	address := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	require.NotEmpty(t, address, line)
	return address
}

// followTargets keeps the file of the pods that Prometheus scrapes, until the end of the test.
func (s *story) followTargets(t *testing.T, proxy, file string) {
	t.Helper()
	write := func() error {
		data, err := json.Marshal(scrapeTargets(proxy, s.World.Pods(namespace, "app.kubernetes.io/part-of=gpuready")))
		if err != nil {
			return err
		}
		if err := os.WriteFile(file+".new", data, 0o644); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, write())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
				_ = write() // the next one comes at once
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

var scraped = regexp.MustCompile(`^(gpuready-operator|nvidia-device-plugin.*|nvidia-container-toolkit-daemonset|nvidia-operator-validator)$`)

// scrapeTargets returns the pods and labels of deployments/monitoring/podmonitor.yaml, in the format of
// Prometheus' file_sd. The API server, to which proxy is a kubectl proxy, passes the requests to the pods.
func scrapeTargets(proxy string, pods []*corev1.Pod) (targets []map[string]any) {
	targets = []map[string]any{}
	for _, p := range pods {
		if !scraped.MatchString(p.Labels["app"]) || p.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name != "metrics" {
					continue
				}
				address := fmt.Sprintf("%s:%d", p.Name, port.ContainerPort)
				targets = append(targets, map[string]any{"targets": []string{proxy}, "labels": map[string]string{
					"__metrics_path__": "/api/v1/namespaces/" + p.Namespace + "/pods/" + address + "/proxy/metrics",
					"job":              p.Labels["app"], "namespace": p.Namespace, "pod": p.Name, "container": c.Name, "node": p.Spec.NodeName, "instance": address,
				}})
			}
		}
	}
	return targets
}

// at waits until that time of the story.
func (s *story) at(offset time.Duration) { time.Sleep(time.Until(s.began.Add(offset))) }

// gpusim runs gpusim in the driver's pod of a node.
func (s *story) gpusim(t *testing.T, node string, args ...string) {
	t.Helper()
	s.World.Until(t, "gpusim "+strings.Join(args, " ")+" on "+node, func() error {
		for _, p := range s.World.Pods(namespace, "app=nvidia-driver-daemonset") {
			if p.Spec.NodeName == node && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
				out, err := s.TryKubectl(t, append([]string{"-n", namespace, "exec", p.Name, "--", "gpusim"}, args...)...)
				return annotate(err, out)
			}
		}
		return errors.New("it has no driver pod")
	})
}

// load makes the GPUs of a node busy, each in its way. One of 0 % is idle.
func (s *story) load(t *testing.T, node string, percents ...int) {
	t.Helper()
	for i, percent := range percents {
		if percent > 0 {
			s.gpusim(t, node, "load", "--gpu", fmt.Sprint(i), "--percent", fmt.Sprint(percent), "--period", fmt.Sprintf("%dm", 2+i), "--memory-used", fmt.Sprint(700*percent))
		}
	}
}

// loadAll makes the GPUs of the first nodes busy, and divides one.
func (s *story) loadAll(t *testing.T) {
	t.Helper()
	s.load(t, "n1", 95, 80, 60, 0)
	s.load(t, "n2", 85, 70, 45, 30)
	s.gpusim(t, "n2", "mig", "--gpu", "3", "--layout", "1g.10gb,2g.20gb,3g.40gb")
}

// play plays the story: jobs, MIG, a new node, a driver upgrade, memory errors and lost GPUs.
func (s *story) play(t *testing.T) {
	s.began = time.Now()
	s.loadAll(t)
	s.ApplyText(t, fmt.Sprintf(workload, "training", "llm", 1, "nvidia.com/gpu: 2"))
	s.ApplyText(t, fmt.Sprintf(workload, "inference", "chat", 3, "nvidia.com/gpu: 1"))
	s.ApplyText(t, fmt.Sprintf(workload, "research", "notebook", 1, "nvidia.com/mig-2g.20gb: 1"))

	s.at(80 * time.Second)
	_, err := s.AddNode(t.Context(), "n3", cluster.NodeSpec{Labels: map[string]string{"nvidia.com/gpu.present": "true"}})
	require.NoError(t, err)
	s.World.WaitAllocatable(t, 4, "n3")
	s.load(t, "n3", 75, 50, 0, 0)
	s.ApplyText(t, fmt.Sprintf(workload, "training", "vision", 4, "nvidia.com/gpu: 1"))

	s.at(150 * time.Second)
	s.upgrade(t, e2e.NextVersion())
	s.loadAll(t) // the new driver's GPUs are idle
	s.load(t, "n3", 75, 50, 0, 0)
	after := time.Since(s.began)
	t.Logf("the upgrade ended after %v", after)

	for range 4 { // memory that decays, and programs with faults
		s.gpusim(t, "n1", "ecc", "--gpu", "1", "--corrected", "2")
		s.gpusim(t, "n3", "xid", "--gpu", "1", "--xid", "31")
		after += 20 * time.Second
		s.at(after)
		s.gpusim(t, "n1", "ecc", "--gpu", "1", "--corrected", "3")
		s.gpusim(t, "n2", "xid", "--gpu", "0", "--xid", "13")
	}
	s.gpusim(t, "n1", "ecc", "--gpu", "1", "--uncorrected", "1")
	s.gpusim(t, "n1", "xid", "--gpu", "1", "--xid", "48")
	s.removeSpecs(t, "n3")
	s.Kubectl(t, "-n", "training", "delete", "pod", "--selector=app=llm") // its next one gets two GPUs
	s.at(after + 30*time.Second)
	s.Kubectl(t, "label", "node", "n3", "nvidia.com/device-plugin.config=spare")
	s.gpusim(t, "n2", "lose", "--gpu", "2")
	s.KillKubelet(t, "n3")
	s.at(after + 100*time.Second)
}

// upgrade upgrades the driver and waits until every node has the new one.
func (s *story) upgrade(t *testing.T, version string) {
	t.Helper()
	s.Kubectl(t, "patch", "clusterpolicy", "gpu-cluster-policy", "--type=merge", "-p", `{"spec":{"driver":{"simulated":{"version":"`+version+`"}}}}`)
	s.World.Until(t, "every node has the driver "+version, func() error {
		const fields = `jsonpath={.status.state} {.status.pools[*].image} {.status.conditions[?(@.type=="Progressing")].status}`
		out, err := s.TryKubectl(t, "get", "clusterpolicy", "gpu-cluster-policy", "-o", fields)
		if err == nil && out != "ready gpuready/driver-simulator:"+version+" False" {
			err = errors.New("not yet")
		}
		return annotate(err, out)
	})
}

// removeSpecs removes the CDI specifications of a node, which the toolkit writes again.
func (s *story) removeSpecs(t *testing.T, node string) {
	t.Helper()
	specs, err := filepath.Glob(filepath.Join(s.Node(node).PathOnNode("/run/cdi"), "*"))
	require.NoError(t, err)
	require.NotEmpty(t, specs)
	for _, file := range specs {
		require.NoError(t, os.Remove(file))
	}
}
