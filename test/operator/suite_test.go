// Package operator tests the operator on a real cluster: a ClusterPolicy provides GPUs on
// every node, through every upgrade. `make e2e-operator` runs it.
package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/test/e2e"
	"github.com/gpuready/gpuready/test/lab/cluster"
)

// Namespaces of the operator and its operands, and the name of the policy, which is that of the
// reference's documentation.
const (
	namespace = "gpuready-system"
	policy    = "gpu-cluster-policy"
	operands  = "gpu-operands" // the operands' namespace if they have their own
)

// patience limits how long anything may take; the actual time is printed.
const patience = 2 * time.Minute

type suite struct {
	*e2e.Suite
}

// up starts a cluster for a test.
func up(t *testing.T, c cluster.Config) *suite {
	t.Helper()
	return &suite{e2e.Up(t, c)}
}

// program returns the path of a built program.
func program(name string) string { return filepath.Join(os.Getenv("GPUREADY_E2E"), name) }

// run runs a program as a cluster administrator.
func (s *suite) run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(name), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig, "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// helm runs helm.
func (s *suite) helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.run(t, "tools/helm", args...)
	require.NoErrorf(t, err, "helm %s:\n%s\n%s", strings.Join(args, " "), out, s.World.Describe())
	return out
}

// until calls cond many times a second until it returns no error, and returns the time taken.
func (s *suite) until(t *testing.T, what string, cond func() error) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			took := time.Since(began)
			t.Logf("%5.1f s until %s", took.Seconds(), what)
			return took
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.logDiagnostics(t)
			t.Fatalf("waited %v until %s:\n%v\n%s", patience, what, err, s.World.Describe())
		}
	}
}

// served waits until custom resources are served. kubectl wait fails while a definition has
// no conditions, so it is retried.
func (s *suite) served(t *testing.T, definitions ...string) {
	t.Helper()
	s.until(t, strings.Join(definitions, " and ")+" are served", func() error {
		out, err := s.TryKubectl(t, append([]string{"wait", "--for=condition=Established", "--timeout=60s"}, definitions...)...)
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// logDiagnostics prints what helps to find out why a scenario failed.
func (s *suite) logDiagnostics(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "clusterpolicies.nvidia.com", "-o", "yaml"},
		{"-n", namespace, "get", "daemonsets,pods", "-o", "wide"},
		{"-n", namespace, "logs", "--tail=60", "deployment/gpuready-operator"},
		{"get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name}{\" \"}{.metadata.labels}{\"\\n\"}{end}"},
	} {
		out, err := s.TryKubectl(t, args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// clusterPolicy holds the fields of a policy that the scenarios read.
type clusterPolicy struct {
	Status struct {
		State      string
		Conditions []struct{ Type, Status, Reason, Message string }
		Nodes      map[string]int
	}
}

// policy reads a policy.
func (s *suite) policy(t *testing.T, name string) (clusterPolicy, error) {
	t.Helper()
	var p clusterPolicy
	raw, err := s.World.Client.Discovery().RESTClient().Get().AbsPath("/apis/nvidia.com/v1/clusterpolicies/" + name).DoRaw(t.Context())
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(raw, &p)
}

// condition returns an error unless a policy has a condition with that status. A reason, and
// words of its message, are compared if given.
func (s *suite) condition(t *testing.T, name, kind, status, reason string, words ...string) error {
	t.Helper()
	p, err := s.policy(t, name)
	if err != nil {
		return err
	}
	for _, c := range p.Status.Conditions {
		if c.Type != kind {
			continue
		}
		if c.Status != status || reason != "" && c.Reason != reason {
			return fmt.Errorf("%s is %s (%s: %s)", kind, c.Status, c.Reason, c.Message)
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Errorf("the message of %s has no %q: %s", kind, w, c.Message)
			}
		}
		return nil
	}
	return fmt.Errorf("there is no condition %s: %+v", kind, p.Status)
}

// scenario is a named test.
type scenario struct {
	name string
	run  func(t *testing.T, s *suite)
}

// play runs scenarios in order, each on the state that the one before left.
func (s *suite) play(t *testing.T, scenarios ...scenario) {
	t.Helper()
	for _, c := range scenarios {
		if !t.Run(c.name, func(t *testing.T) { c.run(t, s) }) {
			t.FailNow()
		}
	}
}

// plain adapts a method to a scenario.
func plain(do func(*suite, *testing.T)) func(*testing.T, *suite) {
	return func(t *testing.T, s *suite) { do(s, t) }
}
