package step

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/kubelettest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

const (
	resource = "nvidia.com/gpu"
	boot     = "00000000-0000-4000-8000-000000000000"
)

// pluginTestNode is a node on which driver, device plugin and kubelet agree on three GPUs.
type pluginTestNode struct {
	check.Node
	driver    check.Driver
	state     nodestate.State
	kubelet   Account
	err       error
	end       func() // ends the device plugin; nil: it is not marked as alive
	endDriver func() // ends gpu-dra-driver
}

func newNode(t *testing.T) *pluginTestNode {
	t.Helper()
	root, err := host.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	n := &pluginTestNode{
		Node:   check.Node{Root: root, BootID: boot, StateDir: "/states", PodResources: "/pods/kubelet.sock"},
		driver: check.Driver{Info: nodestate.DriverInfo{Root: "/", Version: "580.95.05"}, GPUs: gputest.Node("t4", 3).Devices},
		kubelet: Account{
			Allocatable: map[string]map[string]bool{resource: {}, "example.com/other": {"x": true}},
			Allocated:   map[string]map[string]string{resource: {id(0): "default/job"}},
		},
		state: nodestate.State{Component: nodestate.DevicePlugin, BootID: boot, Phase: nodestate.Ready, DevicePlugin: &nodestate.DevicePluginInfo{
			Registered: true, Resources: []nodestate.Resource{{Name: resource}},
		}},
	}
	for i := range 3 {
		n.kubelet.Allocatable[resource][id(i)] = true
		n.devices(nodestate.Device{ID: id(i), GPU: gputest.GPU(i), Health: nodestate.Healthy})
	}
	return n
}

func id(i int) string { return string(gputest.GPU(i)) }

func (n *pluginTestNode) devices(d nodestate.Device) {
	r := &n.state.DevicePlugin.Resources[0]
	r.Devices = append(r.Devices, d)
}

func (n *pluginTestNode) devicesFrom(i int) {
	r := &n.state.DevicePlugin.Resources[0]
	r.Devices = r.Devices[i:]
}

func (n *pluginTestNode) check(t *testing.T) check.Outcome {
	t.Helper()
	if n.state.Component != "" {
		require.NoError(t, nodestate.Write(n.StatePath(nodestate.DevicePlugin), n.state))
	}
	return checkPlugin(t.Context(), n.Node, n.driver, func(_ context.Context, socket string) (Account, error) {
		require.Equal(t, n.Root.Path("/pods/kubelet.sock"), socket)
		return n.kubelet, n.err
	}, nil)
}

func TestThreeAccountsThatAgreeAreAProof(t *testing.T) {
	n := newNode(t)
	o := n.check(t)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, map[string]int{resource: 3}, o.Proof.Resources)
	require.Equal(t, map[string]int{resource: 3}, o.Allocatable)
	require.Equal(t, "nvidia.com/gpu: 3 allocatable, 1 allocated", o.Proof.Summary)
	require.Empty(t, o.Notes)
}

func TestAMIGDeviceIsOfferedAloneOrWithItsGPU(t *testing.T) {
	n := newNode(t)
	n.driver.GPUs[0] = gputest.WithMIG(n.driver.GPUs[0], "1g.10gb", "2g.20gb")
	require.Equal(t, check.Passed, n.check(t).Kind, "with its GPU")
	first := &n.state.DevicePlugin.Resources[0].Devices[0]
	first.GPU = n.driver.GPUs[0].MIG[0].UUID
	o := n.check(t)
	require.Equal(t, ReasonAllocatableShort, o.NotReady.Reason)
	require.Contains(t, o.NotReady.Message, "the driver sees 1 device that the device plugin does not: MIG device 0:1 ("+string(n.driver.GPUs[0].MIG[1].UUID)+", 2g.20gb)")
	require.NotContains(t, o.NotReady.Message, "MIG device 0:0")
}

