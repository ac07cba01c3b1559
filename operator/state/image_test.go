package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
)

func TestOperandsOfAReleaseHaveItsDigests(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	pinned := with(cluster, func(c *Cluster) {
		c.Pinned = map[string]v1.ImageSpec{"toolkit": {Repository: "registry.example.com/gpu", Image: "toolkit", Version: digest}}
	})
	for policyText, want := range map[string]string{
		`{}`: "registry.example.com/gpu/toolkit@" + digest,
		`{toolkit: {repository: mirror.example.com/gpu}}`:                       "mirror.example.com/gpu/toolkit@" + digest,
		`{toolkit: {image: my-agent}}`:                                          "registry.example.com/gpu/my-agent:" + cluster.ImageVersion,
		`{toolkit: {image: toolkit}}`:                                           "registry.example.com/gpu/toolkit@" + digest,
		`{toolkit: {image: toolkit, version: v9.0.0}}`:                          "registry.example.com/gpu/toolkit:v9.0.0",
		`{toolkit: {repository: r.example.com/a, image: b, version: v1}}`:       "r.example.com/a/b:v1",
		`{toolkit: {repository: nvcr.io/nvidia/k8s, image: container-toolkit}}`: "registry.example.com/gpu/toolkit@" + digest,
	} {
		objects, _, err := Render(Input{Policy: policy(t, policyText), Cluster: pinned, Drivers: []driver.Choice{{}}, Injections: []fleet.Injection{fleet.NRI}})
		require.NoError(t, err)
		images := map[string]string{}
		for _, o := range objects {
			if set, is := o.Object.(*appsv1.DaemonSet); is {
				for _, c := range set.Spec.Template.Spec.Containers {
					images[set.Name] = c.Image
				}
			}
		}
		require.Equal(t, want, images["nvidia-container-toolkit-daemonset"], policyText)
		require.Equal(t, "gpuready/device-plugin:"+cluster.ImageVersion, images["nvidia-device-plugin-daemonset"], "it is not pinned")
	}
}
