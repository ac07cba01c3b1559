package main_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/test/lab/built"
	"github.com/gpuready/gpuready/validator/kube/kubetest"
)

// The variables are those of NVIDIA's validator, and the operator's for one proof.
func TestTheDaemonRunsNoWorkloadThatIsNotWanted(t *testing.T) {
	for _, c := range []struct {
		name         string
		env          []string
		cuda, plugin string // parts of the proofs' summaries
		message      string // of the condition
	}{
		{"none", []string{"WITH_WORKLOAD=false"}, "nothing was computed (WITH_WORKLOAD=false)", "2 allocatable, 0 allocated; no pod was run (WITH_WORKLOAD=false)", "proven without computing anything (WITH_WORKLOAD=false)"},
		{"no pod", []string{"PLUGIN_WITH_WORKLOAD=false"}, "vectorAdd on 2 of 2 GPUs", "no pod was run (WITH_WORKLOAD=false)", "proven without a pod that requests a GPU (WITH_WORKLOAD=false)"},
		{"the variable for one layer counts more", []string{"WITH_WORKLOAD=false", "CUDA_WITH_WORKLOAD=true"}, "vectorAdd on 2 of 2 GPUs", "no pod was run", "proven without a pod"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			server := kubetest.Start("n1")
			t.Cleanup(func() { server.Stop() })
			server.Token("secret")
			server.Node("n1", nil)
			account := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(account, "token"), []byte("secret"), 0o600))
			r.driver(2)
			r.toolkit(r.gpus()...)
			r.kubelet(2)
			daemon := built.Start(t, "gpu-validator", r.args("daemon", "--allow-simulated", "--listen=", "--node-name=n1", "--namespace=gpuready",
				"--workload-image=gpuready/validator", "--api-server="+server.URL(), "--service-account-dir="+account),
				append(r.env(), append(c.env, "WITH_WAIT=false", "DISABLE_DEV_CHAR_SYMLINK_CREATION=true", "OPERATOR_NAMESPACE=gpu-operator", "MIG_STRATEGY=")...)...)
			proofs := map[readiness.Layer]string{}
			for l := range map[readiness.Layer]string{readiness.CUDA: c.cuda, readiness.Plugin: c.plugin} {
				r.until(l, func(s readiness.Status) bool {
					if s.Proof != nil {
						proofs[l] = s.Proof.Summary
					}
					return s.Proof != nil
				})
			}
			require.Contains(t, proofs[readiness.CUDA], c.cuda)
			require.Contains(t, proofs[readiness.Plugin], c.plugin)
			require.NoError(t, server.Wait(ctx, func() bool {
				condition := server.Condition("n1", "GPUReady")
				return condition != nil && condition.Reason == "Ready"
			}), daemon.Output())
			require.Contains(t, server.Condition("n1", "GPUReady").Message, c.message)
			require.Empty(t, server.Pods())

			boot, err := nodestate.BootIDAt(r.root)
			require.NoError(t, err)
			s, err := nodestate.ReadBoot(r.path("/run/nvidia/gpuready/validator"), boot)
			require.NoError(t, err)
			require.Contains(t, s.Message, c.message)
			var names []string
			for _, u := range s.Unserved {
				names = append(names, u.Name)
				require.Contains(t, daemon.Output(), `setting="`+u.Name+`"`)
			}
			require.Equal(t, []string{"DISABLE_DEV_CHAR_SYMLINK_CREATION=true", "OPERATOR_NAMESPACE=gpu-operator", "WITH_WAIT=false"}, names)
			exit, out, said := r.run("explain", "--host-root", r.root)
			require.Zero(t, exit, said)
			require.Contains(t, out, "WITH_WAIT=false has no effect")
			require.Contains(t, out, "(WITH_WORKLOAD=false)")
		})
	}
}

func TestVariablesAskForOptionalLayers(t *testing.T) {
	r := newRig(t)
	r.driver(1)
	r.toolkit(r.gpus()...)
	for variable, exit := range map[string]int{"GDS_ENABLED": 31, "GDRCOPY_ENABLED": 32, "GPU_DIRECT_RDMA_ENABLED": 30} {
		code, _, said := r.runWith([]string{variable + "=true"}, r.args("run", "--layers=driver", "--allow-simulated")...)
		require.Equal(t, exit, code, said)
		code, _, said = r.runWith([]string{variable + "=false"}, r.args("run", "--layers=driver", "--allow-simulated")...)
		require.Zero(t, code, said)
	}
}
