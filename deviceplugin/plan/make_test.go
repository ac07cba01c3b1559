package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

var now = time.Unix(1, 0)

func configured(t require.TestingT, text string) *config.Config {
	c, _, err := config.Parse([]byte(text), "c.yaml", config.Options{})
	require.NoError(t, err)
	return c
}

// planOf returns the plan of a healthy node.
func planOf(t require.TestingT, text string, s gpu.Snapshot) plan.Plan {
	return plan.Compute(configured(t, text), s, health.New(gpu.Fault{}).ApplySnapshot(s, now))
}

// counts returns the number of devices by resource name.
func counts(p plan.Plan) map[string]int {
	all := map[string]int{}
	for _, r := range p.Resources {
		all[r.Name] = len(r.Devices)
	}
	return all
}

func reasons(p plan.Plan) map[gpu.Reason]int {
	all := map[gpu.Reason]int{}
	for _, l := range p.LeftOut {
		all[l.Reason]++
	}
	return all
}

func deviceIDs(r plan.Resource) []string {
	var ids []string
	for _, d := range r.Devices {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestMIGStrategyNamesTheDevices(t *testing.T) {
	equal := divided([]string{"3g.40gb", "3g.40gb"}, []string{"3g.40gb"})
	unequal := divided([]string{"3g.40gb", "1g.10gb+me", "1g.10gb"}, nil)
	for _, c := range []struct {
		strategy string
		node     gpu.Snapshot
		want     map[string]int
		left     map[gpu.Reason]int
	}{
		{"none", equal, map[string]int{"nvidia.com/gpu": 2}, map[gpu.Reason]int{}},
		{"none", unequal, map[string]int{"nvidia.com/gpu": 2}, map[gpu.Reason]int{}},
		{"single", equal, map[string]int{"nvidia.com/gpu": 3}, map[gpu.Reason]int{}},
		{"single", gputest.Node("t4", 2), map[string]int{"nvidia.com/gpu": 2}, map[gpu.Reason]int{}},
		{"single", unequal, map[string]int{}, map[gpu.Reason]int{plan.ReasonMIGPartly: 4}},
		{"single", divided([]string{"3g.40gb", "2g.20gb"}), map[string]int{}, map[gpu.Reason]int{plan.ReasonMIGDiffers: 2}},
		{"single", divided([]string{"3g.40gb"}, []string{}), map[string]int{"nvidia.com/gpu": 1}, map[gpu.Reason]int{plan.ReasonNoMIGDevice: 1}},
		{"mixed", equal, map[string]int{"nvidia.com/mig-3g.40gb": 3}, map[gpu.Reason]int{}},
		{"mixed", unequal, map[string]int{"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-1g.10gb.me": 1, "nvidia.com/mig-3g.40gb": 1}, map[gpu.Reason]int{}},
		{"mixed", divided([]string{"1c.3g.40gb", "3g.40gb"}, []string{}), map[string]int{"nvidia.com/mig-3g.40gb": 1}, map[gpu.Reason]int{plan.ReasonNoResource: 1, plan.ReasonNoMIGDevice: 1}},
	} {
		p := planOf(t, "flags: {migStrategy: "+c.strategy+"}", c.node)
		require.Equal(t, c.want, counts(p), c.strategy)
		require.Equal(t, c.left, reasons(p), "%s: %+v", c.strategy, p.LeftOut)
	}
}

func TestResourcesNameDevicesByPattern(t *testing.T) {
	text := `
flags: {migStrategy: mixed}
resources:
  gpus: [{pattern: "*A100*", name: a100}, {pattern: "Tesla T4", name: t4}, {pattern: "*H100*", name: big}]
  mig: [{pattern: "1c.*", name: part}, {pattern: "1g.*+me", name: media}]
`
	require.Equal(t, map[string]int{"nvidia.com/a100": 1, "nvidia.com/t4": 1, "nvidia.com/big": 1, "nvidia.com/gpu": 1}, counts(planOf(t, text, gputest.Node("mixed", 4))))
	require.Equal(t, map[string]int{"nvidia.com/part": 2, "nvidia.com/media": 1, "nvidia.com/mig-1g.10gb": 1}, counts(planOf(t, text, divided([]string{"1c.3g.40gb", "1c.3g.40gb", "1g.10gb+me", "1g.10gb"}))))
}

func TestReplicaIDsMatchTheReference(t *testing.T) {
	p := planOf(t, "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}", gputest.Node("t4", 2))
	require.Len(t, p.Resources, 1)
	require.Equal(t, "nvidia.com/gpu.shared", p.Resources[0].Name)
	a, b := string(gputest.GPU(0)), string(gputest.GPU(1))
	require.Equal(t, []string{a + "::0", a + "::1", b + "::0", b + "::1"}, deviceIDs(p.Resources[0]))
	d := p.Resources[0].Devices[3]
	require.Equal(t, gputest.GPU(1), d.UUID())
	require.Equal(t, "1", d.IndexID())
	require.Equal(t, 1, d.Replica)
	require.Equal(t, 2, d.Replicas)
}

func TestDevicesAndRenameSelectSharedDevices(t *testing.T) {
	node := gputest.Node("a100-80gb", 4)
	for devices, want := range map[string]map[string]int{
		"all": {"nvidia.com/shared": 12}, "1": {"nvidia.com/shared": 3, "nvidia.com/gpu": 3}, "9": {"nvidia.com/shared": 12},
		"[2, 0]": {"nvidia.com/shared": 6, "nvidia.com/gpu": 2}, "[7]": {"nvidia.com/gpu": 4},
		"[" + string(gputest.GPU(3)) + "]": {"nvidia.com/shared": 3, "nvidia.com/gpu": 3},
	} {
		p := planOf(t, "sharing: {timeSlicing: {resources: [{name: gpu, rename: shared, replicas: 3, devices: "+devices+"}]}}", node)
		require.Equal(t, want, counts(p), devices)
	}
	heavy := "sharing: {timeSlicing: {resources: [{name: gpu, rename: heavy, replicas: 2, devices: [0]}, {name: gpu, rename: light, replicas: 8, devices: [1, 2]}]}}"
	require.Equal(t, map[string]int{"nvidia.com/heavy": 2, "nvidia.com/light": 16, "nvidia.com/gpu": 1}, counts(planOf(t, heavy, node)))
	p := planOf(t, "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: mig-1g.10gb, replicas: 2, devices: ['1:0']}]}}", divided([]string{"1g.10gb"}, []string{"1g.10gb", "1g.10gb"}))
	require.Equal(t, map[string]int{"nvidia.com/mig-1g.10gb": 4}, counts(p))
	require.Equal(t, "1:0", p.Resources[0].Devices[1].IndexID())
	require.Equal(t, 2, p.Resources[0].Devices[1].Replicas)
	require.Zero(t, p.Resources[0].Devices[3].Replicas)
}

func TestDevicesUnsupportedByMPSAreLeftOut(t *testing.T) {
	text := "flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 17}]}}"
	require.Equal(t, map[gpu.Reason]int{plan.ReasonMPS: 2}, reasons(planOf(t, text, divided([]string{"3g.40gb", "3g.40gb"}))))
	pascal := gputest.Node("t4", 2)
	pascal.Devices[1].Compute = gpu.Compute{Major: 6, Minor: 1}
	p := planOf(t, text, pascal)
	require.Equal(t, map[string]int{"nvidia.com/gpu": 17}, counts(p))
	require.Equal(t, gputest.GPU(1), p.LeftOut[0].GPU)
}

func TestTooLongListIsLeftOut(t *testing.T) {
	text := "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 16384}]}}"
	require.Equal(t, map[string]int{"nvidia.com/gpu": 3 * 16384}, counts(planOf(t, text, gputest.Node("t4", 3))))
	p := planOf(t, text, gputest.Node("t4", 4))
	require.Empty(t, p.Resources)
	require.Equal(t, map[gpu.Reason]int{plan.ReasonTooMany: 4}, reasons(p))
}

func TestIncludeAndExcludeSelectDevices(t *testing.T) {
	node := divided([]string{"3g.40gb", "1g.10gb"}, nil, nil)
	for text, want := range map[string][]string{
		"include: [1]":                   {"1"},
		"exclude: [1]":                   {"0:0", "0:1", "2"},
		"include: ['0:1', 2]":            {"0:1", "2"},
		"include: [0], exclude: ['0:0']": {"0:1"},
		"include: ['*A100*'], exclude: ['0000:12:00.0']": {"0:0", "0:1", "1"},
		"exclude: ['*']":        nil,
		"include: ['Tesla T4']": nil,
	} {
		p := planOf(t, "flags: {migStrategy: mixed}\ndevices: {"+text+"}", node)
		var got []string
		for _, r := range p.Resources {
			for _, d := range r.Devices {
				got = append(got, d.IndexID())
			}
		}
		slices.Sort(got)
		require.Equal(t, want, got, text)
		require.Len(t, p.LeftOut, 4-len(want))
	}
	require.Equal(t, map[string]int{"nvidia.com/gpu": 1},
		counts(planOf(t, "flags: {migStrategy: single}\ndevices: {exclude: ['0:0', 1, 2]}", node)), "what is excluded does not make a node unequal")
}

func TestLostGPUStaysListedAndAffectsNoOther(t *testing.T) {
	for _, strategy := range []string{"single", "mixed"} {
		c := configured(t, "flags: {migStrategy: "+strategy+"}")
		s := divided([]string{"3g.40gb", "3g.40gb"}, []string{"3g.40gb", "3g.40gb"})
		h := health.New(gpu.Fault{}).ApplySnapshot(s, now)
		before := plan.Compute(c, s, h)
		lost := s.Clone()
		lost.Devices[0] = gpu.Device{UUID: gputest.GPU(0), NUMANode: -1, Fault: gpu.Fault{Reason: gpu.ReasonLost}}
		after := plan.Compute(c, lost, h.ApplySnapshot(lost, now))
		require.Equal(t, counts(before), counts(after))
		for _, d := range after.Resources[0].Devices {
			require.Equal(t, d.GPU != gputest.GPU(0), d.Healthy())
		}
		// It was lost when first seen, so it is not known whether it is divided.
		unseen := plan.Compute(c, lost, health.New(gpu.Fault{}).ApplySnapshot(lost, now))
		require.Equal(t, 2, len(unseen.Resources[len(unseen.Resources)-1].Devices), "%+v", unseen)
	}
}

func TestPartsOfABrokenGPUAreUnhealthy(t *testing.T) {
	s := divided([]string{"3g.40gb", "3g.40gb"}, []string{"3g.40gb"}, nil)
	h := health.New(gpu.Fault{}).ApplySnapshot(s, now).SetAllWatched(now).ApplyEvent(gputest.XID(gputest.GPU(0), 79), now)
	p := plan.Compute(configured(t, "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: mig-3g.40gb, replicas: 5}]}}"), s, h)
	unhealthy := 0
	for _, r := range p.Resources {
		for _, d := range r.Devices {
			require.Equal(t, d.GPU != gputest.GPU(0), d.Healthy(), d.ID)
			if !d.Healthy() {
				unhealthy++
				require.EqualValues(t, 79, d.Fault.XID)
				require.Equal(t, now, d.Since)
			}
		}
	}
	require.Equal(t, 10, unhealthy)
}

func TestMissingGPUIsListedUnhealthy(t *testing.T) {
	s := gputest.Node("h100-sxm", 4)
	h := health.New(gpu.Fault{}).ApplySnapshot(s, now)
	s.Devices = s.Devices[1:]
	p := plan.Compute(configured(t, "version: v1"), s, h.ApplySnapshot(s, now))
	require.Equal(t, map[string]int{"nvidia.com/gpu": 4}, counts(p))
	require.Equal(t, gpu.ReasonMissing, p.Resources[0].Devices[0].Fault.Reason)
	// A GPU known only from an earlier process, without its product.
	remembered := health.New(gpu.Fault{}).ApplyEvent(gputest.XID(gputest.GPU(9), 79), now).ApplySnapshot(s, now)
	require.Equal(t, map[string]int{"nvidia.com/gpu": 4}, counts(plan.Compute(configured(t, "version: v1"), s, remembered)))
	p = plan.Compute(configured(t, "resources: {gpus: [{pattern: '*H100*', name: h100}]}"), s, remembered)
	require.Equal(t, map[string]int{"nvidia.com/h100": 3}, counts(p))
	require.Equal(t, map[gpu.Reason]int{plan.ReasonNoResource: 1}, reasons(p))
}

func TestGPUWithoutUUIDIsLeftOut(t *testing.T) {
	s := gputest.Node("t4", 2)
	s.Devices[1].UUID, s.Devices[1].Fault = "", gpu.Fault{Reason: gpu.ReasonUnreadable}
	p := planOf(t, "version: v1", s)
	require.Equal(t, map[string]int{"nvidia.com/gpu": 1}, counts(p))
	require.Equal(t, map[gpu.Reason]int{plan.ReasonNoUUID: 1}, reasons(p))
	require.Equal(t, s.Devices[1].PCI, p.LeftOut[0].PCI)
}

// node draws a node of any layout.
func node(t *rapid.T) gpu.Snapshot {
	s := gputest.Node(rapid.SampledFrom([]string{"a100-80gb", "mixed", "t4"}).Draw(t, "profile"), rapid.IntRange(1, 6).Draw(t, "gpus"))
	for i := range s.Devices {
		if rapid.Bool().Draw(t, "MIG") {
			s.Devices[i] = gputest.WithMIG(s.Devices[i], rapid.SliceOfN(rapid.SampledFrom([]string{"1g.10gb", "3g.40gb", "1g.10gb+me", "1c.3g.40gb"}), 0, 4).Draw(t, "layout")...)
		}
	}
	return s
}

// anyConfig draws a well-formed configuration.
func anyConfig(t *rapid.T) string {
	text := "flags: {migStrategy: " + rapid.SampledFrom([]string{"none", "single", "mixed"}).Draw(t, "strategy") + "}\n"
	if rapid.Bool().Draw(t, "named") {
		text += "resources: {gpus: [{pattern: '*T4', name: t4}], mig: [{pattern: '1*', name: gpu}]}\n"
	}
	if rapid.Bool().Draw(t, "shared") {
		text += fmt.Sprintf("sharing: {timeSlicing: {renameByDefault: %v, resources: [{name: gpu, replicas: %d, devices: %s}, {name: mig-3g.40gb, rename: gpu, replicas: 2}]}}\n",
			rapid.Bool().Draw(t, "rename"), rapid.IntRange(2, 4).Draw(t, "replicas"), rapid.SampledFrom([]string{"all", "1", "[0, '1:0']"}).Draw(t, "devices"))
	}
	return text + "devices: {" + rapid.SampledFrom([]string{"", "include: [0, 2]", "exclude: ['*A100*']", "exclude: ['0:0', 1]"}).Draw(t, "chosen") + "}\n"
}

func TestEveryDeviceIsAdvertisedOnceOrLeftOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, text := node(t), anyConfig(t)
		p := planOf(t, text, s)
		require.Equal(t, p, planOf(t, text, s), "the same question gets the same answer")
		ids := map[string]bool{}
		parts := map[gpu.UUID]int{}
		for _, r := range p.Resources {
			require.NotEmpty(t, r.Devices)
			for _, d := range r.Devices {
				require.False(t, ids[d.ID], "an ID twice: %s", d.ID)
				ids[d.ID] = true
				require.True(t, d.Healthy())
				if d.Replica == 0 {
					parts[d.UUID()]++
				}
			}
		}
		for _, l := range p.LeftOut {
			require.NotEmpty(t, l.Reason)
			require.NotEmpty(t, l.Message)
			id := l.GPU
			if l.MIG.UUID != "" {
				id = l.MIG.UUID
			}
			parts[id]++
		}
		mixed := configured(t, text).Flags.MIG() != config.MIGNone
		want := 0
		for _, d := range s.Devices {
			if mixed && d.MIGEnabled && len(d.MIG) > 0 {
				for _, m := range d.MIG {
					require.Equal(t, 1, parts[m.UUID])
					want++
				}
				continue
			}
			require.Equal(t, 1, parts[d.UUID])
			want++
		}
		require.Len(t, parts, want)
	})
}

// Whenever the reference advertises anything, ours advertises the same, unless the file
// has keys that the reference discards.
func TestResourcesMatchTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := node(t)
		text := "flags: {migStrategy: " + rapid.SampledFrom([]string{"none", "single", "mixed"}).Draw(t, "strategy") + "}\n"
		if rapid.Bool().Draw(t, "shared") {
			text += fmt.Sprintf("sharing: {timeSlicing: {renameByDefault: %v, resources: [{name: gpu, replicas: %d}, {name: nvidia.com/mig-3g.40gb, replicas: 2}]}}\n",
				rapid.Bool().Draw(t, "rename"), rapid.IntRange(2, 9).Draw(t, "replicas"))
		}
		want, err := reference([]byte(text), s)
		if err != nil {
			require.NotEmpty(t, planOf(t, text, s).LeftOut, "%v", err)
			return
		}
		p := planOf(t, text, s)
		require.Equal(t, want, counts(p))
		require.Empty(t, p.LeftOut)
	})
}
