package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

func TestMain(m *testing.M) {
	if exit, ran := cluster.Inside(os.Args[1:]); ran {
		os.Exit(exit)
	}
	os.Exit(m.Run())
}

// bootDelay is the additional start time of a node's driver.
const bootDelay = time.Minute

// patience limits how long anything may take.
const patience = 5 * time.Minute

// suite is a cluster for the scenarios. Each scenario begins and ends without a GPU node, and has
// its own autoscaler.
type suite struct {
	*Cluster
	world *e2e.ClusterState
	bin   string
}

// TestAutoscaler requests a GPU. One GPU node must be added if the autoscaler knows the startup taint
// or its cloud's label for GPU nodes, and more than one otherwise.
func TestAutoscaler(t *testing.T) {
	bin := os.Getenv("GPUREADY_E2E")
	if bin == "" {
		t.Skip("GPUREADY_E2E is not set: make e2e-autoscaler runs the scenarios on a cluster")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute) // with the programs' build
	defer cancel()
	c, err := Up(ctx, Config{Name: "e2e-autoscaler", Bin: bin, Manifests: "../../deployments/static", BootDelay: bootDelay, Out: os.Stderr})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Down()) })
	watching, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(stop)
	world, err := e2e.Watch(watching, c.Kubeconfig)
	require.NoError(t, err)
	s := &suite{Cluster: c, world: world, bin: bin}
	t.Run("WithTheStartupTaintOneNodeComesAndGoesWhenItIsUnneeded", s.withTaint)
	t.Run("WithTheCloudsLabelOneNodeComes", s.withLabel)
	t.Run("WithNeitherMoreNodesComeThanAreNeeded", s.withNeither)
}

func (s *suite) withTaint(t *testing.T) {
	p := s.provide(t, Nodes{Name: "tainted", Max: 3, Taint: true})
	a := s.autoscale(t, p, "--startup-taint="+StartupTaint)
	s.oneNodeIsAdded(t, p)
	require.NoError(t, a.Stop())

	// The program advises at least the autoscaler's default, 10 minutes. A twentieth of the advice is
	// enough to check that it is followed.
	const scale = 20
	advice := s.timers(t)
	unneeded, err := time.ParseDuration(advice.ScaleDownUnneededTime)
	require.NoError(t, err)
	unneeded /= scale
	t.Logf("kubectl gpu timers: %+v; --scale-down-unneeded-time is a %dth of it, %v", advice, scale, unneeded)
	before := p.History().Loops
	s.autoscale(t, p, "--startup-taint="+StartupTaint, "--scale-down-unneeded-time="+unneeded.String(), "--max-node-provision-time="+advice.MaxNodeProvisionTime)
	s.until(t, "the autoscaler looks at the cluster", func() error { return want(p.History().Loops > before, "it does not") })
	began := time.Now()
	s.until(t, "the node is given back", func() error {
		nodes := s.world.Nodes()
		return want(len(p.History().Deletes) == 1 && len(nodes) == 1, "deletions: %v; nodes: %d", p.History().Deletes, len(nodes))
	})
	took := p.History().Deletes[0].At.Sub(began)
	t.Logf("the node was given back %.1f s after the autoscaler first found it unneeded", took.Seconds())
	require.Greater(t, took, unneeded-time.Second, "earlier than it was told")
	require.Less(t, took, unneeded+30*time.Second)
}

func (s *suite) withLabel(t *testing.T) {
	p := s.provide(t, Nodes{Name: "labelled", Max: 3, GPULabel: PCILabel})
	s.autoscale(t, p)
	s.oneNodeIsAdded(t, p)
}

