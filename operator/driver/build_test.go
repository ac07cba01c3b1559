package driver

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/test/lab/golden"
)

func buildSpec() BuildSpec {
	yes := true
	p := &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "gpu-cluster-policy", UID: "12345678-1234-1234-1234-123456789012"}}
	p.Spec.Driver.ImagePullSecrets = []string{"pull"}
	p.Spec.Driver.Env = []v1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://proxy:3128"}, {Name: "NVFM_CONFIG_LOG_LEVEL", Value: "5"}}
	p.Spec.Driver.Prebuild = &v1.PrebuildSpec{Repository: "registry.example:5000/gpu/driver", Secret: "push", Insecure: &yes}
	p.Spec.Driver.ModuleSigning = &v1.ModuleSigningSpec{Secret: "machine-owner-key"}
	return BuildSpec{
		Policy: p, Namespace: "nvidia-gpu-operator", Image: "registry.example:5000/gpu/driver:580.95.05-rhcos4.18", Toolkit: "quay.io/openshift/driver-toolkit@sha256:1",
		Version: "580.95.05", Kernel: "5.14.0-427.50.1.el9_4.x86_64", OSTag: "rhcos4.18", Arch: "amd64", Kind: "open",
	}
}

func TestJobMatchesGoldenFile(t *testing.T) {
	job, err := buildSpec().Job()
	require.NoError(t, err)
	have, err := yaml.Marshal(job)
	require.NoError(t, err)
	golden.Require(t, "testdata/build-job.yaml", have)
}

func TestJobFollowsPolicyAndCluster(t *testing.T) {
	s := buildSpec()
	s.Policy.Spec.Driver.Prebuild = &v1.PrebuildSpec{Repository: "r.example/driver"}
	s.Policy.Spec.Driver.ModuleSigning = nil
	s.Kernel, s.OSTag, s.Arch, s.Kind, s.OpenShift = "5.15.0-105-generic", "ubuntu22.04", "arm64", "proprietary", true
	job, err := s.Job()
	require.NoError(t, err)
	pod := job.Spec.Template.Spec
	require.Nil(t, pod.SecurityContext.RunAsUser, "OpenShift gives it one")
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.Equal(t, map[string]string{"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64"}, pod.NodeSelector)
	require.Len(t, pod.Volumes, 2)
	require.Contains(t, pod.InitContainers[1].Args, "/shared/sources/kernel")
	require.Contains(t, pod.InitContainers[1].Args, "nvidia,nvidia-uvm,nvidia-modeset,nvidia-drm,nvidia-peermem", "as precompiled images have them")
	for _, e := range pod.Containers[0].Env {
		require.NotContains(t, []string{envRegistry, envKey, envInsecure}, e.Name)
	}
	s.Kernel = "6.1.0/rpt"
	_, err = s.Job()
	require.ErrorContains(t, err, `"580.95.05-6.1.0/rpt-ubuntu22.04" can be no tag of an image`)
}

func TestArchitectureOfAKernelRelease(t *testing.T) {
	for kernel, arch := range map[string]string{
		"5.14.0-427.50.1.el9_4.x86_64": "amd64", "5.14.0-427.50.1.el9_4.x86_64+rt": "amd64", "6.1.0-50-cloud-amd64": "amd64",
		"5.14.0-427.50.1.el9_4.aarch64": "arm64", "5.14.0-427.50.1.el9_4.aarch64+64k": "arm64", "6.1.0-50-arm64": "arm64",
		"5.15.0-105-generic": "", "6.4.0-150600.23.25-default": "", "6.1.0-myarm64": "",
	} {
		require.Equal(t, arch, KernelArch(kernel), kernel)
	}
}

func TestMissingPushSecretDoesNotBlockDrivers(t *testing.T) {
	o := RepositoryParts(&buildSpec().Policy.Spec.Driver)
	require.True(t, *o.Volumes[0].Secret.Optional)
	require.Nil(t, SigningParts(&buildSpec().Policy.Spec.Driver).Volumes[0].Secret.Optional, "unsigned modules are not loaded")
}

func job(t *testing.T, name string, age time.Duration, conditions ...batchv1.JobCondition) Build {
	j, err := buildSpec().Job()
	require.NoError(t, err)
	j.Name, j.CreationTimestamp = name, metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age))
	j.Status.Conditions = conditions
	b, ok := ObserveBuild(j)
	require.True(t, ok)
	return b
}

func pod(name, job string, age time.Duration, statuses ...corev1.ContainerStatus) *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"gpuready.io/prebuild": "true"}, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age)),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: job, Controller: &yes}},
		},
		Status: corev1.PodStatus{InitContainerStatuses: statuses},
	}
}

