package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

const (
	boot  = "00000000-0000-4000-8000-000000000000"
	later = "00000000-0000-4000-8000-000000000001"
)

// bench is a Preparer with everything that it depends on, to change.
type bench struct {
	Preparer
	gpus        []nodestate.GPU
	problem     inventory.Problem
	allocations []Allocation
	kubelet     error
	cdi         map[gpu.UUID]error
	claims      map[types.NamespacedName]*resourceapi.ResourceClaim
	api         error
	mps         error
	serve       string // who offers the GPUs, by the change switchID
	switchID    string
}

func newBench(t *testing.T) *bench {
	b := &bench{serve: nodestate.ServeDRA, cdi: map[gpu.UUID]error{}, claims: map[types.NamespacedName]*resourceapi.ResourceClaim{}}
	for i := range 4 {
		b.gpus = append(b.gpus, nodestate.GPU{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Minor: i, Condition: nodestate.Condition{Health: nodestate.Healthy}})
	}
	b.Preparer = Preparer{
		Store: Store{Path: filepath.Join(t.TempDir(), "checkpoint.json"), BootID: boot}, Pool: "node-1", Log: slog.New(slog.DiscardHandler),
		Inventory: func() inventory.Inventory {
			return inventory.New(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Serve: b.serve, SwitchID: b.switchID, Inventory: b.gpus}}, b.problem, nil)
		},
		CDIName:     func(id gpu.UUID) (string, error) { return "k8s.gpuready.io/gpu=" + string(id), b.cdi[id] },
		MPSName:     func(id gpu.UUID) (string, error) { return "k8s.gpuready.io/mps=" + string(id), b.mps },
		Allocations: func(context.Context) ([]Allocation, error) { return b.allocations, b.kubelet },
		Claim: func(_ context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			if c := b.claims[types.NamespacedName{Namespace: namespace, Name: name}]; c != nil {
				return c, nil
			}
			if b.api != nil {
				return nil, b.api
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
		},
	}
	return b
}

// allocated returns a claim with the devices allocated on node-1.
func allocated(name string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for i, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("gpu%d", i), Driver: inventory.Driver, Pool: "node-1", Device: d})
	}
	return c
}

func withConfig(c *resourceapi.ResourceClaim, parameters string, requests ...string) *resourceapi.ResourceClaim {
	c.Status.Allocation.Devices.Config = append(c.Status.Allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
		Source: resourceapi.AllocationConfigSourceClaim, Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: inventory.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}}},
	})
	return c
}

func asAdmin(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	for i := range c.Status.Allocation.Devices.Results {
		c.Status.Allocation.Devices.Results[i].AdminAccess = new(true)
	}
	return c
}

// asShare makes the devices shares that count for that many.
func asShare(c *resourceapi.ResourceClaim, shares int64) *resourceapi.ResourceClaim {
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		r.ShareID = new(types.UID(fmt.Sprintf("share-%s-%d", c.Name, i)))
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{inventory.CapacityShares: *resource.NewQuantity(shares, resource.DecimalSI)}
	}
	return c
}

func (b *bench) prepare(c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	r := b.Prepare(context.Background(), []*resourceapi.ResourceClaim{c})[c.UID]
	return r.Devices, r.Err
}

func (b *bench) unprepare(c *resourceapi.ResourceClaim) error {
	return b.Unprepare(context.Background(), []kubeletplugin.NamespacedObject{{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: c.Name}, UID: c.UID}})[c.UID]
}

func (b *bench) requirePrepared(t *testing.T, c *resourceapi.ResourceClaim, uuids ...string) {
	t.Helper()
	devices, err := b.prepare(c)
	require.NoError(t, err)
	var got []string
	for _, d := range devices {
		require.Equal(t, "node-1", d.PoolName)
		got = append(got, d.CDIDeviceIDs...)
	}
	var want []string
	for _, id := range uuids {
		want = append(want, "k8s.gpuready.io/gpu="+id)
	}
	require.Equal(t, want, got)
}

