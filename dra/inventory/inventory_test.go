package inventory

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/golden"
)

var healthy = nodestate.Condition{Health: nodestate.Healthy}

func broken(reason gpu.Reason) nodestate.Condition {
	return nodestate.Condition{Health: nodestate.Unhealthy, Reason: reason, Message: "XID 79: GPU has fallen off the bus", Action: "reset it", Since: time.Unix(1000, 5e8).UTC()}
}

func h100(minor int) nodestate.GPU {
	node := minor / 4
	return nodestate.GPU{
		UUID: gpu.UUID(fmt.Sprintf("GPU-%d", minor)), Index: minor, Minor: minor, Product: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper",
		ComputeMode: "DEFAULT", NVLinkDomain: "GPU-0", NVLinkNearest: "GPU-0", FabricClique: "01020300-0000-0000-0000-0000000000ff.7",
		ComputeCapability: "9.0", PCI: gpu.PCIAddress(fmt.Sprintf("0000:%02x:00.0", 0x10+minor)), NUMANode: &node, MemoryBytes: 80 << 30, Condition: healthy,
	}
}

func mig(g nodestate.GPU, devices ...nodestate.MIGDevice) nodestate.GPU {
	g.MIGEnabled, g.MIG = true, devices
	return g
}

func served(gpus ...nodestate.GPU) nodestate.State {
	return nodestate.State{
		Driver:       &nodestate.DriverInfo{Root: "/", Version: "580.95.05", CUDAVersion: "13.0"},
		DevicePlugin: &nodestate.DevicePluginInfo{Serve: nodestate.ServeDRA, Inventory: gpus},
	}
}

func root(gpu.PCIAddress) string { return "pci0000:00" }

func names(i Inventory) (all []string) {
	for _, d := range i.Devices {
		all = append(all, d.Name)
	}
	return all
}

func TestDevicesMatchTheGoldenFile(t *testing.T) {
	small := nodestate.MIGDevice{UUID: "MIG-1", Profile: "1g.10gb+me", GPUInstance: 7, MemoryBytes: 10 << 30, Multiprocessors: 16, CopyEngines: 1, Condition: healthy}
	big := nodestate.MIGDevice{UUID: "MIG-0", Profile: "3g.40gb", GPUInstance: 1, ComputeInstance: 2, MemoryBytes: 40 << 30, Condition: broken(gpu.ReasonXID)}
	lost := h100(1)
	lost.Condition, lost.Notes = broken(gpu.ReasonLost), []nodestate.Note{{Reason: gpu.NoteFabricDegraded}}
	s := served(h100(0), lost, mig(h100(2), small, big))
	s.Driver.Simulated = true
	devices := []resourceapi.Device{}
	for _, d := range New(s, Problem{}, root).Devices {
		devices = append(devices, d.API)
	}
	golden.Require(t, "testdata/devices.txt", readable(t, devices))
}

var (
	typed  = regexp.MustCompile(`\{\s*"(?:string|int|bool|value)": ([^{}\n]*)\s*\}`)
	single = regexp.MustCompile(`\{\s*"(\w+)": ([^{}\n]*)\s*\}`)
	flat   = regexp.MustCompile(`("counters"|"capacity"): \{[^{}]*\}`)
	space  = regexp.MustCompile(`\s+`)
)

// readable returns an object of the API as JSON with the types of most values left out, and counters and
// capacities in one line, so that a reader can check it.
func readable(t *testing.T, object any) string {
	t.Helper()
	data, err := json.MarshalIndent(object, "", "  ")
	require.NoError(t, err)
	text := typed.ReplaceAllString(string(data), "$1")
	text = single.ReplaceAllString(text, "{$1: $2}")
	return flat.ReplaceAllStringFunc(text, func(group string) string { return space.ReplaceAllString(group, " ") }) + "\n"
}

func TestAGPUInMIGModeIsNotPublishedItself(t *testing.T) {
	require.Equal(t, []string{"gpu-0"}, names(New(served(h100(0), mig(h100(1))), Problem{}, nil)), "one without MIG devices offers nothing")
	require.Equal(t, []string{"gpu-0-mig-1g12gb-3-0"}, names(New(served(mig(h100(0), nodestate.MIGDevice{UUID: "MIG-0", Profile: "1g.12gb", GPUInstance: 3, Condition: healthy})), Problem{}, nil)))
}

