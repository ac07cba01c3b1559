package plugin_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// describes writes the toolkit's state, which describes the container runtime.
func (n *node) describes(r nodestate.Runtime) {
	n.t.Helper()
	n.toolkit(nodestate.Injection{Working: true, Generation: "a"}, func(s *nodestate.State) {
		s.Toolkit.Runtime = &r
		for i := range 2 {
			s.Toolkit.Specs[0].Devices = append(s.Toolkit.Specs[0].Devices, string(gputest.GPU(i)))
		}
	})
}

// admit admits a pod with one GPU.
func (n *node) admit(name string) kubelettest.Admission {
	n.t.Helper()
	a, err := n.kubelet.Admit(soon(n.t), kubelettest.Pod{Namespace: "default", Name: name, Container: "main", Requests: map[string]int{"nvidia.com/gpu": 1}})
	require.NoError(n.t, err)
	return a
}

func TestListedStrategiesFollowTheNode(t *testing.T) {
	on, off := true, false
	n := newNode(t, gputest.Node("h100-sxm", 2)).withKubelet()
	n.settings("flags: {plugin: {deviceListStrategy: 'volume-mounts,envvar'}}")
	n.describes(nodestate.Runtime{Socket: "/s", Name: "containerd", CDI: &on, Handlers: []string{"runc"}, GPUHandlers: []string{}, DefaultHandler: "runc"})
	n.start()
	n.wait(2)
	a := n.admit("by-cdi")
	require.Len(t, a.CDIDevices, 1)
	require.Len(t, a.Annotations, 1, "a kubelet before 1.29 drops the names")
	require.Empty(t, a.Mounts)
	require.Empty(t, a.Envs)
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready })
	require.Equal(t, []string{"deviceListStrategy=volume-mounts", "deviceListStrategy=envvar"}, []string{s.Unserved[0].Name, s.Unserved[1].Name})
	require.Contains(t, n.log.String(), "setting has no effect on this node")

	// The node gets a handler, and CDI is turned off.
	n.describes(nodestate.Runtime{Socket: "/s", Name: "containerd", CDI: &off, Message: "CDI is off", Handlers: []string{"nvidia", "runc"}, GPUHandlers: []string{"nvidia"}, DefaultHandler: "nvidia"})
	n.state(func(s nodestate.State) bool { return len(s.Unserved) == 1 })
	a = n.admit("by-mounts")
	require.Empty(t, a.CDIDevices)
	require.Len(t, a.Mounts, 1)

	// Neither: no pod is given a GPU that it would not get.
	n.describes(nodestate.Runtime{Socket: "/s", Name: "containerd", CDI: &off, Message: "CDI is off", Handlers: []string{"runc"}, GPUHandlers: []string{}, DefaultHandler: "runc"})
	n.wait(0)
	s = n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.Equal(t, gpu.Reason("DeviceListUnserved"), s.Reason)
	require.Contains(t, s.Message, "volume-mounts: the container runtime has no handler that gives GPUs by mounts; envvar: the container runtime has no handler that gives GPUs by NVIDIA_VISIBLE_DEVICES; cdi-cri: CDI is off")
	require.Equal(t, gpu.Reason("DeviceListUnserved"), s.DevicePlugin.Resources[0].Devices[0].Reason)

	n.describes(nodestate.Runtime{Socket: "/s", Name: "cri-o", Handlers: []string{"crun"}, GPUHandlers: []string{}, DefaultHandler: "crun"})
	n.wait(2)
	require.False(t, slices.ContainsFunc(n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready }).DevicePlugin.Resources[0].Devices,
		func(d nodestate.Device) bool { return d.Reason != "" }))
}
