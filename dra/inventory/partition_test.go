package inventory

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/golden"
	"github.com/gpuready/gpuready/test/lab/scheduler"
)

// partitionable returns GPUs in MIG mode as their drivers report them: A100, H100 and B200.
func partitionable(t testing.TB) []nodestate.GPU {
	t.Helper()
	data, err := os.ReadFile("testdata/partitionable.json")
	require.NoError(t, err)
	var all []nodestate.GPU
	require.NoError(t, json.Unmarshal(data, &all))
	for i := range all {
		all[i].UUID, all[i].Index, all[i].Minor = gpu.UUID(fmt.Sprintf("GPU-%d", i)), i, i
	}
	return all
}

func dynamic(gpus ...nodestate.GPU) nodestate.State {
	s := served(gpus...)
	s.DevicePlugin.MIG = nodestate.MIGDynamic
	return s
}

func TestPartitionsMatchTheGoldenFile(t *testing.T) {
	all := partitionable(t)
	i := New(dynamic(all[1]), Problem{}, root)
	golden.Require(t, "testdata/partitions.txt", readable(t, i.Slices()))

	require.Empty(t, New(served(all[1]), Problem{}, root).Devices, "without --mig=dynamic there is none")
	require.Empty(t, i.WithoutPartitions().Devices)
	require.Len(t, i.WithoutPartitions().Slices(), 1)
}

func TestPartitionsHoldTheLimitsOfTheAPI(t *testing.T) {
	var gpus []nodestate.GPU
	for i := range 16 {
		g := partitionable(t)[i%3]
		g.UUID, g.Index, g.Minor = gpu.UUID(fmt.Sprintf("GPU-%d", i)), i, i
		gpus = append(gpus, g)
	}
	gpus[3].Condition = broken(gpu.ReasonXID)
	i := New(dynamic(gpus...), Problem{}, root)
	names, sets := map[string]bool{}, map[string]resourceapi.CounterSet{}
	for _, s := range i.Slices() {
		require.True(t, len(s.Devices) == 0 || len(s.SharedCounters) == 0, "a slice has devices or counters")
		require.LessOrEqual(t, len(s.Devices), resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures)
		require.LessOrEqual(t, len(s.SharedCounters), resourceapi.ResourceSliceMaxCounterSets)
		for _, set := range s.SharedCounters {
			require.NotContains(t, sets, set.Name)
			sets[set.Name] = set
			require.LessOrEqual(t, len(set.Counters), resourceapi.ResourceSliceMaxCountersPerCounterSet)
			for name := range set.Counters {
				require.Empty(t, validation.IsDNS1123Label(name))
			}
		}
	}
	require.Len(t, sets, 16)
	for _, d := range i.Devices {
		require.False(t, names[d.Name], d.Name)
		names[d.Name] = true
		require.Empty(t, validation.IsDNS1123Label(d.Name))
		require.LessOrEqual(t, len(d.API.Attributes)+len(d.API.Capacity), resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
		require.Len(t, d.API.ConsumesCounters, 1)
		for name, c := range d.API.ConsumesCounters[0].Counters {
			has, known := sets[d.API.ConsumesCounters[0].CounterSet].Counters[name]
			require.True(t, known && has.Value.Cmp(c.Value) >= 0, "%s consumes %s", d.Name, name)
		}
		require.Equal(t, d.Parent == "GPU-3", len(d.API.Taints) == 1, "of a broken GPU no partition is given")
	}
	require.True(t, names["gpu-1-mig-1g10gb-19-6"])
}

// legal reports whether GPU instances can exist beside each other, as the driver decides: by their
// memory slices, their compute slices, their media engines, and how many the profile allows.
func legal(g nodestate.GPU, all []gpu.Placement) bool {
	memory, compute, count, most := map[int]bool{}, 0, map[int]int{}, 0
	var has, taken [4]int
	media := func(p nodestate.MIGProfile) [4]int {
		return [...]int{p.Decoders, p.Encoders, p.JPEGEngines, p.OFAEngines}
	}
	for _, p := range g.Profiles {
		most = max(most, p.Slices)
		for kind, n := range media(p) {
			has[kind] = max(has[kind], n*p.Count)
		}
	}
	for _, at := range all {
		p := g.Profiles[slices.IndexFunc(g.Profiles, func(p nodestate.MIGProfile) bool { return p.ID == at.Profile })]
		for slice := at.Start; slice < at.Start+at.Size; slice++ {
			if memory[slice] {
				return false
			}
			memory[slice] = true
		}
		compute += p.Slices
		for kind, n := range media(p) {
			if taken[kind] += n; taken[kind] > has[kind] {
				return false
			}
		}
		if count[p.ID]++; count[p.ID] > p.Count {
			return false
		}
	}
	return compute <= most
}

// The counters allow just what the driver does: every set of placements.
func TestCountersAllowWhatTheDriverAllows(t *testing.T) {
	for _, g := range partitionable(t) {
		i := New(dynamic(g), Problem{}, nil)
		rapid.Check(t, func(t *rapid.T) {
			left := map[string]int64{}
			for name, c := range i.Counters[0].Counters {
				left[name] = c.Value.Value()
			}
			var chosen []gpu.Placement
			for _, d := range rapid.SliceOfN(rapid.SampledFrom(i.Devices), 1, 9).Draw(t, "devices") {
				fits := true
				for name, c := range d.API.ConsumesCounters[0].Counters {
					fits = fits && c.Value.Value() <= left[name]
				}
				if with := append(slices.Clone(chosen), *d.Placement); fits != legal(g, with) {
					t.Fatalf("%s: %s beside %v: the counters say %v, the driver the opposite", g.Product, d.Name, chosen, fits)
				}
				if !fits {
					continue
				}
				chosen = append(chosen, *d.Placement)
				for name, c := range d.API.ConsumesCounters[0].Counters {
					left[name] -= c.Value.Value()
				}
			}
		})
	}
}

// migScheduler allocates MIG devices as the real scheduler does, from the published slices.
type migScheduler struct {
	testing.TB
	*scheduler.Scheduler
}

const migClass = "mig.nvidia.com"

func newMIGScheduler(t testing.TB, i Inventory) *migScheduler {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: migClass}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'`}}}}}
	return &migScheduler{t, scheduler.New([]*resourceapi.DeviceClass{class}, scheduler.Slices(Driver, i.Slices())...)}
}

