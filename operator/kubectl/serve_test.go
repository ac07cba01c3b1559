package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpuready/gpuready/internal/program"
)

func TestServeShowsWhoOffersAndWhoHolds(t *testing.T) {
	gpus := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n), "cpu": resource.MustParse("8")}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-7", Labels: map[string]string{"nvidia.com/gpu.serve": "dra"}}}
	node.Status.Allocatable = gpus("0")
	node.Status.Conditions = []corev1.NodeCondition{{Type: "GPUReady", Status: "True", Reason: "Degraded", Message: "2 of 2 GPUs ready; device plugin: 1 of 2 devices are withheld"}}
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Spec: corev1.PodSpec{NodeName: "gpu-7"}, Status: corev1.PodStatus{Phase: phase}}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: gpus("1")}}}
		return p
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{{Name: "gpu-1"}}}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Driver: "gpu.nvidia.com", Pool: "gpu-7", Device: "gpu-1"}, {Driver: "gpu.nvidia.com", Pool: "gpu-8", Device: "gpu-1"}, {Driver: "other", Pool: "gpu-7", Device: "x"}}}}
	group := &unstructured.Unstructured{Object: map[string]any{"kind": "APIGroup", "apiVersion": "v1", "metadata": map[string]any{"name": "resource.k8s.io"}, "preferredVersion": map[string]any{"groupVersion": "resource.k8s.io/v1"}}}
	a := &api{lists: map[string][]any{
		"/apis": {group}, "/api/v1/nodes": {node}, "/api/v1/pods": {pod("a", corev1.PodRunning), pod("old", corev1.PodSucceeded)},
		"/apis/resource.k8s.io/v1/resourceslices": {slice}, "/apis/resource.k8s.io/v1/resourceclaims": {claim},
	}}
	client := serve(t, a)
	shown := func() string {
		s, err := readServing(t.Context(), client, "gpu-7")
		require.NoError(t, err)
		var text bytes.Buffer
		require.NoError(t, s.text(&text, style{Width: 100}))
		return text.String()
	}
	require.Equal(t, `gpu-7: gpu-dra-driver offers GPUs (nvidia.com/gpu.serve=dra), the switch is not complete
  allocatable: nvidia.com/gpu: 0
  in ResourceSlices: gpu-1
  pod team/a holds nvidia.com/gpu: 1
  claim team/c holds gpu-1
  GPUReady: True Degraded: 2 of 2 GPUs ready; device plugin: 1 of 2 devices are withheld
`, shown())
	a.lists["/api/v1/pods"] = []any{}
	require.Contains(t, shown(), "gpu-7: gpu-dra-driver offers GPUs (nvidia.com/gpu.serve=dra), complete\n")
	node.Labels["nvidia.com/gpu.serve"] = "plugin"
	require.Contains(t, shown(), "gpu-7: gpu-dra-driver offers GPUs (nvidia.com/gpu.serve=plugin), the switch is not complete\n")
	node.Status.Allocatable, slice.Spec.Devices = gpus("1"), nil
	require.Contains(t, shown(), "gpu-7: the device plugin offers GPUs (nvidia.com/gpu.serve=plugin), the switch is not complete\n", "a claim holds a GPU")
	a.lists["/apis/resource.k8s.io/v1/resourceclaims"] = []any{}
	require.Contains(t, shown(), "complete\n")
}

func TestServeRefusesUnknownWords(t *testing.T) {
	for _, args := range [][]string{{}, {"gpu-7", "both"}, {"gpu-7", "dra", "now"}, {"gpu-7", "--timeout=0s"}} {
		var out bytes.Buffer
		require.Equal(t, program.Usage, runCommand(t.Context(), append([]string{"serve"}, args...), &out, &out), "%q: %s", args, out.String())
	}
}
