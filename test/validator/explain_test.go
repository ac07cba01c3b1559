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

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
)

// startupTaint is the key of the taint that the validator manages.
const startupTaint = "nvidia.com/gpu-not-ready"

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