// allocate allocates a MIG device of each profile to one claim; nil: they do not fit.
func (s *migScheduler) allocate(profiles ...string) (devices []string) {
	s.Helper()
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: types.UID("claim")}}
	for n, profile := range profiles {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", n), Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: migClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(`device.attributes['gpu.nvidia.com'].profile == '%s'`, profile)}}},
		}})
	}
	result, err := s.Allocate(context.Background(), claim)
	require.NoError(s, err)
	if result == nil {
		return nil
	}
	for _, d := range result.Devices.Results {
		devices = append(devices, d.Device)
	}
	return devices
}

// Whatever claims the scheduler serves, in whatever order they come and go, the partitions it has
// chosen can exist beside each other, and beside what a person has created.
func TestTheSchedulerChoosesLegalPartitions(t *testing.T) {
	for _, g := range partitionable(t) {
		profiles := slices.Sorted(maps.Keys(func() map[string]bool {
			all := map[string]bool{}
			for _, p := range g.Profiles {
				all[p.Name] = true
			}
			return all
		}()))
		rapid.Check(t, func(rt *rapid.T) {
			g := g
			var stranger []gpu.Placement
			if rapid.Bool().Draw(rt, "stranger") {
				p := rapid.SampledFrom(g.Profiles).Draw(rt, "profile")
				start := rapid.SampledFrom(p.Starts).Draw(rt, "start")
				g.Instances = []nodestate.GPUInstance{{ID: 3, Profile: p.ID, Start: start, Size: p.Size}}
				stranger = append(stranger, gpu.Placement{GPU: g.UUID, Profile: p.ID, Start: start, Size: p.Size})
			}
			i := New(dynamic(g), Problem{}, nil)
			s := newMIGScheduler(t, i)
			holds := map[string]gpu.Placement{}
			for range rapid.IntRange(1, 12).Draw(rt, "steps") {
				if len(holds) > 0 && rapid.IntRange(0, 3).Draw(rt, "ends") == 0 {
					name := rapid.SampledFrom(slices.Sorted(maps.Keys(holds))).Draw(rt, "which")
					delete(holds, name)
					s.Free(Driver, name)
					continue
				}
				for _, name := range s.allocate(rapid.SliceOfN(rapid.SampledFrom(profiles), 1, 2).Draw(rt, "profiles")...) {
					d, found := i.Find(name)
					require.True(rt, found)
					require.NotContains(rt, holds, name)
					holds[name] = *d.Placement
				}
				require.True(rt, legal(g, append(slices.Collect(maps.Values(holds)), stranger...)), "%s: %v beside %v", g.Product, slices.Sorted(maps.Keys(holds)), stranger)
			}
		})
	}
}

