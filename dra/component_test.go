package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpuready/gpuready/dra/claim"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/built"
)

// node is a machine in a folder: the state of a device plugin, the toolkit's CDI specification, device
// nodes, a kubelet, and an API server.
type node struct {
	*kubelet
	t      *testing.T
	dir    string
	api    *apiServer
	plugin io.Closer // holds the device plugin's state
	state  nodestate.State
}

func gpuID(i int) gpu.UUID { return gpu.UUID(fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", i)) }

func newNode(t *testing.T) *node {
	dir, err := os.MkdirTemp("", "dra") // the paths of sockets must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, api: newAPIServer(t)}
	for _, folder := range []string{"plugins", "plugins_registry", "host/dev", "host/var/run/cdi"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o755))
	}
	n.kubelet = newKubelet(t, dir)
	n.state = nodestate.State{
		Component: nodestate.DevicePlugin, Phase: nodestate.Ready, Driver: &nodestate.DriverInfo{Root: "/", Version: "580.95.05", CUDAVersion: "13.0", Simulated: true},
		DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA},
	}
	for i := range 4 {
		n.state.DevicePlugin.Inventory = append(n.state.DevicePlugin.Inventory, nodestate.GPU{
			UUID: gpuID(i), Index: i, Minor: i, Product: "SIMULATED NVIDIA H100", MemoryBytes: 80 << 30, Condition: nodestate.Condition{Health: nodestate.Healthy}})
		require.NoError(t, syscall.Mknod(filepath.Join(dir, "host/dev", fmt.Sprintf("nvidia%d", i)), syscall.S_IFCHR|0o666, 1<<8|3))
	}
	n.writeSpec(0, 1, 2, 3)
	n.writeState()
	return n
}

// writeSpec writes the toolkit's specification with some of the GPUs.
func (n *node) writeSpec(gpus ...int) {
	type item = map[string]any
	devices := []item{}
	for _, i := range gpus {
		devices = append(devices, item{"name": gpuID(i), "containerEdits": item{"deviceNodes": []item{{"path": fmt.Sprintf("/dev/nvidia%d", i)}}}})
	}
	data, err := json.Marshal(item{"cdiVersion": "0.6.0", "kind": "k8s.gpuready.io/gpu", "devices": devices})
	require.NoError(n.t, err)
	require.NoError(n.t, os.WriteFile(filepath.Join(n.dir, "host/var/run/cdi/gpu.json"), data, 0o644))
	names := []string{}
	for _, i := range gpus {
		names = append(names, string(gpuID(i)))
	}
	n.writeToolkit(nodestate.Spec{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.json", Devices: names})
}

// writeToolkit writes the toolkit's state.
func (n *node) writeToolkit(specs ...nodestate.Spec) {
	require.NoError(n.t, nodestate.Write(filepath.Join(n.dir, "host/state/toolkit"), nodestate.State{
		Component: nodestate.Toolkit, Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{Specs: specs}}))
}

// writeState writes the state as a living device plugin does.
func (n *node) writeState() {
	dir := filepath.Join(n.dir, "host/state/deviceplugin")
	require.NoError(n.t, nodestate.Write(dir, n.state))
	if n.plugin == nil {
		held, err := nodestate.Hold(dir)
		require.NoError(n.t, err)
		n.plugin = held
		n.t.Cleanup(func() { _ = held.Close() })
		require.NoError(n.t, nodestate.Write(dir, n.state))
	}
}

// start starts the driver in a pod.
func (n *node) start(podUID string, args ...string) *built.Process {
	return built.Start(n.t, "gpu-dra-driver", append([]string{
		"--node-name=node-1", "--pod-uid=" + podUID, "--kubeconfig=" + n.api.kubeconfig(n.t, n.dir), "--kubelet-dir=" + n.dir, "--pod-resources-socket=" + filepath.Join(n.dir, "kubelet.sock"),
		"--host-root=" + filepath.Join(n.dir, "host"), "--state-dir=/state", "--listen=", "--silence-limit=100ms", "--check-device-nodes",
	}, args...))
}

// claim makes a claim with allocated GPUs, in the API.
func (n *node) claim(name string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: "gpu.nvidia.com", Pool: "node-1", Device: d})
	}
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	n.api.claims["team/"+name] = c
	return c
}

// waitDevices waits until the published devices are as wanted.
func (n *node) waitDevices(why string, wanted func(map[string]resourceapi.Device) bool) {
	n.t.Helper()
	limit := time.After(time.Minute)
	for {
		devices, changed := n.api.devices()
		if wanted(devices) {
			return
		}
		select {
		case <-changed:
		case <-limit:
			n.t.Fatalf("%s: the slices hold %v", why, devices)
		}
	}
}

func (n *node) store() claim.Store {
	boot, err := nodestate.BootID()
	require.NoError(n.t, err)
	return claim.Store{Path: filepath.Join(n.dir, "plugins/gpu.nvidia.com/checkpoint.json"), BootID: boot}
}