func (b *bench) requireRefused(t *testing.T, c *resourceapi.ResourceClaim, parts ...string) {
	t.Helper()
	devices, err := b.prepare(c)
	require.Error(t, err)
	require.Empty(t, devices)
	for _, part := range append(parts, "claim team/"+c.Name+": ") {
		require.ErrorContains(t, err, part)
	}
	record, failed := b.Store.Load(b.Log)
	require.NoError(t, failed)
	require.Nil(t, record.Find(c.UID), "a refused claim is not recorded")
}

func TestPrepareIsIdempotentAndUnprepareEndsIt(t *testing.T) {
	b := newBench(t)
	c := allocated("job", "gpu-0", "gpu-3")
	for range 2 {
		b.requirePrepared(t, c, "GPU-0", "GPU-3")
	}
	devices, err := b.prepare(c)
	require.NoError(t, err)
	require.Equal(t, []string{"gpu0"}, devices[0].Requests)
	require.Equal(t, "gpu-0", devices[0].DeviceName)
	record, err := b.Store.Load(b.Log)
	require.NoError(t, err)
	require.Len(t, record.Claims, 1)
	for range 2 {
		require.NoError(t, b.unprepare(c))
	}
	b.requirePrepared(t, allocated("next", "gpu-0"), "GPU-0")
}

// A GPU has another number after its driver was loaded again, or a MIG device was made again.
func TestANameThatMeansAnotherDeviceIsRefused(t *testing.T) {
	b := newBench(t)
	c := allocated("job", "gpu-0")
	b.requirePrepared(t, c, "GPU-0")
	b.gpus[0].UUID, b.gpus[1].UUID = b.gpus[1].UUID, b.gpus[0].UUID
	_, err := b.prepare(c)
	require.ErrorContains(t, err, "claim team/job: device gpu-0 was GPU-0 when the claim was prepared, and is GPU-1 now; next: ")
	b.requireRefused(t, allocated("other", "gpu-1"), "device gpu-1 (GPU-0) is in use by claim team/job")
	require.NoError(t, b.unprepare(c))
	b.requirePrepared(t, c, "GPU-1")
}

func TestDoubleUseIsRefused(t *testing.T) {
	b := newBench(t)
	b.requirePrepared(t, allocated("first", "gpu-0", "gpu-1"), "GPU-0", "GPU-1")
	b.requireRefused(t, allocated("second", "gpu-1"), "device gpu-1 (GPU-1) is in use by claim team/first (uid-first); next: ")
	b.requirePrepared(t, allocated("third", "gpu-2"), "GPU-2")
	b.requirePrepared(t, asAdmin(allocated("watch", "gpu-0", "gpu-3")), "GPU-0", "GPU-3")
	b.requirePrepared(t, allocated("fourth", "gpu-3"), "GPU-3")

	results := newBench(t).Prepare(t.Context(), []*resourceapi.ResourceClaim{allocated("a", "gpu-0"), allocated("b", "gpu-0")})
	require.NoError(t, results["uid-a"].Err)
	require.ErrorContains(t, results["uid-b"].Err, "in use by claim team/a", "within one call, too")
}

func TestSharesAreHeldTogether(t *testing.T) {
	b := newBench(t)
	b.gpus[0].Sharing = &nodestate.Sharing{Shares: 4}
	one, two := asShare(allocated("one", "gpu-0"), 1), asShare(allocated("two", "gpu-0", "gpu-0"), 1)
	for range 2 {
		b.requirePrepared(t, one, "GPU-0")
		b.requirePrepared(t, two, "GPU-0", "GPU-0")
	}
	devices, err := b.prepare(two)
	require.NoError(t, err)
	require.Equal(t, types.UID("share-two-1"), *devices[1].ShareID, "the kubelet knows them by it")
	b.requireRefused(t, allocated("whole", "gpu-0"), "device gpu-0 (GPU-0) is in use by claim team/")
	b.requireRefused(t, asShare(allocated("more", "gpu-0"), 2), "device gpu-0 (GPU-0) has 4 shares, and 3 of them are in use, by claim team/two (uid-two) among others; next: ")
	b.requirePrepared(t, asShare(allocated("last", "gpu-0"), 1), "GPU-0")
	b.gpus[2].Sharing = &nodestate.Sharing{Shares: 2} // fewer than when the scheduler chose it
	b.requireRefused(t, asShare(allocated("three", "gpu-2", "gpu-2", "gpu-2"), 1), "device gpu-2 (GPU-2) has 2 shares, and this claim wants 3; next: ")
	b.requireRefused(t, asShare(allocated("three", "gpu-2"), 3), "device gpu-2 (GPU-2) has 2 shares, and this claim wants 3; next: ")
	b.requirePrepared(t, asAdmin(allocated("watch", "gpu-0")), "GPU-0")
	b.requirePrepared(t, allocated("other", "gpu-1"), "GPU-1")

	b.gpus[0].Sharing = nil // the configuration has changed: what runs goes on
	b.requirePrepared(t, one, "GPU-0")
	require.NoError(t, b.unprepare(two))
	b.requireRefused(t, allocated("whole", "gpu-0"), "in use by claim team/")
	require.NoError(t, b.unprepare(one))
	require.NoError(t, b.unprepare(asShare(allocated("last", "gpu-0"), 1)))
	b.requirePrepared(t, allocated("whole", "gpu-0"), "GPU-0")
	b.gpus[0].Sharing = &nodestate.Sharing{Shares: 4}
	b.requireRefused(t, asShare(allocated("late", "gpu-0"), 1), "in use by claim team/whole")
}

