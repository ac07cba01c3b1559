package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// standIn runs the validator by the reference's name, configured by environment only.
func (r *rig) standIn(env ...string) (exit int, said string) {
	r.t.Helper()
	link := filepath.Join(r.t.TempDir(), "nvidia-validator")
	require.NoError(r.t, os.Symlink(built.Path(r.t, "gpu-validator"), link))
	ctx, cancel := context.WithTimeout(r.t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, link)
	cmd.Env = append(r.env(), append([]string{"HOST_ROOT=" + r.root, "OUTPUT_DIR=" + r.path(readiness.DefaultDir), "ALLOW_SIMULATED=true"}, env...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, ctx.Err(), "it hangs; it printed:\n%s", out)
	if err != nil {
		require.IsType(r.t, &exec.ExitError{}, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (r *rig) proof(name string) string { return filepath.Join(r.path(readiness.DefaultDir), name) }

func TestItStandsInForTheReference(t *testing.T) {
	r := newRig(t)
	r.driver(2)
	require.NoError(t, os.MkdirAll(r.path(readiness.DefaultDir), 0o755))
	for _, left := range []string{"cuda-ready", "nvidia-fs-ready", "theirs"} {
		require.NoError(t, os.WriteFile(r.proof(left), nil, 0o644))
	}
	exit, said := r.standIn("COMPONENT=driver", "CLEANUP_ALL=true", "SLEEP_INTERVAL_SECONDS=7", "MIG_STRATEGY=mixed", "DISABLE_DEV_CHAR_SYMLINK_CREATION=true")
	require.Zero(t, exit, said)
	require.NoFileExists(t, r.proof("cuda-ready"))
	require.NoFileExists(t, r.proof("nvidia-fs-ready"))
	require.FileExists(t, r.proof("theirs"), "it was not ours")
	data, err := os.ReadFile(r.proof("driver-ready"))
	require.NoError(t, err)
	for _, key := range []string{"IS_HOST_DRIVER=false", "NVIDIA_DRIVER_ROOT=", "DRIVER_ROOT_CTR_PATH=", "NVIDIA_DEV_ROOT=", "DEV_ROOT_CTR_PATH="} {
		require.Contains(t, string(data), "\n"+key)
	}

	exit, said = r.standIn("COMPONENT=toolkit")
	require.Equal(t, 11, exit, said)
	require.Contains(t, said, "toolkit: ToolkitSilent: ")
	require.FileExists(t, r.proof("toolkit-notready"))
	r.toolkit(r.gpus()...)
	exit, said = r.standIn("COMPONENT=toolkit")
	require.Zero(t, exit, said)
	require.FileExists(t, r.proof("toolkit-ready"))
	require.NoFileExists(t, r.proof("toolkit-notready"))

	exit, said = r.standIn("COMPONENT=cuda", "WITH_WORKLOAD=false")
	require.Zero(t, exit, said)
	require.Contains(t, said, "nothing was computed (WITH_WORKLOAD=false) (SIMULATED)")
	exit, said = r.standIn("COMPONENT=cuda")
	require.Zero(t, exit, said)
	require.FileExists(t, r.proof("cuda-proof.json"), "kept for the next process")
	require.FileExists(t, r.proof("cuda-ready"))

	r.kubelet(2)
	exit, said = r.standIn("COMPONENT=plugin", "WITH_WORKLOAD=false")
	require.Zero(t, exit, said)

	exit, said = r.standIn("COMPONENT=nvidia-fs")
	require.Equal(t, 31, exit, said)
	require.FileExists(t, r.proof("nvidia-fs-notready"))
}

func TestTheStandInWaitsWithoutSleeping(t *testing.T) {
	r := newRig(t)
	r.driver(1)
	link := filepath.Join(t.TempDir(), "nvidia-validator")
	require.NoError(t, os.Symlink(built.Path(t, "gpu-validator"), link))
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, link, "-c", "toolkit", "-w", "-o", r.path(readiness.DefaultDir), "--host-root", r.root, "--allow-simulated")
	cmd.Env = r.env()
	var said strings.Builder
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	r.until(readiness.Toolkit, refused("ToolkitSilent"))
	r.toolkit(r.gpus()...)
	require.NoError(t, cmd.Wait(), said.String())
	require.Equal(t, 1, strings.Count(said.String(), "waiting for toolkit: ToolkitSilent"), said.String())
	require.Contains(t, said.String(), "toolkit is ready")

	exit, out := r.standIn("COMPONENT=nvidia-fs", "WITH_WAIT=true", "TIMEOUT=1s")
	require.Equal(t, 31, exit, out)
	require.Contains(t, out, "1s are over")
}

func TestTheStandInRunsThePod(t *testing.T) {
	r := newRig(t)
	r.driver(1)
	gpus := r.gpus()
	r.toolkit(gpus...)
	r.kubelet(1)
	server := kubetest.Start("n1")
	t.Cleanup(server.Stop)
	config := filepath.Join(t.TempDir(), "config")
	require.NoError(t, os.WriteFile(config, []byte(strings.ReplaceAll(`apiVersion: v1
kind: Config
current-context: c
contexts: [{ name: c, context: { cluster: c, user: u } }]
clusters: [{ name: c, cluster: { server: "URL" } }]
users: [{ name: u, user: {} }]
`, "URL", server.URL())), 0o600))
	server.OnPod(func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Message: `{"passed":true,"simulated":true,"uuid":"` + string(gpus[0].UUID) + `"}`,
		}}}}
		if p.Spec.Containers[0].Image != "our/validator" || p.Spec.Containers[0].ImagePullPolicy != "Always" || *p.Spec.RuntimeClassName != "nvidia" ||
			len(p.Spec.ImagePullSecrets) != 2 || p.Namespace != "gpu-operator" {
			p.Status.Phase = corev1.PodFailed
		}
	})
	exit, said := r.standIn("COMPONENT=plugin", "NODE_NAME=n1", "OPERATOR_NAMESPACE=gpu-operator", "VALIDATOR_IMAGE=our/validator", "KUBECONFIG="+config,
		"VALIDATOR_IMAGE_PULL_POLICY=Always", "VALIDATOR_IMAGE_PULL_SECRETS=a,b", "VALIDATOR_RUNTIME_CLASS=nvidia")
	require.Zero(t, exit, said)
	require.Contains(t, said, "vectorAdd passed in a pod")
	require.Empty(t, server.Pods(), "it is cleaned up")
}