func TestWhatTheConfigurationExcludesIsNotPublished(t *testing.T) {
	s := served(h100(0), h100(1), mig(h100(2), nodestate.MIGDevice{UUID: "MIG-0", Profile: "1g.10gb", Condition: healthy}))
	s.DevicePlugin.LeftOut = []nodestate.LeftOutDevice{{GPU: "GPU-0", Reason: "Excluded"}, {GPU: "GPU-2", Reason: "NotIncluded"}, {GPU: "GPU-1", Reason: "NoResource"}}
	require.Equal(t, []string{"gpu-1"}, names(New(s, Problem{}, nil)), "what has no resource name is offered all the same")
}

func TestAGPUThatIsThereKeepsItsName(t *testing.T) {
	gone := h100(0)
	gone.UUID = "GPU-gone"
	for _, reason := range []gpu.Reason{gpu.ReasonMissing, gpu.ReasonXID} { // XID 79, before it was gone, stays the reason
		gone.Condition, gone.Missing = broken(reason), reason != gpu.ReasonMissing
		i := New(served(gone, h100(0)), Problem{}, nil)
		require.Equal(t, []string{"gpu-0"}, names(i))
		require.Equal(t, gpu.UUID("GPU-0"), i.Devices[0].UUID)
		require.True(t, i.IsLost("GPU-gone"))
	}
	unknown := h100(0)
	unknown.Minor = -1
	require.Empty(t, New(served(unknown), Problem{}, nil).Devices, "without its device number it has no name")
}

func TestAProblemTaintsEveryDevice(t *testing.T) {
	sick := h100(1)
	sick.Condition = broken(gpu.ReasonXID)
	i := New(served(h100(0), sick), Problem{Reason: ReasonSilent, Message: "its writer has ended", Since: time.Unix(2000, 0)}, nil)
	require.Equal(t, string(ReasonSilent), i.Devices[0].API.Taints[0].Value)
	require.EqualValues(t, 2000, i.Devices[0].API.Taints[0].TimeAdded.Unix())
	require.Equal(t, string(gpu.ReasonXID), i.Devices[1].API.Taints[0].Value, "the GPU's own fault is the better reason")
	require.Empty(t, New(served(h100(0)), Problem{}, nil).Devices[0].API.Taints)
}

func TestNothingIsPublishedOfAnUnusableState(t *testing.T) {
	i := New(nodestate.State{}, Problem{}, nil)
	require.Equal(t, ReasonUnknown, i.Why.Reason)
	require.Len(t, i.Slices(), 1, "an empty slice shows that the driver runs")
	s := served(h100(0))
	for _, serve := range []string{nodestate.ServePlugin, "", "later"} {
		s.DevicePlugin.Serve = serve
		i = New(s, Problem{}, nil)
		require.Empty(t, i.Devices, serve)
		require.Contains(t, i.Why.String(), "--serve=dra")
	}
}

func TestGPUsThatAreNearAreListedTogether(t *testing.T) {
	var all []nodestate.GPU
	for i, group := range []struct{ domain, nearest gpu.UUID }{{"GPU-0", "GPU-0"}, {"GPU-1", "GPU-1"}, {}, {"GPU-1", "GPU-3"}, {"GPU-0", "GPU-0"}, {"GPU-1", "GPU-1"}, {"GPU-gone", "GPU-gone"}} {
		g := h100(i)
		g.NVLinkDomain, g.NVLinkNearest = group.domain, group.nearest
		all = append(all, g)
	}
	require.Equal(t, []string{"gpu-0", "gpu-4", "gpu-1", "gpu-5", "gpu-3", "gpu-2", "gpu-6"}, names(New(served(all...), Problem{}, root)))
}

func TestVersionsAreSemantic(t *testing.T) {
	for text, want := range map[string]string{"580.95.05": "580.95.5", "13.0": "13.0.0", "9": "9.0.0", "": "", "550.x": "", "1.2.3.4": "", "-1.0": "", "1..2": ""} {
		a := attributes{}
		a.version("v", text)
		got := ""
		if v := a["v"].VersionValue; v != nil {
			got = *v
		}
		require.Equal(t, want, got, text)
	}
}