func TestSharesByMPSGetItsPipes(t *testing.T) {
	b := newBench(t)
	b.gpus[0].Sharing = &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu"}
	const head = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":`
	want := []string{"k8s.gpuready.io/gpu=GPU-0", "k8s.gpuready.io/mps=GPU-0"}
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"by configuration": withConfig(asShare(allocated("one", "gpu-0"), 1), head+`"MPS"}}`),
		"without one":      asShare(allocated("two", "gpu-0"), 1),
		"the last counts":  withConfig(withConfig(asShare(allocated("three", "gpu-0"), 1), head+`"TimeSlicing"}}`), head+`"MPS"}}`, "gpu0"),
	} {
		for range 2 {
			devices, err := b.prepare(c)
			require.NoError(t, err, name)
			require.Equal(t, want, devices[0].CDIDeviceIDs, name)
		}
	}
	b.requireRefused(t, withConfig(asShare(allocated("sliced", "gpu-0"), 1), head+`"TimeSlicing"}}`), "device gpu-0 is shared by MPS on this node; next: ")
	b.mps = errors.New("no specification has it")
	b.requireRefused(t, asShare(allocated("late", "gpu-0"), 1), "its control daemon cannot be reached: no specification has it; next: ")
	b.requirePrepared(t, allocated("whole", "gpu-1"), "GPU-1")
}

// The scheduler does not know what the device plugin has given.
func TestASharedGPUOfTheDevicePluginIsNotShared(t *testing.T) {
	b := newBench(t)
	b.gpus[0].Sharing = &nodestate.Sharing{Shares: 4}
	b.allocations = []Allocation{{Pod: "team/old", Resource: "nvidia.com/gpu.shared", UUID: "GPU-0"}}
	b.requireRefused(t, asShare(allocated("share", "gpu-0"), 1), "in use by pod team/old")
}

func TestALostRecordOfSharesIsMadeUpFor(t *testing.T) {
	b := newBench(t)
	b.gpus[0].Sharing, b.gpus[1].Sharing = &nodestate.Sharing{Shares: 4}, &nodestate.Sharing{Shares: 4}
	b.gpus[2].MIGEnabled = true
	b.gpus[2].MIG = []nodestate.MIGDevice{{UUID: "MIG-0", Profile: "1g.10gb", Condition: nodestate.Condition{Health: nodestate.Healthy}}}
	shares, mixed := asShare(allocated("shares", "gpu-0"), 3), allocated("mixed", "gpu-1", "gpu-3")
	mixed.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	for _, c := range []*resourceapi.ResourceClaim{shares, mixed} {
		name := types.NamespacedName{Namespace: c.Namespace, Name: c.Name}
		b.claims[name] = c
		for _, r := range c.Status.Allocation.Devices.Results {
			for _, pod := range []string{"team/a", "team/b"} { // both have the claim
				b.allocations = append(b.allocations, Allocation{Pod: pod, Claim: name, Pool: "node-1", Device: r.Device})
			}
		}
	}
	b.requireRefused(t, allocated("whole", "gpu-0"), "in use by claim team/shares of pod team/a")
	b.requireRefused(t, asShare(allocated("two", "gpu-0"), 2), "has 4 shares, and 3 of them are in use")
	b.requirePrepared(t, asShare(allocated("one", "gpu-0"), 1), "GPU-0")
	b.requirePrepared(t, allocated("watched", "gpu-1"), "GPU-1")
	b.requireRefused(t, allocated("thief", "gpu-3"), "in use by claim team/mixed of pod team/a")
}

