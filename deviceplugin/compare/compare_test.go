package compare

import (
	"slices"
	"strings"
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

var now = time.Unix(1000, 0)

const whole = "version: v1\n"

// oursWith returns what ours would advertise after the events.
func oursWith(t require.TestingT, text string, s gpu.Snapshot, events ...gpu.Event) Ours {
	c, _, err := config.Parse([]byte(text), "c.yaml", config.Options{})
	require.NoError(t, err)
	h := health.New(gpu.Fault{}).ApplySnapshot(s, now).SetAllWatched(now)
	for _, e := range events {
		h = h.ApplyEvent(e, now)
	}
	return Ours{plan.Compute(c, s, h), s}
}

// kubeletOf returns what the kubelet would know from a plugin that behaves like ours.
func kubeletOf(o Ours) Theirs {
	t := Theirs{Devices: map[string][]Device{}}
	for _, r := range o.Plan.Resources {
		for _, d := range r.Devices {
			if d.Healthy() {
				one := Device{ID: d.ID}
				if d.NUMANode >= 0 {
					one.NUMA = []int64{int64(d.NUMANode)}
				}
				t.Devices[r.Name] = append(t.Devices[r.Name], one)
			}
		}
	}
	return t
}

// summaries returns each difference in one line.
func summaries(all []Difference) []string {
	out := []string{}
	for _, d := range all {
		device := ""
		if d.Device != "" {
			device = " " + string(d.Device)[len(d.Device)-1:]
		}
		line := string(d.Kind) + " " + d.Resource + device + ": " + d.Ours + " / " + d.Theirs
		if d.Reason != "" {
			line += " " + string(d.Reason)
		}
		out = append(out, strings.NewReplacer(string(gputest.GPU(0)), "GPU0", string(gputest.GPU(1)), "GPU1").Replace(line))
	}
	return out
}

func TestDifferences(t *testing.T) {
	two := gputest.Node("h100-sxm", 2)
	xid := gputest.XID(gputest.GPU(1), 79)
	shared := func(replicas string) string {
		return "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: " + replicas + "}]}}"
	}
	renamed := "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
	divided := gputest.Node("a100-80gb", 2)
	divided.Devices[0] = gputest.WithMIG(divided.Devices[0], "3g.40gb")
	for name, c := range map[string]struct {
		ours   Ours
		theirs Theirs
		want   []string
	}{
		"nothing":                 {oursWith(t, whole, two), kubeletOf(oursWith(t, whole, two)), nil},
		"both hold one unhealthy": {oursWith(t, whole, two, xid), kubeletOf(oursWith(t, whole, two, xid)), nil},
		"ours holds one unhealthy": {
			oursWith(t, whole, two, xid), kubeletOf(oursWith(t, whole, two)),
			[]string{"health nvidia.com/gpu 1: Unhealthy / Healthy XID"},
		},
		"one replica of ten is marked by the other": {
			oursWith(t, shared("10"), two, xid), func() Theirs {
				theirs := kubeletOf(oursWith(t, shared("10"), two))
				theirs.Devices["nvidia.com/gpu"] = theirs.Devices["nvidia.com/gpu"][:19]
				return theirs
			}(),
			[]string{"health nvidia.com/gpu 1: Unhealthy / Healthy XID"},
		},
		"the other lists one less": {
			oursWith(t, whole, two), kubeletOf(oursWith(t, whole, gputest.Node("h100-sxm", 1))),
			[]string{"device nvidia.com/gpu 1: GPU1 / none"},
		},
		"ours leaves one out": {
			oursWith(t, "version: v1\ndevices: {exclude: [1]}", two), kubeletOf(oursWith(t, whole, two)),
			[]string{"device nvidia.com/gpu 1: none / GPU1 Excluded"},
		},
		"as many replicas": {oursWith(t, shared("4"), two), kubeletOf(oursWith(t, shared("4"), two)), nil},
		"more replicas": {
			oursWith(t, shared("4"), two), kubeletOf(oursWith(t, shared("3"), two)),
			[]string{"replicas nvidia.com/gpu 0: 4 replicas / 3 replicas", "replicas nvidia.com/gpu 1: 4 replicas / 3 replicas"},
		},
		"replicas and none": {
			oursWith(t, whole, two), kubeletOf(oursWith(t, shared("2"), two)),
			[]string{"replicas nvidia.com/gpu 0: GPU0 / 2 replicas", "replicas nvidia.com/gpu 1: GPU1 / 2 replicas"},
		},
		"another name": {
			oursWith(t, renamed, two), kubeletOf(oursWith(t, whole, two)),
			[]string{"name nvidia.com/gpu.shared 0: nvidia.com/gpu.shared / nvidia.com/gpu", "name nvidia.com/gpu.shared 1: nvidia.com/gpu.shared / nvidia.com/gpu"},
		},
		"another name, and unhealthy": {
			oursWith(t, renamed, two, xid), kubeletOf(oursWith(t, whole, two)),
			[]string{
				"health nvidia.com/gpu.shared 1: Unhealthy / Healthy XID",
				"name nvidia.com/gpu.shared 0: nvidia.com/gpu.shared / nvidia.com/gpu", "name nvidia.com/gpu.shared 1: nvidia.com/gpu.shared / nvidia.com/gpu",
			},
		},
		"divided, and advertised as a whole": {
			oursWith(t, "version: v1\nflags: {migStrategy: mixed}", divided), kubeletOf(oursWith(t, whole, divided)),
			[]string{"device nvidia.com/gpu 0: none / GPU0", "resource nvidia.com/mig-3g.40gb: 1 devices / none"},
		},
		"nobody else is there": {
			oursWith(t, whole, two), Theirs{},
			[]string{"resource nvidia.com/gpu: 2 devices / none"},
		},
		"a resource of others": {
			oursWith(t, whole, two), func() Theirs {
				theirs := kubeletOf(oursWith(t, whole, two))
				theirs.Devices["nvidia.com/hostdev"] = []Device{{ID: "0000:3b:00.1"}}
				theirs.Devices["nvidia.com/old"] = []Device{{ID: "GPU-x"}, {ID: "GPU-y"}}
				return theirs
			}(),
			[]string{"resource nvidia.com/old: none / 2 devices"},
		},
		"another NUMA node": {
			oursWith(t, whole, two), func() Theirs {
				theirs := kubeletOf(oursWith(t, whole, two))
				theirs.Devices["nvidia.com/gpu"][0].NUMA = nil
				return theirs
			}(),
			[]string{"numa nvidia.com/gpu 0: node 0 / no node"},
		},
		"a checkpoint does not tell NUMA nodes": {
			oursWith(t, whole, two), func() Theirs {
				theirs := kubeletOf(oursWith(t, whole, two))
				theirs.Checkpoint = true
				theirs.Devices["nvidia.com/gpu"][0].NUMA = nil
				return theirs
			}(), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := summaries(compare(c.ours, c.theirs, nil))
			require.Equal(t, append([]string{}, c.want...), got)
		})
	}
}

