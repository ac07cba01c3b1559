package skew

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/test/e2e"
)

// TestClaims serves the node's GPUs by claims, and changes the release of the DRA driver alone, of the
// others, and of all, and back. A pod with a claim computes all the while; claims that one release has
// prepared end under the other.
func TestClaims(t *testing.T) {
	s := up(t)
	s.images[draDriverSet] = "dra-driver"
	s.applyPrevious(t, "gpuready.yaml", "dra-driver.yaml", "simulated-driver.yaml")
	s.Kubectl(t, "-n", e2e.Namespace, "set", "env", "daemonset/"+pluginSet, "GPU_SERVE=dra")
	s.settled(t, e2e.Namespace, s.chosen(nil), 0)
	s.WaitPublished(t, node, 8)
	busy := `["vectoradd", "--for", "1h", "--every", "1s", "--elements", "1000"]`
	s.claim(t, "stays", busy)
	s.waitRunning(t, "stays")
	held := s.Kubectl(t, "exec", "stays", "--", "nvidia-smi", "-L")

	for i, r := range []releases{
		{"dra-driver"}, {"driver-simulator", "toolkit", "device-plugin", "validator"},
		slices.Sorted(maps.Values(s.images)), {},
	} {
		if !t.Run(r.String(), func(t *testing.T) {
			crosses := fmt.Sprintf("crosses-%d", i)
			s.claim(t, crosses, busy)
			s.waitRunning(t, crosses)
			s.choose(t, r)
			s.settled(t, e2e.Namespace, s.chosen(r), 0)
			s.WaitPublished(t, node, 8)
			s.waitRunning(t, "stays")
			require.Zero(t, s.World.Pod("default", "stays").Status.ContainerStatuses[0].RestartCount)
			require.Equal(t, held, s.Kubectl(t, "exec", "stays", "--", "nvidia-smi", "-L"))
			require.NotEqual(t, held, s.Kubectl(t, "exec", crosses, "--", "nvidia-smi", "-L"))
			s.Kubectl(t, "delete", "pod/"+crosses, "resourceclaim/"+crosses, "--timeout=60s")
			// The others' GPUs are free, those of the pod that has just ended too.
			for n := range 7 {
				s.claim(t, fmt.Sprintf("after-%d-%d", i, n), busy)
			}
			seen := map[string]bool{held: true}
			for n := range 7 {
				name := fmt.Sprintf("after-%d-%d", i, n)
				s.waitRunning(t, name)
				seen[s.Kubectl(t, "exec", name, "--", "nvidia-smi", "-L")] = true
			}
			require.Len(t, seen, 8, "each pod has a GPU of its own")
			s.Kubectl(t, "delete", "pods,resourceclaims", "-l", "test=after", "--timeout=60s")
		}) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}
}

// TestMPS shares each GPU by MPS, and changes the release of the MPS daemon and of the device plugin
// alone and together, and back. Clients end with the MPS daemon, so none runs during a change.
func TestMPS(t *testing.T) {
	s := up(t)
	s.images[mpsSet] = "device-plugin"
	s.applyPrevious(t, "gpuready.yaml", "simulated-driver.yaml")
	const text = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
	s.WriteConfigMap(t, map[string]string{"config.yaml": text})
	s.applyPrevious(t, "mps.yaml")
	s.ConfigurePlugin(t, text)
	s.settled(t, e2e.Namespace, s.chosen(nil), 16)
	for i, r := range []releases{{mpsSet}, {pluginSet}, {"device-plugin"}, slices.Compact(slices.Sorted(maps.Values(s.images))), {}} {
		if !t.Run(r.String(), func(t *testing.T) {
			s.choose(t, r)
			s.settled(t, e2e.Namespace, s.chosen(r), 16)
			client := fmt.Sprintf("client-%d", i)
			s.Run(t, e2e.Job{Name: client, Node: node, GPUs: 1, Command: []string{"vectoradd", "--for", "1h", "--every", "1s", "--elements", "1000"}})
			s.waitRunning(t, client)
			response := s.Shell(t, t.TempDir(), "echo get_default_active_thread_percentage | kubectl exec -i "+client+" -- nvidia-cuda-mps-control")
			require.Equal(t, "50.0", strings.TrimSpace(response))
			s.Kubectl(t, "delete", "pod", client, "--timeout=60s")
			s.RequireFree(t, node, 1)
		}) {
			s.LogDiagnostics(t)
			t.FailNow()
		}
	}
}

// claim starts a pod with a claim of one GPU; both have its name, and the label test with its first word.
func (s *suite) claim(t *testing.T, name, command string) {
	t.Helper()
	group, _, _ := strings.Cut(name, "-")
	s.ApplyText(t, fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: { name: %[1]s, labels: { test: %[2]s } }
spec: { devices: { requests: [ { name: gpu, exactly: { deviceClassName: gpu.nvidia.com } } ] } }
---
apiVersion: v1
kind: Pod
metadata: { name: %[1]s, labels: { test: %[2]s } }
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 1
  resourceClaims: [ { name: gpu, resourceClaimName: %[1]s } ]
  containers:
    - { name: main, image: %[3]s, imagePullPolicy: IfNotPresent, command: %[4]s, resources: { claims: [ { name: gpu } ] } }
`, name, group, s.Image("cuda-samples"), command))
}

func (s *suite) waitRunning(t *testing.T, pod string) {
	t.Helper()
	s.World.Until(t, pod+" runs", func() error {
		p := s.World.Pod("default", pod)
		if p == nil || p.Status.Phase != corev1.PodRunning || !p.Status.ContainerStatuses[0].Ready {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}