// The GPU was divided while the device plugin served it, and is whole now.
func TestAMIGDeviceOfTheDevicePluginHoldsItsGPU(t *testing.T) {
	b := newBench(t)
	b.gpus[0].MIG = []nodestate.MIGDevice{{UUID: "MIG-00000000-0000-4000-8000-000000000000", Condition: nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonMissing}}}
	b.allocations = []Allocation{{Pod: "team/old", Resource: "nvidia.com/mig-1g.10gb", UUID: b.gpus[0].MIG[0].UUID}}
	b.requireRefused(t, allocated("whole", "gpu-0"), "in use by pod team/old")
}

func TestAMIGDeviceAndItsGPUExcludeEachOther(t *testing.T) {
	b := newBench(t)
	whole := b.gpus[0]
	b.gpus[0].MIGEnabled = true
	for i := range 2 {
		b.gpus[0].MIG = append(b.gpus[0].MIG, nodestate.MIGDevice{UUID: gpu.UUID(fmt.Sprintf("MIG-%d", i)), Profile: "1g.10gb", GPUInstance: i, Condition: nodestate.Condition{Health: nodestate.Healthy}})
	}
	b.requirePrepared(t, allocated("one", "gpu-0-mig-1g10gb-0-0"), "MIG-0")
	b.requirePrepared(t, allocated("two", "gpu-0-mig-1g10gb-1-0"), "MIG-1")
	b.gpus[0] = whole
	b.requireRefused(t, allocated("whole", "gpu-0"), "in use by claim team/one")
}

func TestWhatTheDevicePluginHasGivenIsRefused(t *testing.T) {
	b := newBench(t)
	b.allocations = []Allocation{{Pod: "team/old", Resource: "nvidia.com/gpu", UUID: "GPU-1"}}
	b.requireRefused(t, allocated("job", "gpu-1"), "device gpu-1 (GPU-1) is in use by pod team/old, by the resource nvidia.com/gpu of the device plugin; next: ")
	b.requirePrepared(t, allocated("job", "gpu-0"), "GPU-0")
	b.kubelet = errors.New("connection refused")
	b.requireRefused(t, allocated("other", "gpu-2"), "connection refused", "; next: ")
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bench)
		claim  *resourceapi.ResourceClaim
		want   string
	}{
		"of another node": {claim: func() *resourceapi.ResourceClaim {
			c := allocated("job", "gpu-0")
			c.Status.Allocation.Devices.Results[0].Pool = "node-2"
			return c
		}(), want: "device gpu-0 is of pool node-2"},
		"a device that is gone": {claim: allocated("job", "gpu-9"), want: "device gpu-9 is not on this node any more; next: "},
		"no inventory": {change: func(b *bench) {
			b.gpus = nil
			b.problem = inventory.Problem{Reason: inventory.ReasonUnknown, Action: "wait"}
		}, claim: allocated("job", "gpu-0"), want: "InventoryUnknown"},
		"no CDI name": {change: func(b *bench) { b.cdi["GPU-0"] = errors.New("no specification has it") }, claim: allocated("job", "gpu-0"), want: "device gpu-0 (GPU-0): no container can be given it: no specification has it; next: "},
		"unhealthy": {change: func(b *bench) {
			b.gpus[0].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID, Message: "XID 79", Action: "reset it"}
		}, claim: allocated("job", "gpu-0"), want: "device gpu-0 (GPU-0) is unhealthy: XID: XID 79; next: reset it"},
		"a share":       {claim: asShare(allocated("job", "gpu-0"), 1), want: "device gpu-0 (GPU-0) is not shared any more; next: "},
		"not allocated": {claim: &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: "u"}}, want: "it is not allocated"},
		"configuration": {claim: withConfig(allocated("job", "gpu-0"), `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`), want: "configuration of the claim for all requests: parameters.sharing.strategy: no MPS control daemon serves device gpu-0; next: "},
		"wrong kind":    {claim: withConfig(allocated("job", "gpu-0"), `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig"}`, "gpu0"), want: "configuration of the claim for request gpu0: parameters.kind: MigDeviceConfig does not fit device gpu-0 of request gpu0; next: write GpuConfig"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.change != nil {
				c.change(b)
			}
			b.requireRefused(t, c.claim, c.want)
		})
	}
}

