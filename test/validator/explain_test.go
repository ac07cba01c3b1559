package validator

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/e2e"
)

// startupTaint is the key of the taint that the validator manages.
const startupTaint = "nvidia.com/gpu-not-ready"

// reportedEverywhere waits until all places that people and programs look at name the reason of a refused
// layer and, if there is room, the next action: Event, explain, log, metric and exit code. The condition
// was checked before.
func (n *node) reportedEverywhere(t *testing.T, l readiness.Layer, why readiness.NotReady) {
	t.Helper()
	n.explained(t, ": "+string(why.Reason))
	has := func(text string, words ...string) error {
		text = strings.Join(strings.Fields(text), " ")
		for _, w := range words {
			if !strings.Contains(text, strings.Join(strings.Fields(w), " ")) {
				return fmt.Errorf("there is no %q in:\n%s", w, tail(text, 5))
			}
		}
		return nil
	}
	for _, place := range []struct {
		name   string
		report func() error
	}{
		{"the log", func() error { return n.logged(t, "not ready", "layer="+string(l), "reason="+string(why.Reason)) }},
		{"kubectl gpu explain", func() error {
			out, _ := n.run(t, "kubectl-gpu", "explain", "-n", e2e.Namespace, n.name, "-o", "json")
			return has(out, string(why.Reason))
		}},
		{"the exit code of gpu-validator wait", func() error {
			out, code := n.run(t, "gpu-validator", "wait", string(l), "--timeout", "100ms", "--host-root", n.path("/"))
			if code != exitCodes[l] {
				return fmt.Errorf("it is %d:\n%s", code, out)
			}
			return has(out, string(why.Reason), why.Action)
		}},
		{"the metric", func() error {
			p := n.pod(validator)
			if p == nil {
				return fmt.Errorf("there is no %s", validator)
			}
			const port = 9404
			path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", p.Namespace, p.Name, port)
			text, err := n.World.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
			if err != nil {
				return err
			}
			return has(string(text), fmt.Sprintf("gpuready_layer_not_ready_reason{layer=%q,reason=%q} 1", l, why.Reason))
		}},
		{"an Event of the Node", func() error {
			for _, e := range n.World.Events("Node", n.name) {
				if e.Reason == string(why.Reason) && e.Type == corev1.EventTypeWarning {
					return has(e.Message, string(l)+": ")
				}
			}
			return fmt.Errorf("no Warning has this reason")
		}},
	} {
		n.until(t, fmt.Sprintf("%s says %s", place.name, why.Reason), place.report)
	}
}

// exitCodes maps the layers to the exit codes of gpu-validator wait.
var exitCodes = map[readiness.Layer]int{readiness.Driver: 10, readiness.Toolkit: 11, readiness.CUDA: 12, readiness.Plugin: 13}

// run runs a program of ours against the cluster.
func (n *node) run(t *testing.T, name string, args ...string) (output string, exitCode int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+n.Kubeconfig)
	out, err := cmd.CombinedOutput()
	if failed, is := errors.AsType[*exec.ExitError](err); is {
		return string(out), failed.ExitCode()
	}
	require.NoError(t, err)
	return string(out), 0
}

// explained waits until gpu-validator explain reports that result, on the node and from outside the
// cluster.
func (n *node) explained(t *testing.T, result string) {
	t.Helper()
	for where, explain := range map[string]func() ([]byte, error){
		"on the node": func() ([]byte, error) {
			p := n.pod(validator)
			if p == nil {
				return nil, fmt.Errorf("there is no %s", validator)
			}
			return []byte(n.Kubectl(t, "-n", e2e.Namespace, "exec", p.Name, "-c", "validator", "--", "gpu-validator", "explain", "-o", "json")), nil
		},
		"from outside": func() ([]byte, error) {
			cmd := exec.CommandContext(t.Context(), program("gpu-validator"), "explain", "--node", n.name, "-o", "json")
			cmd.Env = append(os.Environ(), "KUBECONFIG="+n.Kubeconfig)
			return cmd.Output()
		},
	} {
		n.until(t, "it is explained "+where, func() error {
			out, err := explain()
			if err != nil {
				return err
			}
			var explanation struct{ Result string }
			if err := json.Unmarshal(out, &explanation); err != nil {
				return err
			}
			if !strings.Contains(explanation.Result, result) {
				return fmt.Errorf("it is %q, to have %q", explanation.Result, result)
			}
			return nil
		})
	}
}

// startupTaintComesAndGoes has the validator manage its taint: a node gets it when it becomes unusable,
// and loses it when it is usable again.
func startupTaintComesAndGoes(t *testing.T, n *node) {
	n.until(t, "all is well", n.ready)
	n.environment(t, "STARTUP_TAINT_MANAGE=true", "STARTUP_TAINT_SETTLE=100ms")
	require.False(t, n.tainted())
	n.unregister(t)
	n.until(t, "the node is tainted", func() error {
		if !n.tainted() {
			return fmt.Errorf("its taints: %v", n.World.Node(n.name).Spec.Taints)
		}
		return nil
	})
	n.register(t)
	n.until(t, "the taint is gone and all is well", func() error {
		if n.tainted() {
			return fmt.Errorf("its taints: %v", n.World.Node(n.name).Spec.Taints)
		}
		return n.ready()
	})
	n.environment(t, "STARTUP_TAINT_MANAGE-", "STARTUP_TAINT_SETTLE-")
}

// environment changes the validator's environment, and waits until a new validator has proven all layers.
func (n *node) environment(t *testing.T, changes ...string) {
	t.Helper()
	was := n.pod(validator).UID
	n.Kubectl(t, append([]string{"-n", e2e.Namespace, "set", "env", "daemonset/" + validator, "--containers=validator"}, changes...)...)
	n.until(t, "a new validator has proven all", func() error {
		if p := n.pod(validator); p == nil || p.UID == was {
			return errors.New("the old one runs")
		}
		return n.ready()
	})
}

func (n *node) tainted() bool {
	return slices.ContainsFunc(n.World.Node(n.name).Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == startupTaint && t.Effect == corev1.TaintEffectNoSchedule
	})
}

// refusedByPreflight checks that a preflight of the node's GPUs ends with that code and has the words of the
// reason and the next action.
func (n *node) refusedByPreflight(t *testing.T, code int, words ...string) {
	t.Helper()
	output := n.RequireRefused(t, "-n", e2e.Namespace, "exec", n.pod(validator).Name, "-c", "validator", "--", "gpu-validator", "preflight", "--results-dir=")
	for _, w := range append(words, fmt.Sprintf("exit code %d", code)) {
		assert.Contains(t, output, w)
	}
}