func TestReplicasAndResourcesAreComparedOneByOne(t *testing.T) {
	n := newNode(t)
	p := n.state.DevicePlugin
	p.Resources = append(p.Resources, nodestate.Resource{Name: "nvidia.com/gpu.shared", Devices: []nodestate.Device{
		{ID: id(2), GPU: gputest.GPU(2), Health: nodestate.Healthy, Replicas: 2},
	}})
	p.Resources[0].Devices = p.Resources[0].Devices[:2]
	delete(n.kubelet.Allocatable[resource], id(2))
	n.kubelet.Allocatable["nvidia.com/gpu.shared"] = map[string]bool{id(2) + "::0": true, id(2) + "::1": true}
	o := n.check(t)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, map[string]int{resource: 2, "nvidia.com/gpu.shared": 2}, o.Proof.Resources)
	delete(n.kubelet.Allocatable["nvidia.com/gpu.shared"], id(2)+"::1")
	require.Contains(t, n.check(t).NotReady.Message, "the kubelet does not offer 1 device of nvidia.com/gpu.shared, healthy to the device plugin: "+id(2)+"::1")
}

func TestAnUnadvertisedGPUWithAReasonIsANote(t *testing.T) {
	n := newNode(t)
	n.state.DevicePlugin.Resources[0].Devices = n.state.DevicePlugin.Resources[0].Devices[:2]
	delete(n.kubelet.Allocatable[resource], id(2))
	short := n.check(t)
	require.Equal(t, ReasonAllocatableShort, short.NotReady.Reason)
	require.Nil(t, short.Allocatable, "the accounts do not agree")
	n.state.DevicePlugin.LeftOut = []nodestate.LeftOutDevice{{GPU: gputest.GPU(2), Reason: "Excluded", Message: "devices.exclude names it"}}
	o := n.check(t)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, []string{id(2) + " is not advertised: Excluded: devices.exclude names it"}, o.Notes)
}

func TestAWithheldGPUWithAReasonIsANote(t *testing.T) {
	n := newNode(t)
	d := &n.state.DevicePlugin.Resources[0].Devices[0]
	d.Health, d.Reason, d.Message = nodestate.Unhealthy, gpu.ReasonXID, "XID 79"
	delete(n.kubelet.Allocatable[resource], id(0))
	n.driver.GPUs[0].Fault = gpu.Fault{Reason: gpu.ReasonLost}
	o := n.check(t)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, 2, o.Proof.GPUs)
	require.Equal(t, []string{
		id(0) + " of nvidia.com/gpu is held back: XID: XID 79",
		id(0) + " of nvidia.com/gpu is held by pod default/job and is not healthy",
	}, o.Notes)
	require.Equal(t, map[gpu.UUID][]string{gputest.GPU(0): {"default/job"}}, o.Holders)
	require.True(t, o.Retry, "nothing tells when the pod has ended")
}