func TestAPreparedClaimKeepsADeviceThatBreaks(t *testing.T) {
	b := newBench(t)
	c := allocated("job", "gpu-0")
	b.requirePrepared(t, c, "GPU-0")
	b.gpus[0].Condition = nodestate.Condition{Health: nodestate.Unhealthy, Reason: gpu.ReasonXID}
	b.requirePrepared(t, c, "GPU-0")
	tolerant := allocated("repair", "gpu-1")
	b.gpus[1].Condition = b.gpus[0].Condition
	tolerant.Status.Allocation.Devices.Results[0].Tolerations = []resourceapi.DeviceToleration{{Key: inventory.TaintKey, Operator: resourceapi.DeviceTolerationOpExists}}
	b.requirePrepared(t, tolerant, "GPU-1")
}

func TestClaimsOfOtherDriversAreNotOurs(t *testing.T) {
	b := newBench(t)
	c := allocated("domain", "channel-0")
	c.Status.Allocation.Devices.Results[0].Driver = "compute-domain.nvidia.com"
	b.requirePrepared(t, c)
}

func TestALostRecordIsMadeUpForByTheKubelet(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"truncated":   func(data []byte) []byte { return data[:len(data)/2] },
		"empty":       func([]byte) []byte { return nil },
		"flipped":     func(data []byte) []byte { data[len(data)-20] ^= 1; return data },
		"NVIDIA's":    func([]byte) []byte { return []byte(`{"checksum":1234,"v1":{"preparedClaims":{}},"v2":{}}`) },
		"a later one": func([]byte) []byte { return []byte(`{"version":2,"checksum":"","data":{}}`) },
		"listed twice": func([]byte) []byte {
			return mustEncode(&Checkpoint{BootID: boot, Claims: []Prepared{{UID: "a"}, {UID: "a"}}})
		},
		"without a UUID": func([]byte) []byte {
			return mustEncode(&Checkpoint{BootID: boot, Claims: []Prepared{{UID: "a", Devices: []PreparedDevice{{Name: "gpu-0"}}}}})
		},
		"with more keys": func([]byte) []byte { return []byte(`{"version":1,"checksum":"","data":{},"more":1}`) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			holder, watcher := allocated("holder", "gpu-0"), asAdmin(allocated("watcher", "gpu-1"))
			b.requirePrepared(t, holder, "GPU-0")
			data, err := os.ReadFile(b.Store.Path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(b.Store.Path, damage(data), 0o644))
			b.allocations = []Allocation{
				{Pod: "team/a", Claim: types.NamespacedName{Namespace: "team", Name: "holder"}, Pool: "node-1", Device: "gpu-0"},
				{Pod: "team/b", Claim: types.NamespacedName{Namespace: "team", Name: "watcher"}, Pool: "node-1", Device: "gpu-1"},
				{Pod: "team/c", Claim: types.NamespacedName{Namespace: "team", Name: "deleted"}, Pool: "node-1", Device: "gpu-2"},
				{Pod: "team/d", Claim: types.NamespacedName{Namespace: "team", Name: "elsewhere"}, Pool: "node-2", Device: "gpu-3"},
			}
			for _, c := range []*resourceapi.ResourceClaim{holder, watcher} {
				b.claims[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
			}
			b.requireRefused(t, allocated("thief", "gpu-0"), "in use by claim team/holder of pod team/a")
			b.requireRefused(t, allocated("thief", "gpu-2"), "in use by claim team/deleted of pod team/c")
			b.requirePrepared(t, allocated("other", "gpu-1", "gpu-3"), "GPU-1", "GPU-3")
			b.requirePrepared(t, holder, "GPU-0")
			aside, err := filepath.Glob(b.Store.Path + ".bad-*")
			require.NoError(t, err)
			require.Len(t, aside, 1, "a person can look at it")
		})
	}
}