func TestTheStandInRefusesInvalidSettings(t *testing.T) {
	r := newRig(t)
	for want, env := range map[string][]string{
		`unknown component "drivers", did you mean "driver"?`: {"COMPONENT=drivers"},
		`unknown component ""`:                                {},
		"cc-manager is not proven here":                       {"COMPONENT=cc-manager"},
		"nothing is written that was not proven":              {"COMPONENT=cuda", "SKIP_VALIDATION=true"},
		"not asked for its GPUs":                              {"COMPONENT=driver", "DRIVER_VALIDATION_SKIP_GPU_INIT=true"},
		"the component metrics needs --metrics-port":          {"COMPONENT=metrics"},
		"the component plugin runs a pod":                     {"COMPONENT=plugin"},
		"environment variable WITH_WAIT":                      {"COMPONENT=driver", "WITH_WAIT=perhaps"},
		"--workload-image-pull-policy \"Sometimes\"":          {"COMPONENT=driver", "VALIDATOR_IMAGE_PULL_POLICY=Sometimes"},
		"OUTPUT_DIR": {"COMPONENT=driver", "OUTPUT_DIR=here"},
	} {
		exit, said := r.standIn(env...)
		if strings.HasPrefix(want, "OUTPUT") {
			want = `--output-dir "here": want an absolute path`
		}
		require.Equal(t, 2, exit, said)
		require.Contains(t, said, want)
	}
}
