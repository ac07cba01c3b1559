package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/toolkit/audit"
)

// squeeze replaces runs of spaces with one.
func squeeze(s string) string {
	var lines []string
	for line := range strings.Lines(s) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestWriteStatus(t *testing.T) {
	off := false
	s := hostStatus{
		Toolkit: &nodestate.State{
			Phase: nodestate.Degraded, Reason: "CDIDisabled", Message: "set enable_cdi = true",
			Driver: &nodestate.DriverInfo{Root: "/run/nvidia/driver", Version: "580.95.05"},
			Toolkit: &nodestate.ToolkitInfo{
				Specs:     []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/a.yaml", Devices: []string{"GPU-1", "GPU-2"}}},
				Injection: &nodestate.Injection{Message: "there is no NRI"},
			},
		},
		Runtime: &runtimeStatus{
			Runtime: nodestate.Runtime{Name: "containerd", Version: "1.7.24", Socket: "/run/containerd/containerd.sock", CDI: &off, Handlers: []string{"nvidia", "runc"}},
			Default: "runc", Profile: "k3s", Why: "it listens at k3s's socket", Config: "/etc/containerd/config.toml", Writer: "k3s writes it anew",
		},
		Files:      []fileStatus{{Path: "/etc/containerd/config.toml", What: "file", Owner: "gpuready", Original: true}},
		Unfinished: "since noon",
	}
	var b strings.Builder
	require.NoError(t, writeStatus(&b, s))
	require.Equal(t, `toolkit Degraded CDIDisabled
set enable_cdi = true
driver 580.95.05 below /run/nvidia/driver
CDI k8s.gpuready.io/gpu: 2 devices in /var/run/cdi/a.yaml
agents are not given the GPUs: there is no NRI
runtime containerd 1.7.24 at /run/containerd/containerd.sock
CDI names off
handlers nvidia, runc
default runc
arranged as k3s, it listens at k3s's socket
configuration /etc/containerd/config.toml
k3s writes it anew
unfinished since noon

PATH WHAT OWNER ORIGINAL KEPT
/etc/containerd/config.toml file gpuready yes`, squeeze(b.String()))
}

func TestStatusOfAnEmptyHost(t *testing.T) {
	var b strings.Builder
	require.NoError(t, writeStatus(&b, hostStatus{}))
	require.Equal(t, "toolkit has left no state in this boot\nruntime none is found\n\nnothing is installed", squeeze(b.String()))
}

func TestCDIDescription(t *testing.T) {
	on := true
	require.Equal(t, "it does not say", describeCDI(nodestate.Runtime{}))
	require.Equal(t, "on", describeCDI(nodestate.Runtime{CDI: &on}))
	require.Equal(t, "on, from /etc/cdi, /var/run/cdi", describeCDI(nodestate.Runtime{CDI: &on, CDIDirs: []string{"/etc/cdi", "/var/run/cdi"}}))
}

func TestWriteChecks(t *testing.T) {
	checks := []check{{Name: "driver", OK: true, Message: "580"}, {Name: "CDI", Message: "off"}}
	var b strings.Builder
	require.NoError(t, writeChecks(&b, checks))
	require.Equal(t, "CHECK OK WHAT\ndriver yes 580\nCDI no off", squeeze(b.String()))
	b.Reset()
	require.NoError(t, writeJSON(&b, checks))
	require.JSONEq(t, `[{"name":"driver","ok":true,"message":"580"},{"name":"CDI","ok":false,"message":"off"}]`, b.String())
}

func TestPrintFindings(t *testing.T) {
	findings := []audit.Finding{
		audit.Judge(audit.Container{Namespace: "ml", Pod: "train-0", Name: "main", ID: "1", Image: "cuda:12.5", Value: "all", FromImage: true, Handler: "nvidia", Default: true, Reads: true, Inspected: true, Devices: []string{"/dev/nvidia0"}}),
		audit.Judge(audit.Container{Namespace: "ml", Pod: "infer", Name: "main", ID: "2", Image: "triton", CDI: []string{"nvidia.com/gpu=0"}, Handler: "runc"}),
	}
	var table bytes.Buffer
	require.NoError(t, writeFindings(&table, findings))
	require.Equal(t, `VERDICT  CONTAINER        IMAGE      NVIDIA_VISIBLE_DEVICES  PRIVILEGED  HANDLER           GPU NODES
loses    ml/train-0/main  cuda:12.5  all (image)             no          nvidia (default)  /dev/nvidia0
keeps    ml/infer/main    triton     -                       no          runc              not known

ml/train-0/main: only its image requests GPUs, by NVIDIA_VISIBLE_DEVICES=all and is not privileged; nothing else gives it GPUs.
  if it needs a GPU, request nvidia.com/gpu in the container's limits; or turn accept-nvidia-visible-devices-envvar-when-unprivileged on for all.

1 of 2 would lose their GPUs at their next start without accept-nvidia-visible-devices-envvar-when-unprivileged.
`, table.String())
	table.Reset()
	require.NoError(t, writeFindings(&table, nil))
	require.Equal(t, "No running container asks for GPUs or has any.\n", table.String())
}

// The setting that NVIDIA documents for k3s and RKE2, where nothing allows a change of the
// runtime's configuration.
func TestBuiltToolkitAcceptsTheVariablesForK3s(t *testing.T) {
	cmd := exec.Command(built.Path(t, "gpu-toolkit"), "status", "--host-root", t.TempDir())
	cmd.Env = append(os.Environ(), "CONTAINERD_CONFIG=/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "CONTAINERD_SOCKET=/run/k3s/containerd/containerd.sock",
		"CONTAINERD_RUNTIME_CLASS=nvidia", "CONTAINERD_SET_AS_DEFAULT=false", "NVIDIA_RUNTIME_SET_AS_DEFAULT=true")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	for _, name := range []string{"CONTAINERD_RUNTIME_CLASS=nvidia", "CONTAINERD_SET_AS_DEFAULT=false", "NVIDIA_RUNTIME_SET_AS_DEFAULT=true"} {
		require.Equal(t, 1, strings.Count(string(out), `setting="`+name+`"`), string(out))
	}
}