// The API server would refuse the slice, and with it every GPU of the node.
func TestEveryInventoryKeepsTheAPIsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 40, 200)
		gpus := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) nodestate.GPU {
			g := nodestate.GPU{
				UUID: gpu.UUID(rapid.StringMatching(`GPU-[0-9a-f]{1,12}`).Draw(t, "uuid")), Index: rapid.IntRange(0, 200).Draw(t, "index"), Minor: rapid.IntRange(-1, 255).Draw(t, "minor"),
				Product: text.Draw(t, "product"), Brand: text.Draw(t, "brand"), Architecture: text.Draw(t, "architecture"),
				ComputeCapability: rapid.StringMatching(`[0-9.]{0,8}`).Draw(t, "compute"), MIGEnabled: rapid.Bool().Draw(t, "mig"), Condition: healthy,
			}
			if rapid.Bool().Draw(t, "sick") {
				g.Condition = broken(gpu.ReasonXID)
			}
			if rapid.Bool().Draw(t, "shared") {
				g.MemoryBytes = rapid.Uint64Range(0, 1<<38).Draw(t, "memory")
				g.Sharing = &nodestate.Sharing{Shares: rapid.IntRange(2, 50000).Draw(t, "shares")}
			}
			for j := range rapid.IntRange(0, 8).Draw(t, "parts") {
				g.MIG = append(g.MIG, nodestate.MIGDevice{UUID: gpu.UUID(fmt.Sprintf("MIG-%s-%d", g.UUID, j)), Profile: rapid.StringMatching(`([0-9]c\.)?[1-7]g\.[0-9]{1,3}gb(\+me|\+gfx|-me)?`).Draw(t, "profile"),
					GPUInstance: j, Multiprocessors: 14, Condition: g.Condition})
			}
			return g
		}), 0, 200).Draw(t, "gpus")
		i := New(served(gpus...), Problem{}, root)
		seen := map[string]bool{}
		count := 0
		for _, s := range i.Slices() {
			require.LessOrEqual(t, len(s.Devices), resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures)
			count += len(s.Devices)
			for _, d := range s.Devices {
				require.False(t, seen[d.Name], d.Name)
				seen[d.Name] = true
				require.Empty(t, validation.IsDNS1123Label(d.Name), d.Name)
				require.LessOrEqual(t, len(d.Attributes)+len(d.Capacity), resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
				for name, c := range d.Capacity {
					if p := c.RequestPolicy; p != nil { // as validateCapacityRequestPolicy of k8s.io/kubernetes/pkg/apis/resource/validation wants it
						require.True(t, *d.AllowMultipleAllocations)
						require.LessOrEqual(t, p.ValidRange.Min.Cmp(*p.Default), 0, name)
						require.LessOrEqual(t, p.Default.Cmp(*p.ValidRange.Max), 0, name)
						require.LessOrEqual(t, p.ValidRange.Max.Cmp(c.Value), 0, name)
					}
				}
				for name, a := range d.Attributes {
					if a.StringValue != nil {
						require.LessOrEqual(t, len(*a.StringValue), resourceapi.DeviceAttributeMaxValueLength, name)
					}
				}
			}
		}
		require.Equal(t, len(i.Devices), count)
	})
}

func TestOverlaps(t *testing.T) {
	at := func(start, size int) *gpu.Placement { return &gpu.Placement{GPU: "GPU-0", Start: start, Size: size} }
	whole, other := Hardware{UUID: "GPU-0"}, Hardware{UUID: "GPU-1"}
	first := Hardware{UUID: "MIG-0", Parent: "GPU-0", Placement: at(0, 4)}
	sibling := Hardware{UUID: "MIG-1", Parent: "GPU-0", Placement: at(0, 4)} // of the same GPU instance
	unplaced := Hardware{UUID: "MIG-2", Parent: "GPU-0"}
	low, high := Hardware{Parent: "GPU-0", Placement: at(2, 2), Partition: true}, Hardware{Parent: "GPU-0", Placement: at(4, 4), Partition: true}
	elsewhere := Hardware{Parent: "GPU-1", Placement: &gpu.Placement{GPU: "GPU-1", Start: 2, Size: 2}, Partition: true}
	for _, c := range []struct {
		a, b Hardware
		want bool
		why  string
	}{
		{whole, whole, true, "the same"},
		{whole, other, false, "another GPU"},
		{whole, first, true, "a whole GPU includes its MIG devices"},
		{first, sibling, false, "compute instances of one GPU instance"},
		{whole, low, true, "a whole GPU includes its partitions"},
		{first, low, true, "a partition where a MIG device is"},
		{first, high, false, "a partition beside it"},
		{unplaced, high, true, "it may be anywhere"},
		{low, high, false, "beside each other"},
		{low, low, true, "the same place"},
		{low, elsewhere, false, "of another GPU"},
	} {
		require.Equal(t, c.want, c.a.Overlaps(c.b), c.why)
		require.Equal(t, c.want, c.b.Overlaps(c.a), c.why)
	}
}