func tainted(name, reason string) func(map[string]resourceapi.Device) bool {
	return func(devices map[string]resourceapi.Device) bool {
		d := devices[name]
		return len(devices) == 4 && len(d.Taints) == 1 && d.Taints[0].Value == reason && d.Taints[0].Effect == resourceapi.DeviceTaintEffectNoSchedule
	}
}

func untainted(devices map[string]resourceapi.Device) bool {
	for _, d := range devices {
		if len(d.Taints) > 0 {
			return false
		}
	}
	return len(devices) == 4
}

func TestDevicesAreTaintedWhileTheyAreUnhealthy(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.start("pod-1")
	n.waitDevices("at the start", untainted)
	healthy := n.state.DevicePlugin.Inventory[2].Condition
	since := time.Unix(1700000000, 0).UTC()
	n.state.DevicePlugin.Inventory[2].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79", Since: since}
	n.writeState()
	n.waitDevices("after an XID", func(devices map[string]resourceapi.Device) bool {
		return tainted("gpu-2", "XID")(devices) && devices["gpu-2"].Taints[0].TimeAdded.Unix() == since.Unix() && len(devices["gpu-1"].Taints) == 0
	})
	n.api.mu.Lock()
	before := n.api.version
	n.api.mu.Unlock()
	for range 3 {
		n.writeState()
	}
	time.Sleep(500 * time.Millisecond)
	n.api.mu.Lock()
	require.Equal(t, before, n.api.version, "what has not changed is not written again")
	n.api.mu.Unlock()
	n.state.DevicePlugin.Inventory[2].Condition = healthy
	n.writeState()
	n.waitDevices("after its end", untainted)

	require.NoError(t, n.plugin.Close())
	n.waitDevices("after the device plugin's death", tainted("gpu-0", "DevicePluginSilent"))
	n.plugin = nil
	n.writeState()
	n.waitDevices("after its return", untainted)
	require.NoError(t, os.Remove(filepath.Join(n.dir, "host/state/deviceplugin/state.json")))
	n.waitDevices("without the state", tainted("gpu-3", "InventoryUnknown"))
	n.writeState()
	n.waitDevices("with it", untainted)
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "host/state/deviceplugin/state.json"), []byte("{"), 0o644))
	n.waitDevices("with a broken one", tainted("gpu-3", "InventoryInvalid"))

	n.state.DevicePlugin.Serve = nodestate.ServePlugin
	n.writeState()
	n.waitDevices("with the device plugin in service", func(devices map[string]resourceapi.Device) bool { return len(devices) == 0 })
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	require.Empty(t, n.api.refused, "it asks for nothing that its role lacks")
	_ = p
}

func TestTheKubeletGetsCDINames(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	p := n.start("pod-1")
	client := n.register(t, "pod-1")
	first, second := n.claim("first", "gpu-0", "gpu-1"), n.claim("second", "gpu-1")
	for range 2 {
		names, refusal, err := prepare(t.Context(), client, first)
		require.NoError(t, err)
		require.Empty(t, refusal)
		require.Equal(t, []string{"k8s.gpuready.io/gpu=" + string(gpuID(0)), "k8s.gpuready.io/gpu=" + string(gpuID(1))}, names)
	}
	_, refusal, err := prepare(t.Context(), client, second)
	require.NoError(t, err)
	require.Contains(t, refusal, "claim team/second: device gpu-1 ("+string(gpuID(1))+") is in use by claim team/first (uid-first); next: ")

	n.hold(&podresources.PodResources{Namespace: "team", Name: "old", Containers: []*podresources.ContainerResources{{Name: "main", Devices: []*podresources.ContainerDevices{
		{ResourceName: "nvidia.com/gpu", DeviceIds: []string{string(gpuID(2)) + "::1"}}}}}})
	_, refusal, err = prepare(t.Context(), client, n.claim("third", "gpu-2"))
	require.NoError(t, err)
	require.Contains(t, refusal, "in use by pod team/old, by the resource nvidia.com/gpu of the device plugin")

	n.writeSpec(0, 1, 2)
	_, refusal, err = prepare(t.Context(), client, n.claim("fourth", "gpu-3"))
	require.NoError(t, err)
	require.Contains(t, refusal, "no container can be given it: gpu-toolkit does not name k8s.gpuready.io/gpu="+string(gpuID(3)))
	n.writeToolkit(nodestate.Spec{Kind: "k8s.gpuready.io/gpu", Path: "/var/run/cdi/gpu.json", Devices: []string{string(gpuID(3))}})
	_, refusal, err = prepare(t.Context(), client, n.claim("fourth", "gpu-3"))
	require.NoError(t, err)
	require.Contains(t, refusal, "no container can be given it: CDI device cannot be resolved")
	n.writeSpec(0, 1, 2, 3)
	require.NoError(t, os.Rename(filepath.Join(n.dir, "host/dev/nvidia3"), filepath.Join(n.dir, "nvidia3")))
	_, refusal, err = prepare(t.Context(), client, n.claim("fourth", "gpu-3"))
	require.NoError(t, err)
	require.Contains(t, refusal, "device node /dev/nvidia3")
	require.NoError(t, os.Rename(filepath.Join(n.dir, "nvidia3"), filepath.Join(n.dir, "host/dev/nvidia3")))
	names, refusal, err := prepare(t.Context(), client, n.claim("fourth", "gpu-3"))
	require.NoError(t, err)
	require.Empty(t, refusal)
	require.Len(t, names, 1)

	refusal, err = unprepare(t.Context(), client, first)
	require.NoError(t, err)
	require.Empty(t, refusal)
	names, _, err = prepare(t.Context(), client, second)
	require.NoError(t, err)
	require.Len(t, names, 1)

	require.NoError(t, p.Signal(syscall.SIGTERM))
	code, err := p.Wait(t.Context())
	require.NoError(t, err)
	require.Zero(t, code)
	left, err := os.ReadDir(filepath.Join(n.dir, "plugins_registry"))
	require.NoError(t, err)
	require.Empty(t, left, "it has unregistered")
}

