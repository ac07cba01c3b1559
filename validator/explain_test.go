package main_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

func TestExplainReadsTheNodesFiles(t *testing.T) {
	r := newRig(t)
	exit, out, said := r.run(r.args("explain")...)
	require.Zero(t, exit, said)
	require.Contains(t, out, "the validator's daemon has reported nothing since the node booted")

	require.NoError(t, readiness.WriteNotReady(r.path(readiness.DefaultDir), readiness.Driver,
		readiness.NotReady{Reason: "DriverNotLoaded", Message: "the module nvidia is not loaded", Action: "load it"}))
	exit, out, said = r.run(r.args("explain")...)
	require.Zero(t, exit, said)
	require.Contains(t, out, "broken at driver: DriverNotLoaded")
	require.NotContains(t, out, "\x1b[", "no colours but on a terminal")
	exit, out, _ = r.run(r.args("explain", "-o", "json")...)
	require.Zero(t, exit)
	require.Contains(t, out, `"result": "broken at driver: DriverNotLoaded"`)
}

func TestExplainReadsTheClusterByKubeconfig(t *testing.T) {
	r := newRig(t)
	server := kubetest.Start("n1")
	t.Cleanup(server.Stop)
	server.Node("n1", func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: "GPUReady", Status: "False", Reason: "NoGPU", Message: "no GPU"})
	})
	config := filepath.Join(t.TempDir(), "config")
	text := strings.ReplaceAll(`apiVersion: v1
kind: Config
current-context: away
contexts:
- { name: here, context: { cluster: c, user: u } }
- { name: away, context: { cluster: nobody, user: u } }
clusters:
- { name: c, cluster: { server: "URL" } }
- { name: nobody, cluster: { server: "http://127.0.0.1:1" } }
users:
- { name: u, user: {} }
`, "URL", server.URL())
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))

	exit, out, said := r.run("explain", "--node=n1", "--kubeconfig="+config, "--context=here")
	require.Zero(t, exit, said)
	require.Contains(t, out, "no GPU: no GPU")
	exit, _, said = r.run("explain", "--node=n2", "--kubeconfig="+config, "--context=here")
	require.Equal(t, 1, exit)
	require.Contains(t, said, "read Node n2")
	exit, _, said = r.run("explain", "--node=n1", "--kubeconfig="+config)
	require.Equal(t, 1, exit)
	require.Contains(t, said, "connection refused")
	exit, _, said = r.run("explain", "--node=n1", "--kubeconfig="+config, "--context=none")
	require.Equal(t, 2, exit, said)

	server.Fail(func(*http.Request) *kubetest.Fault { return &kubetest.Fault{Hang: true} })
	exit, _, said = r.run("explain", "--node=n1", "--kubeconfig="+config, "--context=here", "--timeout=200ms")
	require.Equal(t, 1, exit)
	require.Contains(t, said, "the cluster has not answered within 200ms")
}
