package state

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/progress"
)

func TestDRADriverIsRenderedWhereItCanRun(t *testing.T) {
	const all = "DeviceClass/gpu.nvidia.com DeviceClass/mig.nvidia.com DaemonSet/gpu-dra-driver"
	for _, c := range []struct {
		name, policy string
		change       func(*Input)
		objects      string
		problem      string // the beginning of its message
		unserved     string
	}{
		{"off by default", `{}`, nil, "", "", ""},
		{"enabled", `{draDriver: {enabled: true}}`, nil, all, "", ""},
		{"an older cluster", `{draDriver: {enabled: true}}`, func(in *Input) { in.Cluster.DRA = false }, "", "draDriver: the API server does not serve resource.k8s.io/v1", ""},
		{"without the device plugin", `{draDriver: {enabled: true}, devicePlugin: {enabled: false}}`, nil, all, "draDriver: the device plugin finds the GPUs for it", ""},
		{"without CDI", `{draDriver: {enabled: true}, cdi: {enabled: false}}`, nil, all, "draDriver: claims give containers their GPUs by CDI", ""},
		{"another owner's class", `{draDriver: {enabled: true}}`, func(in *Input) { in.DeviceClasses = []string{"gpu.nvidia.com"} }, "DeviceClass/mig.nvidia.com DaemonSet/gpu-dra-driver", "", "DeviceClass gpu.nvidia.com is not the operator's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Input{Policy: policy(t, c.policy), Cluster: cluster, Injections: []fleet.Injection{fleet.NRI}}
			in.Cluster.DRA = true
			if c.change != nil {
				c.change(&in)
			}
			objects, problems, err := Render(in)
			require.NoError(t, err)
			var names []string
			for _, o := range objects {
				if o.State == progress.DRADriver {
					if _, is := o.Object.(*resourcev1.DeviceClass); is {
						require.Contains(t, deployments.DeviceClassNames(), o.Object.GetName())
					}
					names = append(names, o.Object.GetObjectKind().GroupVersionKind().Kind+"/"+o.Object.GetName())
				}
			}
			require.ElementsMatch(t, strings.Fields(c.objects), names)
			var problem, unserved string
			for _, p := range problems {
				switch {
				case p.State == progress.DRADriver:
					problem = p.Message
				case strings.HasPrefix(p.Message, "DeviceClass"):
					unserved = p.Message
				}
			}
			require.True(t, strings.HasPrefix(problem, c.problem) && (problem == "") == (c.problem == ""), problem)
			require.True(t, strings.HasPrefix(unserved, c.unserved) && (unserved == "") == (c.unserved == ""), unserved)
		})
	}
}

func TestDRADriverFollowsTheKubeletsDirectory(t *testing.T) {
	in := Input{Policy: policy(t, `{draDriver: {enabled: true}, hostPaths: {kubeletRootDir: /data/kubelet}}`), Cluster: cluster, Injections: []fleet.Injection{fleet.NRI}}
	in.Cluster.DRA = true
	objects, _, err := Render(in)
	require.NoError(t, err)
	for _, o := range objects {
		if d, is := o.Object.(*appsv1.DaemonSet); is && o.State == progress.DRADriver {
			c := d.Spec.Template.Spec.Containers[0]
			require.Contains(t, c.Env, corev1.EnvVar{Name: "KUBELET_DIR", Value: "/data/kubelet"})
			require.Contains(t, c.Env, corev1.EnvVar{Name: "POD_RESOURCES_SOCKET", Value: "/data/kubelet/pod-resources/kubelet.sock"})
			for _, dir := range []string{"/data/kubelet/plugins/gpu.nvidia.com", "/data/kubelet/plugins_registry", "/data/kubelet/pod-resources"} {
				require.True(t, hasMount(&c, dir), dir)
			}
			return
		}
	}
	require.Fail(t, "there is no DRA driver")
}

func TestOneDRADriverServesEveryInjection(t *testing.T) {
	in := Input{Policy: policy(t, `{draDriver: {enabled: true}}`), Cluster: cluster, Injections: []fleet.Injection{fleet.NRI, fleet.CDI}}
	in.Cluster.DRA = true
	objects, _, err := Render(in)
	require.NoError(t, err)
	seen := 0
	for _, o := range objects {
		if d, is := o.Object.(*appsv1.DaemonSet); is && o.State == progress.DRADriver {
			seen++
			require.Equal(t, "gpu-dra-driver", d.Spec.Template.Spec.ServiceAccountName)
			require.Equal(t, map[string]string{"kubernetes.io/os": "linux", "nvidia.com/gpu.deploy.dra-driver": "true"}, d.Spec.Template.Spec.NodeSelector)
		}
	}
	require.Equal(t, 1, seen, "one DaemonSet for every way of injection: the driver has no device")
}