// During an update the kubelet may ask either instance.
func TestTwoInstancesShareTheirRecord(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start("pod-1")
	older := n.register(t, "pod-1")
	n.start("pod-2")
	newer := n.register(t, "pod-2")
	a := n.claim("a", "gpu-0")
	names, refusal, err := prepare(t.Context(), older, a)
	require.NoError(t, err)
	require.Empty(t, refusal)
	require.Len(t, names, 1)
	_, refusal, err = prepare(t.Context(), newer, n.claim("b", "gpu-0"))
	require.NoError(t, err)
	require.Contains(t, refusal, "in use by claim team/a")
	refusal, err = unprepare(t.Context(), newer, a)
	require.NoError(t, err)
	require.Empty(t, refusal)
	names, _, err = prepare(t.Context(), older, n.claim("b", "gpu-0"))
	require.NoError(t, err)
	require.Len(t, names, 1)
}

// Claims compete for two GPUs while the driver is killed at any time. The kubelet's account stays empty:
// the record alone must hold.
func TestNoDeviceIsHeldTwiceHoweverTheDriverDies(t *testing.T) {
	t.Parallel()
	rounds := 20
	if !testing.Short() {
		rounds = 40
	}
	n := newNode(t)
	log := slog.New(slog.DiscardHandler)
	var claims []*resourceapi.ResourceClaim
	for i := range 6 {
		claims = append(claims, n.claim(fmt.Sprintf("c%d", i), fmt.Sprintf("gpu-%d", i%2)))
	}
	holders := map[string]string{} // by device, a claim that was prepared and not asked to end since
	prepared := 0
	window := 60 * time.Millisecond // within which it is killed
	for round := range rounds {
		if round > 0 && prepared == 0 {
			window = min(2*window, 4*time.Second) // a busy machine answers nothing in so short a time
		}
		p := n.start("pod-1")
		client := n.register(t, "pod-1")
		ctx, cancel := context.WithCancel(t.Context())
		var killer sync.WaitGroup
		killer.Go(func() {
			time.Sleep(rand.N(window))
			_ = p.Signal(syscall.SIGKILL)
			cancel()
		})
		for ctx.Err() == nil {
			c := claims[rand.IntN(len(claims))]
			device := c.Status.Allocation.Devices.Results[0].Device
			if rand.IntN(2) == 0 {
				names, refusal, err := prepare(ctx, client, c)
				if err != nil || refusal != "" {
					continue
				}
				require.Len(t, names, 1)
				if by := holders[device]; by != "" && by != c.Name {
					t.Fatalf("round %d: %s was given to claim %s while %s holds it", round, device, c.Name, by)
				}
				holders[device] = c.Name
				prepared++
				continue
			}
			if holders[device] == c.Name {
				delete(holders, device) // the driver may end it even if it dies before it answers
			}
			_, _ = unprepare(ctx, client, c)
		}
		killer.Wait()
		_, err := p.Wait(t.Context())
		require.NoError(t, err)
		record, err := n.store().Load(log)
		require.NoError(t, err)
		seen := map[string]bool{}
		for _, c := range record.Claims {
			require.False(t, seen[c.Devices[0].Name], "round %d: two claims hold %s", round, c.Devices[0].Name)
			seen[c.Devices[0].Name] = true
		}
		for device, name := range holders {
			require.True(t, slices.ContainsFunc(record.Claims, func(c claim.Prepared) bool { return c.Name == name && c.Devices[0].Name == device }), "round %d: %s of claim %s is forgotten", round, device, name)
		}
	}
	require.Positive(t, prepared)
	aside, err := filepath.Glob(n.store().Path + ".bad-*")
	require.NoError(t, err)
	require.Empty(t, aside, "the record could be read after every kill")
}