func TestEachDifferenceIsNamed(t *testing.T) {
	first := func(n *pluginTestNode) *nodestate.Device { return &n.state.DevicePlugin.Resources[0].Devices[0] }
	cases := []struct {
		name    string
		breakIt func(n *pluginTestNode)
		reason  gpu.Reason
		says    string
	}{
		{"no state", func(n *pluginTestNode) { n.state.Component = "" }, reasonPluginSilent, "since the node booted"},
		{"another boot", func(n *pluginTestNode) { n.state.BootID = "11111111-0000-4000-8000-000000000000" }, reasonPluginSilent, "since the node booted"},
		{"not registered", func(n *pluginTestNode) {
			n.state.DevicePlugin.Registered = false
			n.state.Phase, n.state.Reason, n.state.Message = nodestate.Waiting, "KubeletMissing", "no socket"
		}, "KubeletMissing", "not registered with the kubelet; it says Waiting: no socket"},
		{"stopped", func(n *pluginTestNode) {
			n.state.DevicePlugin.Registered = false
			n.state.Phase, n.state.Reason, n.state.Message = nodestate.Waiting, reasonPluginStopped, "the device plugin was stopped"
		}, reasonPluginSilent, "the device plugin was stopped"},
		{"nothing said of devices", func(n *pluginTestNode) { n.state.DevicePlugin = nil }, reasonPluginNotRegistered, "not registered"},
		{"kubelet does not answer", func(n *pluginTestNode) { n.err = errors.New("connection refused") }, reasonKubelet, "/pods/kubelet.sock: connection refused"},
		{"kubelet offers too few", func(n *pluginTestNode) { delete(n.kubelet.Allocatable[resource], id(1)) },
			ReasonAllocatableShort, "1 device fewer can be allocated than the driver sees: the kubelet does not offer 1 device of nvidia.com/gpu, healthy to the device plugin: " + id(1)},
		{"kubelet offers too many", func(n *pluginTestNode) { n.kubelet.Allocatable[resource]["GPU-old"] = true },
			ReasonAllocatableDiffers, "the kubelet offers 1 device of nvidia.com/gpu that the device plugin does not: GPU-old"},
		{"the plugin has forgotten one", func(n *pluginTestNode) {
			n.devicesFrom(1)
			delete(n.kubelet.Allocatable[resource], id(0))
		}, ReasonAllocatableShort, "the driver sees 1 device that the device plugin does not: GPU 0 (" + id(0) + ", 0000:10:00.0)"},
		{"unhealthy without a reason", func(n *pluginTestNode) {
			first(n).Health = nodestate.Unhealthy
			delete(n.kubelet.Allocatable[resource], id(0))
		}, ReasonAllocatableDiffers, "holds " + id(0) + " of nvidia.com/gpu back and does not say why"},
		{"a GPU nobody knows", func(n *pluginTestNode) { first(n).GPU = "GPU-other" },
			ReasonAllocatableDiffers, "which the driver does not see; the driver sees 1 device that the device plugin does not: GPU 0 (" + id(0) + ", 0000:10:00.0)"},
		{"a lost GPU is offered", func(n *pluginTestNode) {
			n.driver.GPUs[0].Fault = gpu.Fault{Reason: gpu.ReasonLost, Message: "fell off"}
		},
			ReasonAllocatableDiffers, "but the driver says GPULost: fell off"},
		{"nothing left", func(n *pluginTestNode) {
			for i := range 3 {
				d := &n.state.DevicePlugin.Resources[0].Devices[i]
				d.Health, d.Reason = nodestate.Unhealthy, gpu.ReasonUnwatched
			}
			n.kubelet = Account{}
		}, reasonNothingAllocatable, "is held back: Unwatched"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			c.breakIt(n)
			o := n.check(t)
			require.Equal(t, check.Failed, o.Kind)
			require.Equal(t, c.reason, o.NotReady.Reason, o.NotReady.Message)
			require.Contains(t, o.NotReady.Message, c.says)
			require.NotEmpty(t, o.NotReady.Action)
		})
	}
}

func TestTruncatedStateIsItsOwnReason(t *testing.T) {
	n := newNode(t)
	n.check(t)
	require.NoError(t, os.Truncate(filepath.Join(n.StatePath(nodestate.DevicePlugin), nodestate.FileName), 30))
	n.state.Component = ""
	o := n.check(t)
	require.Equal(t, reasonPluginStateInvalid, o.NotReady.Reason)
}

func TestAnActionIsWhatThePersonMustDo(t *testing.T) {
	n := newNode(t)
	n.state.DevicePlugin.Registered = false
	n.state.Phase, n.state.Reason = nodestate.Failed, "ConfigRefused"
	n.state.Message = `$MIG_STRATEGY: "mixd" is not known, did you mean "mixed"?`
	o := n.check(t)
	require.Equal(t, gpu.Reason("ConfigRefused"), o.NotReady.Reason)
	require.Contains(t, o.NotReady.Message, n.state.Message)
	require.True(t, strings.HasPrefix(o.NotReady.Action, "correct that setting: a variable in devicePlugin.env"), o.NotReady.Action)

	state := filepath.Join(n.StatePath(nodestate.DevicePlugin), nodestate.FileName)
	require.NoError(t, os.Truncate(state, 0))
	n.state.Component = ""
	o = n.check(t)
	require.Equal(t, nodestate.ReasonNotWritable, o.NotReady.Reason)
	require.NotContains(t, o.NotReady.Message, "df -h")
	require.True(t, strings.HasPrefix(o.NotReady.Action, "free space on the file system of "+filepath.Dir(state)+": df -h"), o.NotReady.Action)
	require.Contains(t, o.NotReady.Action, "the component then writes it by itself")
}

