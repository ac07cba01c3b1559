package state

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/gpuready/gpuready/operator/label"
)

// An NVIDIADriver that describes the policy's driver takes it over: its pods have the same digest.
func TestDriverOfAnNVIDIADriverHasThePolicysDigest(t *testing.T) {
	digests := map[string]string{}
	for _, name := range []string{"container", "nvidia-drivers"} {
		objects, _, err := Render(cases(t)[name])
		require.NoError(t, err)
		for _, o := range objects {
			if d, is := o.Object.(*appsv1.DaemonSet); is && d.Labels["app"] == label.DriverApp {
				digests[d.Name] = d.Spec.Template.Labels[label.DriverDigest]
			}
		}
	}
	const own = "nvidia-driver-daemonset-ubuntu22.04"
	require.Len(t, digests, 3)
	require.NotEmpty(t, digests[own])
	require.Equal(t, digests[own], digests[own+"-gold"])
	require.NotEqual(t, digests[own], digests[own+"-silver"])
}

func TestProblemsNameTheNVIDIADriversFields(t *testing.T) {
	_, problems, err := Render(cases(t)["nvidia-drivers"])
	require.NoError(t, err)
	require.Len(t, problems, 1)
	require.Equal(t, "silver", problems[0].NVIDIADriver)
	require.Equal(t, `NVIDIADriver silver: spec.env: "a=b" is not valid in Kubernetes, and is left out`, problems[0].Message)
}
