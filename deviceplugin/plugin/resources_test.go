package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// settings sets the plugin's configuration.
func (n *node) settings(text string) *node {
	n.t.Helper()
	c, _, err := config.Parse([]byte(text), "config.yaml", config.Options{})
	require.NoError(n.t, err)
	n.cfg.Settings.Config = c
	return n
}

// waitForDevices waits until that many devices of a resource are allocatable.
func (n *node) waitForDevices(resource string, allocatable int) kubelettest.Resource {
	n.t.Helper()
	r, err := n.kubelet.Wait(soon(n.t), resource, func(r kubelettest.Resource) bool {
		return r.Allocatable == allocatable && !r.Gone && r.Lists > 0
	})
	require.NoError(n.t, err)
	return r
}

const (
	small = "nvidia.com/mig-1g.10gb"
	large = "nvidia.com/mig-3g.40gb"
)

// divided is a node whose first GPU has MIG devices.
func divided(layout ...string) gpu.Snapshot {
	s := gputest.Node("h100-sxm", 4)
	if len(layout) > 0 {
		s.Devices[0] = gputest.WithMIG(s.Devices[0], layout...)
	}
	return s
}

func TestEndpointMatchesTheReference(t *testing.T) {
	require.Equal(t, "nvidia-gpu.sock", kubelet.Endpoint("nvidia.com/gpu"))
	require.Equal(t, "nvidia-mig-1g.10gb.sock", kubelet.Endpoint(small))
}

func TestErrorInOneMIGInstanceAffectsNoOther(t *testing.T) {
	s := divided("1g.10gb", "1g.10gb", "3g.40gb")
	n := newNode(t, s).settings("flags: {migStrategy: mixed}").withKubelet().start()
	n.waitForDevices(small, 2)
	n.waitForDevices(large, 1)
	e := gputest.XID(s.Devices[0].UUID, 94)
	e.GPUInstance, e.ComputeInstance = s.Devices[0].MIG[1].GPUInstance, s.Devices[0].MIG[1].ComputeInstance
	n.source.Emit(e)
	r := n.waitForDevices(small, 1)
	require.Equal(t, []string{string(s.Devices[0].MIG[1].UUID)}, n.unhealthy(r))
	n.waitForDevices(large, 1)
	n.wait(3)
	n.source.Emit(gputest.XID(s.Devices[0].UUID, 79)) // the whole GPU
	n.waitForDevices(small, 0)
	n.waitForDevices(large, 0)
	n.wait(3)
	n.stop()

	n.start() // remembered, for every part
	n.waitForDevices(small, 0)
	n.waitForDevices(large, 0)
	n.wait(3)
}

func TestChangedResourcesDoNotDisturbOthers(t *testing.T) {
	n := newNode(t, divided()).settings("flags: {migStrategy: mixed}").withKubelet().start()
	n.wait(4)
	n.source.Set(divided("3g.40gb"))
	n.waitForDevices(large, 1)
	n.source.Set(divided("1g.10gb", "1g.10gb"))
	n.waitForDevices(small, 2)
	require.Empty(t, n.waitForDevices(large, 0).Devices)
	n.source.Set(divided("3g.40gb", "1g.10gb"))
	n.waitForDevices(large, 1)
	n.waitForDevices(small, 1)
	require.Equal(t, 1, n.wait(3).Registered)
	n.source.Set(divided())
	n.wait(4)
	n.waitForDevices(large, 0)
	s := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Ready && len(s.DevicePlugin.Resources) == 1 })
	require.Equal(t, config.GPU, s.DevicePlugin.Resources[0].Name)

	require.NoError(t, n.kubelet.Restart())
	n.wait(4)
	for _, gone := range []string{small, large} {
		n.log.wait(t, `the kubelet has forgotten it" resource=`+gone)
	}
	sockets, err := filepath.Glob(filepath.Join(n.host, "dp", "nvidia-*.sock"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(n.host, "dp", "nvidia-gpu.sock")}, sockets)
	n.source.Set(divided("3g.40gb"))
	n.waitForDevices(large, 1)
	n.stop()
	entries, err := os.ReadDir(filepath.Join(n.host, "dp"))
	require.NoError(t, err)
	for _, e := range entries {
		require.False(t, strings.HasPrefix(e.Name(), "nvidia-"), e.Name())
	}
}

// However the layout changes, the kubelet ends up with the present devices.
func TestKubeletConvergesToTheLastLayout(t *testing.T) {
	n := newNode(t, divided()).settings("flags: {migStrategy: mixed}").withKubelet().start()
	n.wait(4)
	layouts := map[string][]string{"whole": nil, "small": {"1g.10gb", "1g.10gb"}, "large": {"3g.40gb"}, "both": {"3g.40gb", "1g.10gb"}}
	rapid.Check(t, func(r *rapid.T) {
		name := ""
		for range rapid.IntRange(1, 5).Draw(r, "changes") {
			name = rapid.SampledFrom([]string{"whole", "small", "large", "both"}).Draw(r, "layout")
			n.source.Set(divided(layouts[name]...))
			if rapid.Bool().Draw(r, "restart") && rapid.Bool().Draw(r, "really") {
				require.NoError(r, n.kubelet.Restart())
			}
		}
		n.wait(map[bool]int{true: 4, false: 3}[name == "whole"])
		for _, resource := range []string{small, large} {
			profile := strings.TrimPrefix(resource, "nvidia.com/mig-")
			want := 0
			for _, p := range layouts[name] {
				if p == profile {
					want++
				}
			}
			if _, known := n.kubelet.Resource(resource); known || want > 0 {
				_, err := n.kubelet.Wait(soon(t), resource, func(k kubelettest.Resource) bool {
					return k.Allocatable == want || want == 0 && k.Gone
				})
				require.NoError(r, err)
			}
		}
	})
}

func TestGPUWithoutMIGDevicesIsReportedAsLeftOut(t *testing.T) {
	s := gputest.Node("h100-sxm", 1)
	s.Devices[0].MIGEnabled = true
	n := newNode(t, s).settings("flags: {migStrategy: mixed}").withKubelet().start()
	got := n.state(func(s nodestate.State) bool { return s.Phase == nodestate.Failed })
	require.EqualValues(t, "NoMIGDevice", got.Reason)
	require.Contains(t, got.Message, "GPU 0 is left out")
	require.Equal(t, gputest.GPU(0), got.DevicePlugin.LeftOut[0].GPU)
	n.source.Set(divided("1g.10gb"))
	n.waitForDevices(small, 1)
}

// An XID of a program takes nothing from the programs that share its GPU; one that needs a reset does.
func TestAProgramsErrorTakesNothingFromItsNeighbours(t *testing.T) {
	n := newNode(t, gputest.Node("t4", 2)).settings("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}").withKubelet().start()
	n.wait(8)
	for _, xid := range []uint64{8, 32, 47, 69} {
		n.source.Emit(gputest.XID(gputest.GPU(0), xid))
	}
	n.log.wait(t, "XID that is not held against the GPU")
	n.source.Emit(gputest.XID(gputest.GPU(1), 48)) // delivered after them
	require.Len(t, n.unhealthy(n.wait(4)), 4)
	n.stop()

	s := divided("1g.10gb", "1g.10gb", "3g.40gb")
	n = newNode(t, s).settings("flags: {migStrategy: mixed}").withKubelet().start()
	n.waitForDevices(small, 2)
	n.source.Emit(gputest.XID(s.Devices[0].UUID, 69)) // the driver names no instance
	n.log.wait(t, "XID that is not held against the GPU")
	n.waitForDevices(small, 2)
}