func TestTheSchedulerFillsAGPU(t *testing.T) {
	h100 := partitionable(t)[1]
	for _, c := range [][]string{
		{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"},
		{"3g.40gb", "3g.40gb"}, {"4g.40gb", "3g.40gb"}, {"7g.80gb"}, {"1g.20gb", "1g.20gb", "1g.20gb", "1g.20gb"},
		{"3g.40gb", "2g.20gb", "1g.10gb+me"}, {"3g.40gb", "1g.10gb", "1g.10gb"},
	} {
		s := newMIGScheduler(t, New(dynamic(h100), Problem{}, nil))
		require.Len(t, s.allocate(c...), len(c), strings.Join(c, ","))
	}
	s := newMIGScheduler(t, New(dynamic(h100), Problem{}, nil))
	require.NotEmpty(t, s.allocate("7g.80gb"))
	require.Empty(t, s.allocate("1g.10gb"), "the GPU is full")
}

// The MIG device of a partition that was created for a claim is not a device of its own, and what it
// occupies is consumed by the partition.
func TestOwnPartitionsAreNotPublishedTwice(t *testing.T) {
	g := partitionable(t)[1]
	g.Instances = []nodestate.GPUInstance{{ID: 9, Profile: 19, Start: 2, Size: 1}, {ID: 2, Profile: 9, Start: 4, Size: 4}}
	g.MIG = []nodestate.MIGDevice{{UUID: "MIG-own", Profile: "1g.10gb", GPUInstance: 9, Condition: healthy}, {UUID: "MIG-other", Profile: "3g.40gb", GPUInstance: 2, Condition: healthy}}
	own := gpu.Placement{GPU: g.UUID, Profile: 19, Start: 2, Size: 1}
	i := New(dynamic(g), Problem{}, nil, own)
	uuids := map[gpu.UUID]bool{}
	for _, d := range i.Devices {
		uuids[d.UUID] = true
	}
	require.Equal(t, map[gpu.UUID]bool{"": true, "MIG-other": true}, uuids)
	counters := i.Counters[0].Counters
	for slice, want := range []int64{1, 1, 1, 1, 0, 0, 0, 0} {
		c := counters[fmt.Sprintf("memory-slice-%d", slice)]
		require.Equal(t, want, c.Value.Value(), slice)
	}
	require.Equal(t, int64(4), func() int64 { c := counters["compute-slices"]; return c.Value.Value() }())

	g.Instances[1].Profile = 77
	for name, c := range New(dynamic(g), Problem{}, nil, own).Counters[0].Counters {
		require.Zero(t, c.Value.Value(), "%s: beside an instance of an unknown profile nothing is created", name)
	}
}

// tenants returns a GPU with two partitions that were created for claims, of which the first has a fault of
// its own: XID 69 of one tenant's program.
func tenants(t *testing.T) (g nodestate.GPU, own []gpu.Placement) {
	g = partitionable(t)[1]
	fault := broken(gpu.ReasonXID)
	whole := healthy
	g.Condition, g.Whole = fault, &whole
	g.Instances = []nodestate.GPUInstance{{ID: 9, Profile: 19, Start: 2, Size: 1, Condition: &fault}, {ID: 10, Profile: 19, Start: 3, Size: 1}, {ID: 2, Profile: 9, Start: 4, Size: 4}}
	g.MIG = []nodestate.MIGDevice{
		{UUID: "MIG-attacker", Profile: "1g.10gb", GPUInstance: 9, Condition: fault}, {UUID: "MIG-victim", Profile: "1g.10gb", GPUInstance: 10, Condition: healthy},
		{UUID: "MIG-person", Profile: "3g.40gb", GPUInstance: 2, Condition: healthy},
	}
	return g, []gpu.Placement{{GPU: g.UUID, Profile: 19, Start: 2, Size: 1}, {GPU: g.UUID, Profile: 19, Start: 3, Size: 1}}
}

func effects(i Inventory) map[string]resourceapi.DeviceTaintEffect {
	all := map[string]resourceapi.DeviceTaintEffect{}
	for _, d := range i.Devices {
		for _, taint := range d.API.Taints {
			all[d.Name] = taint.Effect
		}
	}
	return all
}

func TestAFaultOfAnInstanceConcernsWhatIsAtItsPlaceAlone(t *testing.T) {
	g, own := tenants(t)
	instance := 9
	fault := nodestate.Fault{GPU: g.UUID, GPUInstance: &instance, Reason: gpu.ReasonXID, XID: 69, Needs: nodestate.EvidenceQuiet}
	i := New(dynamic(g), Problem{}, nil, own...)
	const its = "gpu-1-mig-1g10gb-19-2"
	require.Equal(t, map[string]resourceapi.DeviceTaintEffect{its: resourceapi.DeviceTaintEffectNoSchedule}, effects(i))
	for _, list := range []string{"69", "XID"} {
		e, err := ParseEvictions([]string{list})
		require.NoError(t, err)
		require.Equal(t, map[string]resourceapi.DeviceTaintEffect{its: resourceapi.DeviceTaintEffectNoExecute}, effects(i.WithEvictions(e, []nodestate.Fault{fault})), list)
	}

	// Another tenant has a fault that is not to evict, beside one that is.
	g.Instances[1].Condition = g.Instances[0].Condition
	e, err := ParseEvictions([]string{"69"})
	require.NoError(t, err)
	both := New(dynamic(g), Problem{}, nil, own...).WithEvictions(e, []nodestate.Fault{fault, {GPU: g.UUID, GPUInstance: new(10), Reason: gpu.ReasonXID, XID: 8}})
	require.Equal(t, map[string]resourceapi.DeviceTaintEffect{its: resourceapi.DeviceTaintEffectNoExecute, "gpu-1-mig-1g10gb-19-3": resourceapi.DeviceTaintEffectNoSchedule}, effects(both))

	// A fault that needs a reset outlives its instance, and may then be anywhere.
	g.Instances, g.MIG, g.Whole = nil, nil, nil
	fault.Needs = nodestate.EvidenceReset
	for name, effect := range effects(New(dynamic(g), Problem{}, nil).WithEvictions(e, []nodestate.Fault{fault})) {
		require.Equal(t, resourceapi.DeviceTaintEffectNoExecute, effect, name)
	}
	fault.Needs = nodestate.EvidenceQuiet
	for name, effect := range effects(New(dynamic(g), Problem{}, nil).WithEvictions(e, []nodestate.Fault{fault})) {
		require.Equal(t, resourceapi.DeviceTaintEffectNoSchedule, effect, name)
	}
}

// An earlier version of the device plugin knows one condition of all partitions.
func TestWithoutOneOfItsOwnAPartitionHasTheConditionOfItsGPU(t *testing.T) {
	g, own := tenants(t)
	g.Whole, g.Instances[0].Condition = nil, nil
	i := New(dynamic(g), Problem{}, nil, own...)
	require.Len(t, effects(i), len(i.Devices)-1, "all but the person's MIG device")
}

// Where the GPU was read while an instance was destroyed, it lists a MIG device without the instance.
func TestAMIGDeviceWhosePlaceIsNotKnownIsNotOffered(t *testing.T) {
	g, own := tenants(t)
	all := names(New(dynamic(g), Problem{}, nil, own...))
	g.Instances = g.Instances[1:]
	require.Equal(t, all, names(New(dynamic(g), Problem{}, nil, own[1:]...)))
}

// Where the driver lists neither profiles nor instances, each MIG device may be a claim's.
func TestOfUnknownPartitionsNoMIGDeviceIsOffered(t *testing.T) {
	g, own := tenants(t)
	g.Profiles = nil
	require.Equal(t, []string{"gpu-1-mig-3g40gb-2-0"}, names(New(dynamic(g), Problem{}, nil, own...)), "a person's, whose place is known")
	g.Instances, g.Condition, g.Whole = nil, healthy, nil
	require.Empty(t, names(New(dynamic(g), Problem{}, nil, own...)))
	require.Empty(t, names(New(dynamic(g), Problem{}, nil)), "the record of claims is lost, or of another driver")
	require.Len(t, names(New(served(g), Problem{}, nil)), 3, "without --mig=dynamic all are a person's")
}

// Pods on it are evicted by its taint.
func TestPartitionsOfAMissingGPUStayPublished(t *testing.T) {
	g, own := tenants(t)
	all := names(New(dynamic(g), Problem{}, nil, own...))
	g.Condition, g.Whole = broken(gpu.ReasonMissing), nil
	for i := range g.Instances {
		g.Instances[i].Condition = nil
	}
	i := New(dynamic(g), Problem{}, nil, own...)
	require.Equal(t, all, names(i))
	require.True(t, i.IsLost(g.UUID))
	other := g
	other.UUID, other.Condition, other.MIG, other.Instances = "GPU-new", healthy, nil, nil
	i = New(dynamic(g, other), Problem{}, nil, own...)
	require.Len(t, i.Counters, 1, "the number is that of another GPU now")
	for _, d := range i.Devices {
		require.True(t, d.Parent == "GPU-new" || !d.Partition, d.Name)
	}
	require.False(t, i.IsLost("GPU-new"))
}