func TestTheKubeletIsReadOverItsSocket(t *testing.T) {
	dir := t.TempDir()
	k, err := kubelettest.Start(kubelettest.Config{Dir: filepath.Join(dir, "d"), PodResourcesDir: filepath.Join(dir, "p")})
	require.NoError(t, err)
	defer k.Stop()
	got, err := ReadKubelet(t.Context(), filepath.Join(dir, "p", "kubelet.sock"))
	require.NoError(t, err)
	require.Empty(t, got.Allocatable)
}

func TestASocketWithoutServerIsAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadKubelet(t.Context(), filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	_, err = ReadKubelet(t.Context(), filepath.Join(dir, "file"))
	require.ErrorContains(t, err, "is no socket")

	// The socket of a killed kubelet is left behind.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "dead")})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	_, err = ReadKubelet(t.Context(), filepath.Join(dir, "dead"))
	require.ErrorContains(t, err, "refused")
}

func TestALaggingKubeletIsWaitedFor(t *testing.T) {
	n := newNode(t)
	n.Settle = time.Minute
	first := &n.state.DevicePlugin.Resources[0].Devices[0]
	first.Health, first.Reason = nodestate.Unhealthy, gpu.ReasonXID
	require.NoError(t, nodestate.Write(n.StatePath(nodestate.DevicePlugin), n.state))
	asked := 0
	o := checkPlugin(t.Context(), n.Node, n.driver, func(context.Context, string) (Account, error) {
		if asked++; asked == 3 {
			delete(n.kubelet.Allocatable[resource], id(0))
		}
		return n.kubelet, nil
	}, nil)
	require.Equal(t, check.Passed, o.Kind, "%+v", o.NotReady)
	require.Equal(t, 3, asked)
}

func TestHeldReturnsThePodsDevices(t *testing.T) {
	k := newNode(t).kubelet
	k.Allocated["nvidia.com/gpu.shared"] = map[string]string{"a::1": "default/job", "a::0": "default/other"}
	require.Equal(t, []string{id(0), "a::1"}, k.Held("default/job"))
	require.Empty(t, k.Held("default/none"))
}

func TestFreeNamesAResourceWithAFreeDevice(t *testing.T) {
	k := newNode(t).kubelet
	resources := map[string]int{resource: 3}
	require.Equal(t, resource, k.Free(resources))
	k.Allocated[resource][id(1)], k.Allocated[resource][id(2)] = "default/a", "default/b"
	require.Empty(t, k.Free(resources))
	require.Empty(t, k.Free(nil), "what others offer is none of ours")

	k.Allocated[resource] = map[string]string{id(1): "default/a"}
	k.Allocatable[resource] = map[string]bool{id(2): true}
	require.Empty(t, k.Free(resources), "a pod holds one that broke: the scheduler counts it, and has none left to give")
}

func TestManyDevicesAreCounted(t *testing.T) {
	require.Equal(t, "a, b, c and 5 more", listSome([]string{"a", "b", "c", "d", "e", "f", "g", "h"}))
	require.Equal(t, "a, b, c", listSome([]string{"a", "b", "c"}))
}

func TestTheKubeletsAccountHasClaims(t *testing.T) {
	container := func(driver string, devices ...string) *podresources.ContainerResources {
		r := &podresources.ClaimResource{DriverName: driver}
		for _, d := range devices {
			r.CdiDevices = append(r.CdiDevices, &podresources.CDIDevice{Name: d})
		}
		return &podresources.ContainerResources{Name: "main", DynamicResources: []*podresources.DynamicResource{{ClaimResources: []*podresources.ClaimResource{r}}}}
	}
	a := collectAccount(&podresources.AllocatableResourcesResponse{}, &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "team", Name: "a", Containers: []*podresources.ContainerResources{container("gpu.nvidia.com", "k8s.gpuready.io/gpu=GPU-0", "k8s.gpuready.io/mps=GPU-0")}},
		{Namespace: "team", Name: "b", Containers: []*podresources.ContainerResources{container("gpu.nvidia.com", "k8s.gpuready.io/gpu=GPU-0"), container("dra.net", "x=GPU-1")}},
	}})
	require.Equal(t, map[gpu.UUID][]string{"GPU-0": {"team/a", "team/b"}}, a.Claimed)
}
