package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/program"
)

func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = runCommand(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

func TestUsageErrorsNameTheCorrection(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"walk", "unknown command \"walk\" (known here: run, render, check, cleanup"},
		{"run --log-format=xml --namespace=n", "want text or json"},
		{"run --log-level=loud --namespace=n", "want debug, info"},
		{"run", "$POD_NAMESPACE"},
		{"--leader-elect=false", "$POD_NAMESPACE"},
		{"run --nowhere", "see gpu-operator run --help"},
		{"run now", "takes no arguments"},
		{"run --namespace=n --kubeconfig=/nowhere", "--kubeconfig /nowhere"},
		{"cleanup", "--operand-namespace"},
		{"render", "--policy"},
		{"render --policy=/nowhere", "--policy"},
	} {
		t.Run(c.args, func(t *testing.T) {
			for _, name := range []string{"POD_NAMESPACE", "OPERAND_NAMESPACE", "KUBECONFIG"} {
				t.Setenv(name, "")
			}
			code, _, stderr := call(t, strings.Fields(c.args)...)
			require.Equal(t, program.Usage, code)
			require.Contains(t, stderr, c.says)
		})
	}
}

func TestHelpHasExitCodesAndVariables(t *testing.T) {
	for _, command := range []string{"run", "render", "cleanup"} {
		code, stdout, _ := call(t, command, "--help")
		require.Equal(t, program.OK, code)
		require.Contains(t, stdout, "Exit codes:")
		require.Contains(t, stdout, "[$OPERAND_NAMESPACE]")
		require.Contains(t, stdout, "Examples:\n  ")
	}
	_, stdout, _ := call(t, "version")
	require.Contains(t, stdout, "gpu-operator ")
}

func TestRenderWorksWithoutACluster(t *testing.T) {
	dir := t.TempDir()
	policy, nodes := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "nodes.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {driver: {repository: r.example, image: driver, version: '535'}}\n"), 0o600))
	require.NoError(t, os.WriteFile(nodes, []byte(`apiVersion: v1
kind: List
items:
- {kind: Node, metadata: {name: a, labels: {feature.node.kubernetes.io/pci-10de.present: "true", feature.node.kubernetes.io/system-os_release.ID: rhel, feature.node.kubernetes.io/system-os_release.VERSION_ID: "8.10"}}}
`), 0o600))
	code, stdout, stderr := call(t, "render", "--policy", policy)
	require.Equal(t, program.OK, code, stderr)
	require.Contains(t, stdout, "name: nvidia-driver-daemonset-ubuntu22.04\n")
	code, stdout, stderr = call(t, "render", "--policy", policy, "--nodes", nodes)
	require.Equal(t, program.OK, code, stderr)
	require.Contains(t, stdout, "image: r.example/driver:535-rhel8.10\n")
	require.Contains(t, stderr, "r.example/driver:535-rhel8.10")
	require.Contains(t, stdout, "- nvidia-driver\n")
	code, stdout, stderr = call(t, "render", "--policy", policy, "--own-driver")
	require.Equal(t, program.OK, code, stderr)
	require.Contains(t, stdout, "- gpu-driver\n")
	require.NotContains(t, stdout, "- nvidia-driver\n")
	const drivers = "kind: ClusterPolicy\nmetadata: {name: p}\nspec: {driver: {useNvidiaDriverCRD: true}}\n---\napiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: gold}\nspec: "
	require.NoError(t, os.WriteFile(policy, []byte(drivers+"{version: '570'}\n"), 0o600))
	code, stdout, stderr = call(t, "render", "--policy", policy)
	require.Equal(t, program.OK, code, stderr)
	require.Contains(t, stdout, "image: nvcr.io/nvidia/driver:570-ubuntu22.04\n")
	require.NoError(t, os.WriteFile(policy, []byte(drivers+"{colour: red}\n"), 0o600))
	code, _, stderr = call(t, "render", "--policy", policy)
	require.Equal(t, program.Usage, code)
	require.Contains(t, stderr, "colour")
	require.NoError(t, os.WriteFile(policy, []byte("spec: {drivers: {}}\n"), 0o600))
	code, _, stderr = call(t, "render", "--policy", policy)
	require.Equal(t, program.Usage, code)
	require.Contains(t, stderr, "drivers")
}
