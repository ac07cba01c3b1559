package validator

import (
	"testing"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/readiness"
)

func pluginSituations() []situation {
	var r *rival
	return []situation{
		{
			name: "the device plugin finds no kubelet to register with", layer: readiness.Plugin, reason: "NoKubelet",
			words:  []string{"not registered"},
			breaks: func(t *testing.T, n *node) { n.unregister(t) },
			mends:  func(t *testing.T, n *node) { n.register(t) },
		},
		{
			name: "the device plugin is gone", layer: readiness.Plugin, reason: "DevicePluginSilent",
			words:  []string{"the device plugin was stopped", "nvidia.com/gpu.deploy.device-plugin"},
			breaks: func(t *testing.T, n *node) { n.label(t, pluginLabel, "false") },
			mends:  func(t *testing.T, n *node) { n.label(t, pluginLabel, "") },
		},
		{
			name: "the kubelet offers fewer GPUs than the driver has", layer: readiness.Plugin, reason: "AllocatableShort",
			words:  []string{"1 device fewer", "the kubelet does not offer"},
			breaks: func(t *testing.T, n *node) { r = n.startRival(t, n.gpus-1, refuses) },
			mends:  func(t *testing.T, n *node) { n.endRival(t, r) },
		},
		{
			name: "the kubelet was restarted, and the device plugin hangs", layer: readiness.Plugin, reason: "AllocatableShort",
			words:   []string{"8 devices fewer", "the kubelet does not offer"},
			prepare: func(t *testing.T, n *node) { n.signal(t, "STOP", "gpu-device-plugin") },
			breaks:  func(t *testing.T, n *node) { n.KillKubelet(t, n.name) },
			mends:   func(t *testing.T, n *node) { n.signal(t, "CONT", "gpu-device-plugin") },
		},
		another("a pod that requests a GPU is not admitted", "WorkloadNotAdmitted", refuses, "gives nothing away today"),
		another("a pod is allocated a GPU and given none", "AllocatedButAbsent", allocatesNothing, "was allocated GPU-", "found no GPU"),
	}
}

// another returns a situation in which another plugin responds to the kubelet.
func another(name, reason string, respond func() (*v1beta1.ContainerAllocateResponse, error), words ...string) situation {
	var r *rival
	return situation{
		name: name, layer: readiness.Plugin, reason: reason, words: words,
		prepare: func(t *testing.T, n *node) { r = n.startRival(t, n.gpus, respond) },
		breaks:  func(t *testing.T, n *node) { n.restart(t, validator) },
		mends:   func(t *testing.T, n *node) { n.endRival(t, r) },
	}
}
