package workload

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/validator/check"
)

// TestPods compares the pods with testdata. The tests of the admission policies read these
// files, too: each field of a pod has to be named in
// deployments/helm/gpuready/templates/agents/policy.yaml.
func TestPods(t *testing.T) {
	for _, role := range []Role{DevicePlugin, Driver} {
		c := Config{
			Node: "n1", BootID: "00000000-0000-4000-8000-000000000000", Namespace: "gpuready", Image: "gpuready/validator:v1.2.3",
			Timeout: 2 * time.Minute, OwnerName: "v", OwnerUID: "u", role: role,
		}
		made, err := yaml.Marshal(c.buildPod(job{resource: offered, driver: check.Driver{GPUs: gputest.Node("t4", 2).Devices}}))
		require.NoError(t, err)
		golden.Require(t, "testdata/"+string(role)+".yaml", made)
	}
}