func TestHolderOfAnUnhealthyGPUIsNamed(t *testing.T) {
	s := gputest.Node("h100-sxm", 2)
	o, theirs := oursWith(t, whole, s, gputest.XID(gputest.GPU(1), 79)), kubeletOf(oursWith(t, whole, s))
	theirs.Allocations = []Allocation{{"default", "a", "main", "nvidia.com/gpu", []string{string(gputest.GPU(1))}}}
	found := compare(o, theirs, nil)
	require.Len(t, found, 1)
	require.Contains(t, found[0].Message, "; default/a/main has it")
	require.Equal(t, now, found[0].Since)
}

// drawOurs draws a node, its health and a configuration.
func drawOurs(t *rapid.T) Ours {
	text := rapid.SampledFrom([]string{
		whole,
		"version: v1\nflags: {migStrategy: mixed}",
		"version: v1\nflags: {migStrategy: single}",
		"version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 3}, {name: nvidia.com/mig-1g.10gb, replicas: 2}]}}",
		"version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2, devices: [0, 1]}]}}",
		"version: v1\ndevices: {exclude: [0]}",
	}).Draw(t, "configuration")
	s := gputest.Node(rapid.SampledFrom(gputest.Profiles()).Draw(t, "profile"), rapid.IntRange(1, 8).Draw(t, "gpus"))
	var events []gpu.Event
	for i := range s.Devices {
		if rapid.IntRange(0, 3).Draw(t, "broken") == 0 {
			events = append(events, gputest.XID(gputest.GPU(i), 79))
		}
	}
	return oursWith(t, text, s, events...)
}

func TestEqualPluginsDoNotDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawOurs(t)
		theirs := kubeletOf(o)
		for name := range theirs.Devices {
			theirs.Devices[name] = rapid.Permutation(theirs.Devices[name]).Draw(t, name)
		}
		var h History
		require.Empty(t, h.Compare(o, theirs, now))
		require.Empty(t, h.Compare(o, theirs, now))
	})
}

// Every removal, addition or renaming on the other side is reported.
func TestEveryDifferenceIsReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := drawOurs(t)
		theirs := kubeletOf(o)
		var names []string
		for _, r := range o.Plan.Resources {
			if len(theirs.Devices[r.Name]) > 0 {
				names = append(names, r.Name)
			}
		}
		if len(names) == 0 {
			return
		}
		name := rapid.SampledFrom(names).Draw(t, "resource")
		list := slices.Clone(theirs.Devices[name])
		i := rapid.IntRange(0, len(list)-1).Draw(t, "device")
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			theirs.Devices[name] = slices.Delete(list, i, i+1)
		case 1:
			theirs.Devices[name] = append(list, Device{ID: "GPU-another"})
		case 2:
			theirs.Devices[name] = slices.Delete(slices.Clone(list), i, i+1)
			theirs.Devices["nvidia.com/another"] = list[i : i+1]
		case 3:
			list[i].NUMA = append(slices.Clone(list[i].NUMA), 7)
			for j := range list {
				if deviceOf(list[j].ID) == deviceOf(list[i].ID) {
					list[j].NUMA = list[i].NUMA
				}
			}
			theirs.Devices[name] = list
		}
		require.NotEmpty(t, compare(o, theirs, nil))
	})
}
