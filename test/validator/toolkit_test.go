package validator

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/e2e"
)

const spec = "/run/cdi/k8s.gpuready.io-gpu.yaml"

func toolkitSituations() []situation {
	const (
		foreign    = "/run/cdi/somebody.yaml"
		containerd = "/etc/containerd/config.toml"
		state      = "/run/nvidia/gpuready/toolkit/" + nodestate.FileName
	)
	var config string
	return []situation{
		{
			name: "the CDI specification is gone, and the toolkit hangs", layer: readiness.Toolkit, reason: "CDISpecMissing",
			words:   []string{spec, "gpu-toolkit"},
			prepare: func(t *testing.T, n *node) { n.signal(t, "STOP", "gpu-toolkit") },
			breaks:  func(t *testing.T, n *node) { n.remove(t, spec) },
			mends:   func(t *testing.T, n *node) { n.signal(t, "CONT", "gpu-toolkit") },
		},
		{
			name: "somebody else's CDI specification claims our names", layer: readiness.Toolkit, reason: "CDINameConflict",
			words:  []string{"somebody.yaml", "remove "},
			breaks: func(t *testing.T, n *node) { n.write(t, foreign, n.read(t, spec)) },
			mends:  func(t *testing.T, n *node) { n.remove(t, foreign) },
		},
		{
			name: "the runtime does not read CDI specifications", layer: readiness.Toolkit, reason: "RuntimeWithoutCDI",
			words: []string{"cdi_spec_dirs = "},
			prepare: func(t *testing.T, n *node) {
				config = n.read(t, containerd)
				changed := strings.ReplaceAll(config, "cdi_spec_dirs = [", "cdi_spec_dirs = ['/nowhere'] # [")
				require.NotEqual(t, config, changed)
				n.write(t, containerd, changed)
			},
			breaks: func(t *testing.T, n *node) { n.RestartContainerd(t, n.name) },
			mends: func(t *testing.T, n *node) {
				n.write(t, containerd, config)
				n.RestartContainerd(t, n.name)
			},
		},
		{
			name: "what the toolkit left is of an earlier boot", layer: readiness.Toolkit, reason: "ToolkitSilent",
			words: []string{"since the node booted", toolkit},
			prepare: func(t *testing.T, n *node) {
				n.label(t, toolkitLabel, "false")
				n.gone(t, toolkit)
			},
			breaks: func(t *testing.T, n *node) { n.write(t, state, n.ofAnEarlierBoot(t, state)) },
			mends:  func(t *testing.T, n *node) { n.label(t, toolkitLabel, "") },
		},
	}
}

// handlerSituation changes how the toolkit is installed, permanently.
func handlerSituation() situation {
	const patch = `[
		{"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "runtime", "hostPath": {"path": "/etc/containerd"}}},
		{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "runtime", "mountPath": "/host/etc/containerd"}},
		{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": {"name": "RUNTIME_RESTART_MODE", "value": "none"}},
		{"op": "add", "path": "/spec/template/spec/containers/0/env/-", "value": {"name": "NVIDIA_RUNTIME_NAME", "value": "nvidia"}}
	]`
	return situation{
		name: "the handler nvidia is wanted, and the runtime was not restarted", layer: readiness.Toolkit, reason: "HandlerMissing",
		words: []string{`no handler "nvidia"`, "restart the runtime"},
		breaks: func(t *testing.T, n *node) {
			n.Kubectl(t, "-n", e2e.Namespace, "patch", "daemonset", toolkit, "--type=json", "-p", patch)
		},
		mends: func(t *testing.T, n *node) { n.RestartContainerd(t, n.name) },
	}
}

// ofAnEarlierBoot returns a file's content as if it had been written in another boot.
func (n *node) ofAnEarlierBoot(t *testing.T, path string) string {
	t.Helper()
	now := n.read(t, path)
	earlier := strings.ReplaceAll(now, n.Node(n.name).BootID(), "11111111-2222-4333-8444-555555555555")
	require.NotEqual(t, now, earlier)
	return earlier
}
