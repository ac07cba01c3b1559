package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/label"
)

func precompiled() *v1.ClusterPolicy {
	yes := true
	p := &v1.ClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy", UID: "uid-policy", Generation: 1}}
	p.Spec.Driver.UsePrecompiled = &yes
	p.Spec.Driver.Repository, p.Spec.Driver.Image, p.Spec.Driver.Version = "registry.example", "driver", "535"
	return p
}

func drivers(w *world) []string {
	return slices.DeleteFunc(w.sets(), func(name string) bool { return !strings.HasPrefix(name, label.DriverApp) })
}

func TestImageOwnerIsRememberedWhileItsRegistryIsAway(t *testing.T) {
	w := newWorld(t)
	image, p := "registry.example/driver:535-ubuntu22.04", contained("policy")
	says := func(presence driver.Presence) *appsv1.DaemonSet {
		w.images[image] = presence
		w.markChanged()
		w.settle()
		var d appsv1.DaemonSet
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: label.DriverApp + "-ubuntu22.04"}, &d); err != nil {
			return nil
		}
		return &d
	}
	w.create(gpuNode("n1"), p)
	require.Nil(t, says(driver.Presence{}), "the registry is being asked")
	own := says(driver.Presence{State: driver.Present, Ours: true, Version: "535.104.05"})
	require.NotNil(t, own)
	require.Equal(t, []string{"run"}, own.Spec.Template.Spec.Containers[0].Args)
	require.Contains(t, own.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "DRIVER_VERSION", Value: "535.104.05"})
	for _, silent := range []driver.Presence{{}, {State: driver.Unknown, Why: "nobody answers"}, {State: driver.Present, Why: "its labels cannot be read"}} {
		require.Equal(t, own.Spec, says(silent).Spec, "an operator that starts anew, and a registry that is away, change nothing")
	}
	theirs := says(driver.Presence{State: driver.Present})
	require.Equal(t, []string{"nvidia-driver"}, theirs.Spec.Template.Spec.Containers[0].Command)
	require.NotContains(t, theirs.Labels, label.DriverContainer)
	require.Equal(t, theirs.Spec, says(driver.Presence{}).Spec)
}

func TestImageOfUnknownOwnerRunsAsNVIDIAs(t *testing.T) {
	w := newWorld(t)
	w.images["registry.example/driver:535-ubuntu22.04"] = driver.Presence{State: driver.Unknown, Why: "nobody answers"}
	w.create(gpuNode("n1"), contained("policy"))
	w.settle()
	require.Equal(t, []string{label.DriverApp + "-ubuntu22.04"}, drivers(w))
	require.Empty(t, w.policy("policy").Status.Pools[0].Reason)
}

func TestUnknownImageIsTriedWhereNoDriverIsDeployed(t *testing.T) {
	const id = kernel + "-ubuntu22.04"
	w := newWorld(t)
	image := "registry.example/driver:535-" + id
	w.create(gpuNode("n1"), precompiled())
	w.settle()
	require.Empty(t, drivers(w), "the registry is being asked")
	w.images[image] = driver.Presence{State: driver.Unknown, Why: "nobody answers"}
	w.markChanged()
	w.settle()
	require.Equal(t, []string{label.DriverApp + "-" + id}, drivers(w))
	require.Equal(t, id, w.node("n1").Labels[label.Driver])
	w.settle()
	require.Empty(t, w.settle())
	w.create(gpuNode("n2"))
	w.settle()
	require.Equal(t, id, w.node("n2").Labels[label.Driver], "a new node gets what the others have")

	w.images[image] = driver.Presence{State: driver.Absent}
	w.markChanged()
	w.create(gpuNode("n3"))
	w.settle()
	require.Equal(t, []string{label.DriverApp + "-" + id}, drivers(w))
	require.Equal(t, id, w.node("n3").Labels[label.Driver])
}

func TestWithoutTheDriverToolkitADriverOfOursFollowsThePolicyAllTheSame(t *testing.T) {
	const version, image = "418.94.202501221327-0", "registry.example/driver:535.104.05-rhcos4.18"
	w := newWorld(t)
	w.model.openShift, w.model.toolkit = true, map[string]string{}
	w.images[image] = driver.Presence{State: driver.Present, Ours: true}
	p := contained("policy")
	p.Spec.Driver.Version = "535.104.05"
	w.create(p, gpuNode("n1", label.OSID, "rhcos", label.OSVersion, "4.18", label.OSTree, version))
	repository := func(name string) appsv1.DaemonSet {
		p := w.policy("policy")
		p.Spec.Driver.Prebuild = &v1.PrebuildSpec{Repository: name}
		p.Generation++
		require.NoError(t, w.Update(t.Context(), p))
		w.markChanged()
		w.settle()
		var d appsv1.DaemonSet
		require.NoError(t, w.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: label.DriverApp + "-" + version}, &d))
		return d
	}
	told := func(name string) corev1.EnvVar { return corev1.EnvVar{Name: "PREBUILD_REPOSITORY", Value: name} }
	for _, name := range []string{"registry.example/a", "registry.example/b"} {
		pod := repository(name).Spec.Template.Spec
		require.Len(t, pod.Containers, 1)
		require.Contains(t, pod.Containers[0].Env, told(name))
	}
	w.model.toolkit[version] = "toolkit:1"
	require.Len(t, repository("registry.example/c").Spec.Template.Spec.Containers, 2)
	delete(w.model.toolkit, version)
	pod := repository("registry.example/d").Spec.Template.Spec
	require.Len(t, pod.Containers, 2, "its side-car builds")
	require.Contains(t, pod.Containers[0].Env, told("registry.example/c"))
}