func TestAnUnknownHolderIsNotGuessed(t *testing.T) {
	b := newBench(t)
	unknown := Allocation{Pod: "team/a", Claim: types.NamespacedName{Namespace: "team", Name: "x"}, Pool: "node-1", Device: "gpu-0"}
	b.requirePrepared(t, allocated("known", "gpu-2"), "GPU-2")
	b.allocations = []Allocation{{Pod: "team/a", Claim: types.NamespacedName{Namespace: "team", Name: "known"}, Pool: "node-1", Device: "gpu-2"}}
	b.api = errors.New("connection refused")
	b.requirePrepared(t, allocated("next", "gpu-3"), "GPU-3")
	b.allocations = append(b.allocations, unknown)
	b.requireRefused(t, allocated("job", "gpu-1"), "a pod holds claim team/x, which the record of prepared claims lacks", "connection refused", "; next: ")
}

func TestARebootPreparesAgain(t *testing.T) {
	b := newBench(t)
	b.requirePrepared(t, allocated("before", "gpu-0"), "GPU-0")
	b.Store.BootID = later
	b.requirePrepared(t, allocated("after", "gpu-0"), "GPU-0")
	require.NoError(t, b.unprepare(allocated("before", "gpu-0")))
	b.requireRefused(t, allocated("third", "gpu-0"), "in use by claim team/after")
}

func TestAFullDiskPreparesNothing(t *testing.T) {
	b := newBench(t)
	b.requirePrepared(t, allocated("first", "gpu-0"), "GPU-0")
	dir := filepath.Dir(b.Store.Path)
	full := filepath.Join(dir, "full")
	require.NoError(t, os.Mkdir(full, 0o755))
	b.Store.Path = filepath.Join(full, "x", "checkpoint.json")
	require.NoError(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o644)) // no folder can be made
	_, err := b.prepare(allocated("second", "gpu-1"))
	require.ErrorContains(t, err, "claim team/second: ")
	require.Error(t, b.unprepare(allocated("second", "gpu-1")))
}

func mustEncode(c *Checkpoint) []byte {
	data, err := encode(c)
	if err != nil {
		panic(err)
	}
	return data
}

