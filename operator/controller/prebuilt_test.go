package controller

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/registry"
)

func TestStatusListsPrebuiltKernels(t *testing.T) {
	const image = "registry.example/modules:535.104.05-6.8.0-100-generic-ubuntu22.04"
	w := newWorld(t)
	p := contained("policy")
	p.Spec.Driver.Prebuild = &v1.PrebuildSpec{Repository: "registry.example/modules"}
	w.create(p)
	job, err := driver.BuildSpec{
		Policy: p, Namespace: namespace, Image: "registry.example/driver:535.104.05-ubuntu22.04", Toolkit: "toolkit:1",
		Version: "535.104.05", Kernel: "6.8.0-100-generic", OSTag: "ubuntu22.04", Kind: "open",
	}.Job()
	require.NoError(t, err)
	job.Name = "build"
	w.create(job)
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "builder", Namespace: namespace, Labels: job.Labels, OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "build", UID: "u", Controller: &yes}},
	}}
	w.create(pod)
	prebuilt := func() v1.PrebuiltStatus {
		t.Helper()
		w.settle()
		all := w.policy("policy").Status.Prebuilt
		require.Len(t, all, 1)
		require.Empty(t, w.settle(), "nothing more is written")
		return all[0]
	}
	want := v1.PrebuiltStatus{Kernel: "6.8.0-100-generic", OSTag: "ubuntu22.04", Version: "535.104.05", Kind: "open", Image: image, Job: "build", State: v1.PrebuiltBuilding}
	require.Equal(t, want, prebuilt())
	require.Empty(t, w.model.pods, "its pod is no operand")

	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "build", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Message: "gpu-driver: BuildFailed: no headers"}}}}
	require.NoError(t, w.Status().Update(t.Context(), pod))
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	require.NoError(t, w.Status().Update(t.Context(), job))
	want.State, want.Message = v1.PrebuiltFailed, "container build: BuildFailed: no headers"
	require.Equal(t, want, prebuilt())

	job.Status.Conditions[0].Type = batchv1.JobComplete
	require.NoError(t, w.Status().Update(t.Context(), job))
	want.State, want.Message = v1.PrebuiltPresent, ""
	require.Equal(t, want, prebuilt())
	w.images[image] = driver.Presence{State: driver.Absent}
	w.markChanged()
	require.Equal(t, v1.PrebuiltMissing, prebuilt().State)

	require.NoError(t, w.Delete(t.Context(), job))
	removeJob(w.model, job)
	w.deleteObject(pod)
	removePod(w.model, pod)
	require.Empty(t, w.model.builders)
	w.settle()
	require.Empty(t, w.policy("policy").Status.Prebuilt)
}

func TestModulesThatAreDeletedFromTheRegistryAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var deleted atomic.Bool
		w.query = func(context.Context, string, registry.Access) driver.Presence {
			if deleted.Load() {
				return driver.Presence{State: driver.Absent}
			}
			return driver.Presence{State: driver.Present}
		}
		w.notified = make(chan string, 10)
		w.start()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.registry.Run(ctx) }()
		defer func() { cancel(); require.NoError(t, <-ended) }()

		p := contained("policy")
		p.Spec.Driver.Prebuild = &v1.PrebuildSpec{Repository: "registry.example/modules"}
		w.create(p)
		job, err := driver.BuildSpec{
			Policy: p, Namespace: namespace, Image: "registry.example/driver:535.104.05-ubuntu22.04", Toolkit: "toolkit:1",
			Version: "535.104.05", Kernel: "6.8.0-100-generic", OSTag: "ubuntu22.04", Kind: "open",
		}.Job()
		require.NoError(t, err)
		job.Name = "build"
		job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		w.create(job)
		state := func() v1.PrebuiltState {
			w.settle()
			return w.policy("policy").Status.Prebuilt[0].State
		}
		state()
		<-w.notified
		require.Equal(t, v1.PrebuiltPresent, state())
		deleted.Store(true)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		require.Equal(t, v1.PrebuiltMissing, state())
	})
}

func TestPrebuiltLookupUsesPushCredentials(t *testing.T) {
	w := newWorld(t)
	yes := true
	spec := &v1.DriverSpec{Prebuild: &v1.PrebuildSpec{Repository: "registry.example:5000/modules", Secret: "push", Insecure: &yes}}
	spec.ImagePullSecrets = []string{"pull"}
	with := w.accessPrebuilt(spec)
	require.Equal(t, "registry.example:5000", with.Insecure)
	require.Equal(t, "push", with.Secrets[0].Name)
	require.Equal(t, "pull", with.Secrets[1].Name)
	require.Empty(t, w.access(spec).Insecure)
}
