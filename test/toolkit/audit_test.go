package toolkit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/test/lab/node"
	"github.com/gpuready/gpuready/toolkit/audit"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// named are configurations in which a handler called nvidia is runc: the audit uses the name.
var named = map[node.Kind]func(config string) string{
	node.Containerd16: append2("io.containerd.grpc.v1.cri"),
	node.Containerd17: append2("io.containerd.grpc.v1.cri"),
	node.Containerd2:  append2("io.containerd.cri.v1.runtime"),
	node.Docker: func(config string) string {
		return strings.Replace(config, `"runtimes": {`, `"runtimes": {"nvidia": {"path": "/usr/local/bin/runc"},`, 1)
	},
}

func append2(plugin string) func(string) string {
	return func(config string) string {
		return config + "\n[plugins.\"" + plugin + "\".containerd.runtimes.nvidia]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	}
}

// audited returns the audit's finding about one container that runs meanwhile.
func audited(t *testing.T, h *node.Host, kind node.Kind, s node.Spec) audit.Finding {
	t.Helper()
	s.Args = []string{node.Probe, "wait"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := h.Run(ctx, s)
		ended <- err
	}()
	defer func() {
		cancel()
		require.Error(t, <-ended)
	}()
	root, err := host.Open(node.HostRoot)
	require.NoError(t, err)
	defer root.Close()
	at, options := "/run/containerd/containerd.sock", audit.Options{All: true, Timeout: time.Minute}
	if kind == node.Docker {
		at, options.Runtime = "/run/docker.sock", runtime.Docker
	}
	for {
		findings, err := audit.Run(ctx, root, at, options)
		require.NoError(t, err)
		if len(findings) > 0 {
			require.Len(t, findings, 1)
			return findings[0]
		}
		select {
		case err := <-ended:
			ended <- errors.Join(err, errors.New("ended"))
			require.NoError(t, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// requireAudit audits containers of a real runtime.
func requireAudit(t *testing.T, kind node.Kind, cdi bool) {
	if !enter(t) {
		return
	}
	config := byHand(t, kind)
	for path, data := range config {
		config[path] = []byte(named[kind](string(data)))
	}
	h := node.StartHost(t, node.HostOptions{Kind: kind, Config: config, GPUs: "h100-sxm"})
	gpuToolkit(t, "apply")
	const variable = "NVIDIA_VISIBLE_DEVICES=0"

	f := audited(t, h, kind, node.Spec{Env: []string{variable}})
	require.Equal(t, audit.Unaffected, f.Verdict, f.Reason)
	require.Equal(t, "0", f.Value)
	require.True(t, f.Default, f.Handler)
	require.True(t, f.Inspected, "the bundle and the mounts are seen")
	require.Empty(t, f.Devices)
	require.False(t, f.Privileged)
	require.False(t, f.FromImage)
	require.Contains(t, f.Image, "gpuready/test:1")

	f = audited(t, h, kind, node.Spec{Env: []string{variable}, Handler: "nvidia"})
	require.Equal(t, "nvidia", f.Handler)
	require.Contains(t, f.Reason, "has none today", "runc by that name gives none")
	f.Inspected = false
	require.Equal(t, audit.Loses, audit.Judge(f.Container).Verdict)

	if cdi {
		f = audited(t, h, kind, node.Spec{CDI: []string{"nvidia.com/gpu=1"}})
		require.Equal(t, audit.Keeps, f.Verdict, f.Reason)
		require.Equal(t, []string{"/dev/nvidia1"}, f.Devices)
	}
}

func TestAnAuditOfContainerd16(t *testing.T) { requireAudit(t, node.Containerd16, false) }
func TestAnAuditOfContainerd17(t *testing.T) { requireAudit(t, node.Containerd17, true) }
func TestAnAuditOfContainerd2(t *testing.T)  { requireAudit(t, node.Containerd2, true) }
func TestAnAuditOfDocker(t *testing.T)       { requireAudit(t, node.Docker, true) }
