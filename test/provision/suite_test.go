// Package provision tests gpu-provision on a real cluster: its measurements, and its output and
// leftovers when a measurement goes wrong. `make provision` runs the tests.
package provision

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/provision/report"
	"github.com/gpuready/gpuready/provision/step"
	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// patience limits every wait.
const patience = 2 * time.Minute

type suite struct {
	*e2e.Suite
}

// up starts a cluster with the operator and simulated GPUs on every node.
func up(t *testing.T, c cluster.Config) *suite {
	t.Helper()
	s := &suite{e2e.Up(t, c)}
	for _, n := range s.Nodes {
		s.Kubectl(t, "label", "node", n.Name, "nvidia.com/gpu.present=true")
	}
	s.Apply(t, "operator.yaml")
	s.World.Until(t, "ClusterPolicies are served", func() error {
		_, err := s.TryKubectl(t, "get", "clusterpolicies")
		return err
	})
	s.Apply(t, "examples/clusterpolicy-simulated.yaml")
	s.ready(t)
	return s
}

// ready waits until all nodes are proven and accept pods. The condition alone may be left over from an
// earlier installation.
func (s *suite) ready(t *testing.T) {
	t.Helper()
	s.World.UntilWithin(t, patience, "every node is proven", func() error {
		for _, n := range s.Nodes {
			if c := s.World.Condition(n.Name, "GPUReady"); c == nil || c.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s: %+v", n.Name, c)
			}
			if s.World.Allocatable(n.Name) == 0 || s.World.Node(n.Name).Spec.Unschedulable {
				return fmt.Errorf("%s offers no GPU", n.Name)
			}
		}
		return nil
	})
}

// run is a running gpu-provision measure.
type run struct {
	cmd            *exec.Cmd
	out            string // its output folder
	stdout, stderr bytes.Buffer
}

// start starts a measurement with a kubeconfig.
func (s *suite) start(t *testing.T, kubeconfig string, args ...string) *run {
	t.Helper()
	r := &run{out: t.TempDir()}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	t.Cleanup(cancel)
	args = append([]string{"measure", "--out", r.out, "--kubeconfig", kubeconfig, "--log-format", "json"}, args...)
	r.cmd = exec.CommandContext(ctx, filepath.Join(os.Getenv("GPUREADY_E2E"), "gpu-provision"), args...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	require.NoError(t, r.cmd.Start())
	return r
}

// end waits until the measurement has ended, and returns its exit code.
func (r *run) end(t *testing.T) int {
	t.Helper()
	err := r.cmd.Wait()
	t.Logf("gpu-provision %s: %v\n%s\n%s", strings.Join(r.cmd.Args[1:], " "), err, r.stdout.String(), r.stderr.String())
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	require.NoError(t, err)
	return 0
}

// interrupt sends SIGINT.
func (r *run) interrupt(t *testing.T) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGINT))
}

// report reads the measurement's report.
func (r *run) report(t *testing.T) *report.Report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.out, "report.json"))
	require.NoError(t, err)
	rep, err := report.Read(bytes.NewReader(text), "report.json")
	require.NoError(t, err)
	return rep
}

// nothingLeft checks that a measurement has left nothing in the cluster, and that the policy exists.
func (s *suite) nothingLeft(t *testing.T) {
	t.Helper()
	require.Empty(t, strings.TrimSpace(s.Kubectl(t, "get", "pods", "-A", "-l", step.WorkloadLabel, "-o", "name")))
	require.Equal(t, "clusterpolicy.nvidia.com/gpu-cluster-policy", strings.TrimSpace(s.Kubectl(t, "get", "clusterpolicies", "-o", "name")))
}

// waitRequested waits until the scheduler has seen a sample's workload, however short that is. By then
// gpu-provision has the answer to its request.
func (r *run) waitRequested(t *testing.T, s *suite, sample int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pods, err := s.World.Client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: step.WorkloadLabel})
	require.NoError(t, err)
	defer pods.Stop()
	for event := range pods.ResultChan() {
		p, is := event.Object.(*corev1.Pod)
		if is && strings.HasSuffix(p.Labels[step.WorkloadLabel], fmt.Sprintf("-%d", sample)) && len(p.Status.Conditions) > 0 {
			return
		}
	}
	require.FailNowf(t, "no workload", "sample %d has not begun within %v\n%s", sample, patience, s.World.Describe())
}