func ended(name string, code int32, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}}}
}

func TestReportHasTheFailingContainersMessage(t *testing.T) {
	complete := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}
	failed := batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "PodFailurePolicy", Message: "Container build for pod a/b failed with exit code 3"}
	const words = "time=… level=INFO msg=\"compiling modules\"\ngpu-driver: BuildFailed: nv-mmap.c:42: error: implicit declaration of follow_pfn; use driver 580.65.06 or later\n"
	broken := pod("p", "a", 0, ended("prepare", 0, ""), ended("build", 3, words))
	pulling := pod("p", "a", 0, corev1.ContainerStatus{Name: "build", Image: "dtk:1", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}})
	for name, c := range map[string]struct {
		jobs    []Build
		pods    []*corev1.Pod
		says    Presence
		state   v1.PrebuiltState
		message string
	}{
		"it builds":                 {jobs: []Build{job(t, "a", 0)}, pods: []*corev1.Pod{pod("p", "a", 0)}, state: v1.PrebuiltBuilding},
		"its image is not there":    {jobs: []Build{job(t, "a", 0)}, pods: []*corev1.Pod{pulling}, state: v1.PrebuiltBuilding, message: "ImagePullBackOff: container build: image dtk:1: no such image"},
		"it failed":                 {jobs: []Build{job(t, "a", 0, failed)}, pods: []*corev1.Pod{broken, pod("older", "a", time.Hour)}, state: v1.PrebuiltFailed, message: "container build: BuildFailed: nv-mmap.c:42: error: implicit declaration of follow_pfn; use driver 580.65.06 or later"},
		"it failed, its pod gone":   {jobs: []Build{job(t, "a", 0, failed)}, state: v1.PrebuiltFailed, message: "PodFailurePolicy: Container build for pod a/b failed with exit code 3"},
		"killed without a word":     {jobs: []Build{job(t, "a", 0, failed)}, pods: []*corev1.Pod{pod("p", "a", 0, ended("build", 137, ""))}, state: v1.PrebuiltFailed, message: "container build: Error: it exited with 137 without a message"},
		"pushed":                    {jobs: []Build{job(t, "a", 0, complete)}, says: Presence{State: Present}, state: v1.PrebuiltPresent},
		"pushed, not asked":         {jobs: []Build{job(t, "a", 0, complete)}, state: v1.PrebuiltPresent},
		"pushed, and away":          {jobs: []Build{job(t, "a", 0, complete)}, says: Presence{State: Absent}, state: v1.PrebuiltMissing, message: "it was pushed, and the registry has it no more: build it again"},
		"pushed, registry silent":   {jobs: []Build{job(t, "a", 0, complete)}, says: Presence{State: Unknown, Why: "timeout"}, state: v1.PrebuiltPresent, message: "it was pushed, but cannot be looked up in the registry: timeout"},
		"failed, and builds again":  {jobs: []Build{job(t, "old", time.Hour, failed), job(t, "a", 0)}, state: v1.PrebuiltBuilding},
		"pushed, and failed before": {jobs: []Build{job(t, "a", 0, complete), job(t, "old", time.Hour, failed)}, state: v1.PrebuiltPresent},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []BuildPod
			for _, p := range c.pods {
				o, ok := ObserveBuildPod(p)
				require.True(t, ok)
				pods = append(pods, o)
			}
			got := ReportBuilds(c.jobs, pods, func(string) Presence { return c.says })
			require.Equal(t, []v1.PrebuiltStatus{{
				Kernel: "5.14.0-427.50.1.el9_4.x86_64", OSTag: "rhcos4.18", Version: "580.95.05", Kind: "open", Job: "a",
				Image: "registry.example:5000/gpu/driver:580.95.05-5.14.0-427.50.1.el9_4.x86_64-rhcos4.18", State: c.state, Message: c.message,
			}}, got)
		})
	}
}

func TestForeignJobsAreIgnored(t *testing.T) {
	j, err := buildSpec().Job()
	require.NoError(t, err)
	j.Labels = nil
	_, ok := ObserveBuild(j)
	require.False(t, ok)
	_, ok = ObserveBuildPod(&corev1.Pod{})
	require.False(t, ok)
	j, err = buildSpec().Job()
	require.NoError(t, err)
	j.Annotations[annotationKernel] = strings.Repeat("x\n", 1000)
	b, ok := ObserveBuild(j)
	require.True(t, ok)
	require.LessOrEqual(t, len(b.Kernel), maxBuildName)
}