func TestALockThatIsHeldHasADeadline(t *testing.T) {
	b := newBench(t)
	unlock, err := b.Store.lock(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c := allocated("job", "gpu-0")
	err = b.Prepare(ctx, []*resourceapi.ResourceClaim{c})[c.UID].Err
	require.ErrorContains(t, err, "claim team/job: another call or instance of this driver has locked "+b.Store.Path+".lock: context deadline exceeded; next: ")
	unlock()
	b.requirePrepared(t, c, "GPU-0")
}

func TestNothingFollowsTheEndOfTheRecord(t *testing.T) {
	var into struct{}
	require.NoError(t, strictJSON([]byte("{}\n"), &into))
	for _, text := range []string{"{}{}", "{}]", "{}}", "{} x"} {
		require.Error(t, strictJSON([]byte(text), &into), text)
	}
}

// Events of a pod are for its namespace; who else holds a device is in the driver's log.
func TestARefusalNamesNoOtherTenant(t *testing.T) {
	b := newBench(t)
	var log strings.Builder
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	of := func(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
		c.Namespace = "secret"
		return c
	}
	b.gpus[1].Sharing = &nodestate.Sharing{Shares: 2}
	b.requirePrepared(t, of(allocated("holder", "gpu-0")), "GPU-0")
	b.requirePrepared(t, of(asShare(allocated("sharer", "gpu-1"), 2)), "GPU-1")
	b.allocations = []Allocation{
		{Pod: "secret/plain", Resource: "nvidia.com/gpu", UUID: "GPU-2"},
		{Pod: "secret/lost", Claim: types.NamespacedName{Namespace: "secret", Name: "forgotten"}, Pool: "node-1", Device: "gpu-3"},
	}
	for device, want := range map[string]string{
		"gpu-0": "device gpu-0 (GPU-0) is in use by a claim of another namespace; next: ",
		"gpu-1": "2 of them are in use, by a claim of another namespace among others; next: ",
		"gpu-2": "in use by a pod of another namespace, by the resource nvidia.com/gpu of the device plugin; next: ",
		"gpu-3": "in use by a claim of another namespace; next: ",
	} {
		claim := allocated("job", device)
		if device == "gpu-1" {
			claim = asShare(claim, 1)
		}
		b.requireRefused(t, claim, want)
		_, err := b.prepare(claim)
		require.NotContains(t, err.Error(), "secret")
	}
	b.api = errors.New(`Get "https://api/namespaces/secret/resourceclaims/forgotten": refused`)
	b.requireRefused(t, allocated("job", "gpu-2"), "a pod of another namespace holds a claim that the record of prepared claims lacks, and it cannot be read; next: ")

	withheld := newBench(t)
	withheld.Log = b.Log
	withheld.Inventory = func() inventory.Inventory {
		return inventory.New(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Serve: withheld.serve, Inventory: withheld.gpus, Withheld: []nodestate.Withheld{
			{GPU: "GPU-0", Reason: "HeldByPod", Message: "held by pod secret/withholder", Namespace: "secret"},
			{GPU: "GPU-1", Reason: "HeldByPod", Message: "held by pod team/old", Namespace: "team"},
			{GPU: "GPU-2", Reason: "HeldByPod", Message: "held by pod secret/withholder", Namespace: nodestate.SeveralNamespaces},
			{GPU: "GPU-3", Reason: "HeldByPod", Message: "held by a pod until a moment ago", Namespace: nodestate.NoNamespace}}}}, inventory.Problem{}, nil)
	}
	withheld.requireRefused(t, allocated("job", "gpu-0"), "device gpu-0 (GPU-0) is withheld: HeldByPod; next: ")
	withheld.requireRefused(t, allocated("job", "gpu-1"), "device gpu-1 (GPU-1) is withheld: HeldByPod: held by pod team/old; next: ")
	withheld.requireRefused(t, allocated("job", "gpu-2"), "device gpu-2 (GPU-2) is withheld: HeldByPod; next: ")
	withheld.requireRefused(t, allocated("job", "gpu-3"), "device gpu-3 (GPU-3) is withheld: HeldByPod: held by a pod until a moment ago; next: ")
	for _, name := range []string{"secret/holder", "secret/sharer", "secret/plain", "secret/forgotten", "secret/lost", "secret/withholder"} {
		require.Contains(t, log.String(), name, "the administrator learns it")
	}
}

// Until the device plugin is upgraded, and has read who holds what, its state has no namespaces.
func TestWhatAnEarlierVersionWithholdsNamesNoTenant(t *testing.T) {
	var log strings.Builder
	b := newBench(t)
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	b.Inventory = func() inventory.Inventory {
		return inventory.New(nodestate.State{DevicePlugin: &nodestate.DevicePluginInfo{Serve: b.serve, Inventory: b.gpus, Withheld: []nodestate.Withheld{
			{GPU: "GPU-0", Reason: "HeldByPod", Message: "held by pod secret/a"}, {GPU: "GPU-1", Reason: "HeldByClaim", Message: "held by claim secret/b"},
			{GPU: "GPU-2", Reason: "Unheard", Message: "of pod secret/c"}}}}, inventory.Problem{}, nil)
	}
	for device, want := range map[string]string{
		"gpu-0": "device gpu-0 (GPU-0) is withheld: HeldByPod; next: ", "gpu-1": "device gpu-1 (GPU-1) is withheld: HeldByClaim; next: ", "gpu-2": "device gpu-2 (GPU-2) is withheld: Unheard; next: ",
	} {
		b.requireRefused(t, allocated("job", device), want)
		_, err := b.prepare(allocated("job", device))
		require.NotContains(t, err.Error(), "secret")
	}
	for _, name := range []string{"pod secret/a", "claim secret/b", "pod secret/c"} {
		require.Contains(t, log.String(), name)
	}
}