// oneNodeIsAdded runs a pod that requests a GPU to its end.
func (s *suite) oneNodeIsAdded(t *testing.T, p *Provider) {
	t.Helper()
	asked := time.Now()
	s.run(t)
	var ready, usable time.Duration
	var looked int
	s.until(t, "the pod has succeeded", func() error {
		since, loops := time.Since(asked), p.History().Loops
		for _, name := range p.Machines() {
			if c := s.world.Condition(name, corev1.NodeReady); ready == 0 && c != nil && c.Status == corev1.ConditionTrue {
				ready, looked = since, loops
			}
			if usable == 0 && s.world.Allocatable(name) > 0 {
				usable, looked = since, loops-looked
			}
		}
		pod := s.world.Pod("default", "job")
		return want(pod != nil && pod.Status.Phase == corev1.PodSucceeded, "it has not: %+v", pod)
	})
	h := p.History()
	t.Logf("from the pod: %.1f s to the request for a machine, %.1f s to its node Ready, %.1f s to GPUs, %.1f s to the pod's end; the autoscaler looked %d times between Ready and GPUs",
		h.Increases[0].At.Sub(asked).Seconds(), ready.Seconds(), usable.Seconds(), time.Since(asked).Seconds(), looked)
	require.Len(t, h.Increases, 1, "machines were asked for more than once")
	require.Len(t, p.Machines(), 1)
	require.Greater(t, usable-ready, bootDelay/2, "the driver did not take longer than the node")
	require.Greater(t, looked, 10, "the autoscaler had no occasion to ask for more")
}

func (s *suite) withNeither(t *testing.T) {
	p := s.provide(t, Nodes{Name: "plain", Max: 3})
	s.autoscale(t, p)
	asked := time.Now()
	s.run(t)
	s.until(t, "the autoscaler asks for machines more than once", func() error {
		return want(len(p.History().Increases) > 1, "it has asked for %v", p.Machines())
	})
	s.until(t, "the pod has succeeded", func() error {
		pod := s.world.Pod("default", "job")
		return want(pod != nil && pod.Status.Phase == corev1.PodSucceeded, "it has not: %+v", pod)
	})
	for _, r := range p.History().Increases {
		t.Logf("%5.1f s after the pod: %v", r.At.Sub(asked).Seconds(), r.Machines)
	}
	require.Greater(t, len(p.Machines()), 1)
}

// provide creates a provider whose nodes are removed at the end of the test.
func (s *suite) provide(t *testing.T, n Nodes) *Provider {
	t.Helper()
	p, err := s.NewProvider(t.Context(), n, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	require.NoError(t, err)
	t.Cleanup(func() {
		p.Close()
		for _, name := range p.Machines() {
			require.NoError(t, s.RemoveNode(context.WithoutCancel(t.Context()), name))
		}
	})
	return p
}

// autoscale starts an autoscaler that ends with the test at the latest.
func (s *suite) autoscale(t *testing.T, p *Provider, flags ...string) *Autoscaler {
	t.Helper()
	a, err := s.Autoscale(p, flags...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = a.Stop()
		if t.Failed() {
			kept := filepath.Join(os.TempDir(), "gpuready-cluster-autoscaler.log")
			log, err := os.ReadFile(s.Log())
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(kept, log, 0o600))
			t.Logf("what the autoscaler printed is in %s", kept)
		}
	})
	return a
}

// run creates a pod that requests a GPU.
func (s *suite) run(t *testing.T) {
	t.Helper()
	pods := s.world.Client.CoreV1().Pods("default")
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "main", Image: "gpuready/cuda-samples:" + e2e.Version(), ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"vectoradd"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{e2e.GPU: resource.MustParse("1")}},
			}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		now := int64(0)
		require.NoError(t, pods.Delete(context.WithoutCancel(t.Context()), "job", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	})
}

// advice is the output of kubectl gpu timers.
type advice struct{ MaxNodeProvisionTime, ScaleDownUnneededTime string }

// timers reads the advice once one node has been measured.
func (s *suite) timers(t *testing.T) (a advice) {
	t.Helper()
	s.until(t, "kubectl gpu timers has an answer", func() error {
		cmd := exec.CommandContext(t.Context(), filepath.Join(s.bin, "kubectl-gpu"), "timers", "--min-samples=1", "-o", "json")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		return json.Unmarshal(out, &a)
	})
	return a
}

// want returns an error unless ok is true.
func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// until retries many times a second until cond returns no error.
func (s *suite) until(t *testing.T, what string, cond func() error) {
	t.Helper()
	end := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited %v until %s:\n%s\n%s", patience, what, strings.TrimSpace(err.Error()), s.world.Describe())
		}
	}
}