func TestNoClaimMixesControlDaemons(t *testing.T) {
	b := newBench(t)
	b.gpus[0].Sharing, b.gpus[1].Sharing = &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu"}, &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu"}
	b.gpus[2].Sharing = &nodestate.Sharing{Shares: 2, MPS: "nvidia.com/big"}
	b.requireRefused(t, asShare(allocated("two", "gpu-0", "gpu-2"), 1),
		"device gpu-0 is served by the MPS control daemon of nvidia.com/gpu, and device gpu-2 is served by the MPS control daemon of nvidia.com/big: no program can use both; next: ")
	mixed := asShare(allocated("mixed", "gpu-3", "gpu-0"), 1)
	mixed.Status.Allocation.Devices.Results[0].ShareID = nil
	b.requireRefused(t, mixed, "device gpu-3 is served by no MPS control daemon, and device gpu-0 is served by the MPS control daemon of nvidia.com/gpu: no program can use both; next: ")
	_, err := b.prepare(asShare(allocated("one daemon", "gpu-0", "gpu-1"), 1))
	require.NoError(t, err)
	_, err = b.prepare(asAdmin(allocated("watch", "gpu-0", "gpu-2", "gpu-3")))
	require.NoError(t, err, "it runs nothing on them")

	b.gpus[1].Sharing = nil // the configuration has changed: what runs goes on
	_, err = b.prepare(asShare(allocated("one daemon", "gpu-0", "gpu-1"), 1))
	require.NoError(t, err)
}

func TestTheRecordTellsWhichClaimsHoldNothing(t *testing.T) {
	b := newBench(t)
	mixed := allocated("mixed", "gpu-1", "gpu-3")
	mixed.Status.Allocation.Devices.Results[0].AdminAccess = new(true)
	b.requirePrepared(t, asAdmin(allocated("watch", "gpu-0", "gpu-3")), "GPU-0", "GPU-3")
	b.requirePrepared(t, mixed, "GPU-1", "GPU-3")
	b.requirePrepared(t, allocated("job", "gpu-0"), "GPU-0")
	require.ElementsMatch(t, []nodestate.ClaimedDevice{{Claim: "team/watch", GPU: "GPU-0"}, {Claim: "team/watch", GPU: "GPU-3"}, {Claim: "team/mixed", GPU: "GPU-1"}}, b.record(t).AdminAccess())

	many := &Checkpoint{Claims: []Prepared{{Namespace: "team", Name: "holds it, too", Devices: []PreparedDevice{{UUID: "GPU-0", Admin: true}, {UUID: "GPU-0"}}}}}
	require.Empty(t, many.AdminAccess())
	for i := range nodestate.MaxAdminAccess + 1 {
		many.Claims = append(many.Claims, Prepared{Namespace: "team", Name: fmt.Sprint(i), Devices: []PreparedDevice{{UUID: "GPU-0", Admin: true}}})
	}
	require.NoError(t, nodestate.Write(t.TempDir(), nodestate.State{Component: nodestate.DRADriver, BootID: "00000000-0000-4000-8000-000000000000", Phase: nodestate.Ready,
		DRADriver: &nodestate.DRADriverInfo{AdminAccess: many.AdminAccess()}}), "it has room in the state")
}

// Its programs would become clients of a daemon that does not serve the claim's own GPU, or of one of several.
func TestAdministrativeAccessMakesNobodyAClientOfMPS(t *testing.T) {
	b := newBench(t)
	b.gpus[0].Sharing = &nodestate.Sharing{Shares: 4, MPS: "nvidia.com/gpu"}
	b.gpus[1].Sharing = &nodestate.Sharing{Shares: 2, MPS: "nvidia.com/big"}
	mixed := allocated("mixed", "gpu-3", "gpu-0", "gpu-1")
	mixed.Status.Allocation.Devices.Results[1].AdminAccess = new(true)
	mixed.Status.Allocation.Devices.Results[2].AdminAccess = new(true)
	b.requirePrepared(t, mixed, "GPU-3", "GPU-0", "GPU-1")
	b.mps = errors.New("no specification has it")
	b.requirePrepared(t, asAdmin(allocated("watch", "gpu-0")), "GPU-0")
}
