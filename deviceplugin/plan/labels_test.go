package plan_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/test/lab/golden"
)

var started = time.Unix(1700000000, 0)

// node is a healthy node with that configuration and complete host data.
func labelInput(t require.TestingT, text string, s gpu.Snapshot) plan.LabelInput {
	c, _, err := config.Parse([]byte(text), "c.yaml", config.Options{})
	require.NoError(t, err)
	h := health.New(gpu.Fault{}).ApplySnapshot(s, started)
	n := plan.LabelInput{Snapshot: s, Health: h, Config: c, Plan: plan.Compute(c, s, h), Machine: plan.Machine{
		ProductName: "DGX H100", Classes: map[gpu.PCIAddress]uint32{},
	}}
	for _, d := range s.Devices {
		n.Machine.Classes[d.PCI] = 0x030200
		for i := range d.MIG {
			d.MIG[i].Attributes = gpu.Attributes{Multiprocessors: 14, CopyEngines: 1, Decoders: 1, JPEGEngines: 1}
		}
	}
	return n
}

// labelsOf returns the labels of node.
func labelsOf(t require.TestingT, text string, s gpu.Snapshot) map[string]string {
	return plan.Labels(labelInput(t, text, s))
}

// divided is a node of A100 GPUs with the MIG devices of the layouts; nil: not in MIG
// mode; "empty": in MIG mode without MIG devices.
func divided(layouts ...[]string) gpu.Snapshot {
	s := gputest.Node("a100-80gb", len(layouts))
	for i, layout := range layouts {
		if layout != nil {
			s.Devices[i] = gputest.WithMIG(s.Devices[i], slices.DeleteFunc(slices.Clone(layout), func(p string) bool { return p == "empty" })...)
		}
	}
	return s
}

func TestLabelsOfEachNode(t *testing.T) {
	seven := slices.Repeat([]string{"1g.10gb"}, 7)
	three := []string{"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb+me"}
	shared := "\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}, {name: mig-1g.10gb, replicas: 2}]}}"
	type described struct {
		config string
		s      gpu.Snapshot
	}
	nodes := map[string]described{
		"mig-none":                {"flags: {migStrategy: none}", divided(seven, seven)},
		"mig-single":              {"flags: {migStrategy: single}", divided(seven, seven)},
		"mig-single-whole":        {"flags: {migStrategy: single}", divided(nil, nil)},
		"mig-single-profiles":     {"flags: {migStrategy: single}", divided(seven, three)},
		"mig-single-partly":       {"flags: {migStrategy: single}", divided(seven, nil)},
		"mig-single-one-empty":    {"flags: {migStrategy: single}", divided(seven, []string{"empty"})},
		"mig-single-all-empty":    {"flags: {migStrategy: single}", divided([]string{"empty"})},
		"mig-single-shared":       {"flags: {migStrategy: single}" + shared, divided(seven)},
		"mig-mixed":               {"flags: {migStrategy: mixed}", divided(three, seven)},
		"mig-mixed-partly":        {"flags: {migStrategy: mixed}", divided(three, nil, nil)},
		"mig-mixed-shared":        {"flags: {migStrategy: mixed}" + shared, divided(three, nil)},
		"mig-mixed-compute-parts": {"flags: {migStrategy: mixed}", divided([]string{"1c.3g.40gb", "2c.3g.40gb"})},
		"time-slicing":            {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", gputest.Node("t4", 2)},
		"time-slicing-renamed":    {"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}", gputest.Node("t4", 2)},
		"time-slicing-some":       {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [1]}]}}", gputest.Node("t4", 2)},
		"time-slicing-other-name": {"resources: {gpus: [{pattern: '*T4', name: t4}]}\nsharing: {timeSlicing: {resources: [{name: t4, replicas: 8}]}}", gputest.Node("t4", 2)},
		"mps":                     {"sharing: {mps: {resources: [{name: gpu, replicas: 10}]}}", gputest.Node("l40s", 4)},
		"mps-mig":                 {"flags: {migStrategy: single}\nsharing: {mps: {resources: [{name: gpu, replicas: 10}]}}", divided(seven)},
		"display-card-excluded":   {"devices: {exclude: ['Tesla*', 'NVIDIA L40S', 'NVIDIA H100*']}", gputest.Node("mixed", 7)},
		"nothing-to-advertise":    {"devices: {include: ['NVIDIA A2']}", gputest.Node("mixed", 4)},
		"no-gpu":                  {"version: v1", gpu.Snapshot{Driver: gputest.Node("t4", 1).Driver}},
	}
	for _, profile := range gputest.Profiles() {
		nodes[profile] = described{"version: v1", gputest.Node(profile, 0)}
	}
	for name, n := range nodes {
		t.Run(name, func(t *testing.T) {
			l := labelsOf(t, n.config, n.s)
			valid(t, l)
			golden.Require(t, "testdata/labels/"+name+".golden", plan.LabelLines(l))
			compare(t, name, l)
		})
	}
	files, err := filepath.Glob("testdata/labels/*.golden")
	require.NoError(t, err)
	require.Len(t, files, len(nodes), "a golden file that nothing writes")
}

// differs are the nodes for which the reference has other labels, and why.
var differs = map[string]string{
	"display-card-excluded":   "it knows no devices.exclude, and takes any of several products",
	"nothing-to-advertise":    "it knows no devices.include",
	"mixed":                   "it takes any of several products, another one each time",
	"mig-single-one-empty":    "it gives all up for one GPU that is not divided",
	"mig-mixed-compute-parts": "it has a memory of 0, where it is not known",
	"mps-mig":                 "it ends with an error",
	"time-slicing-other-name": "it throws resources away",
}

// compare compares labels with those of the reference: the output of NewDeviceLabeler
// of internal/lm, v0.19.0, for the same nodes, described by its own mocks.
func compare(t *testing.T, name string, l map[string]string) {
	data, err := os.ReadFile("testdata/labels/reference/" + name + ".txt")
	require.NoError(t, err)
	if differs[name] == "" {
		require.Equal(t, string(data), plan.LabelLines(l))
	} else {
		require.NotEqual(t, string(data), plan.LabelLines(l))
	}
}

// valid checks that Kubernetes accepts the labels, and the validator a state with them.
func valid(t require.TestingT, l map[string]string) {
	for name, value := range l {
		require.Empty(t, validation.IsQualifiedName(name), name)
		require.Empty(t, validation.IsValidLabelValue(value), "%s=%s", name, value)
	}
	data, err := json.Marshal(nodestate.State{
		Version: nodestate.Version, Component: nodestate.DevicePlugin, Phase: nodestate.Ready,
		BootID: "00000000-0000-4000-8000-000000000000", Time: started, DevicePlugin: &nodestate.DevicePluginInfo{Labels: l},
	})
	require.NoError(t, err)
	_, err = nodestate.Parse(data)
	require.NoError(t, err)
}

func TestHealthChangesNoLabel(t *testing.T) {
	n := labelInput(t, "version: v1", gputest.Node("h100-sxm", 8))
	want := plan.Labels(n)
	n.Health = n.Health.SetAllWatched(started).ApplyEvent(gputest.XID(gputest.GPU(3), 79), started)
	n.Plan = plan.Compute(n.Config, n.Snapshot, n.Health)
	require.Equal(t, want, plan.Labels(n))
	n.Snapshot = n.Snapshot.Clone()
	n.Snapshot.Devices[2].Fault = gpu.Fault{Reason: gpu.ReasonLost} // the rest is remembered
	require.Equal(t, want, plan.Labels(n))
	n.Snapshot.Devices = n.Snapshot.Devices[1:]
	n.Health = n.Health.ApplySnapshot(n.Snapshot, started)
	n.Plan = plan.Compute(n.Config, n.Snapshot, n.Health)
	require.Equal(t, want, plan.Labels(n), "one that went missing is counted by the kubelet too")
	n.Snapshot.Devices[0].Product = ""
	require.Equal(t, "7", plan.Labels(n)["nvidia.com/gpu.count"], "one that has no name")
}

func TestTimestampIsTheStartAndOptional(t *testing.T) {
	n := labelInput(t, "version: v1", gputest.Node("t4", 1))
	require.NotContains(t, plan.Labels(n), "nvidia.com/gfd.timestamp")
	n.Machine.Started = started
	require.Equal(t, "1700000000", plan.Labels(n)["nvidia.com/gfd.timestamp"])
	off := labelInput(t, "flags: {gfd: {noTimestamp: true}}", n.Snapshot)
	off.Machine.Started = started
	require.NotContains(t, plan.Labels(off), "nvidia.com/gfd.timestamp")
}

// joined is a part of an NVLink fabric.
var joined = gpu.Fabric{Cluster: [16]byte{0x7b, 0x96, 0x8a, 0x6d, 0xc8, 0xaa, 0x45, 0xe1, 0x9e, 7, 0xe1, 0xe5, 0x1b, 0xe9, 0x9c, 0x31}, Clique: 1}

func TestCliqueIsCommonToAllGPUs(t *testing.T) {
	n := labelInput(t, "version: v1", gputest.Node("h100-sxm", 3))
	f := joined
	n.Snapshot.Devices[0].Fabric, n.Snapshot.Devices[2].Fabric = f, f
	require.Equal(t, "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1", plan.Labels(n)["nvidia.com/gpu.clique"])
	f.Clique = 2
	n.Snapshot.Devices[2].Fabric = f
	require.NotContains(t, plan.Labels(n), "nvidia.com/gpu.clique", "two partitions")
	n.Snapshot.Devices[0].Fabric, n.Snapshot.Devices[2].Fabric = gpu.Fabric{Clique: 3}, gpu.Fabric{}
	require.NotContains(t, plan.Labels(n), "nvidia.com/gpu.clique", "no cluster")
}

func TestModeIsCommonToAllGPUs(t *testing.T) {
	n := labelInput(t, "version: v1", gputest.Node("t4", 2))
	for want, classes := range map[string][]uint32{"compute": {0x030200, 0x030200}, "graphics": {0x030000, 0x030000}, "unknown": {0x030200, 0x030000}} {
		n.Machine.Classes = map[gpu.PCIAddress]uint32{n.Snapshot.Devices[0].PCI: classes[0], n.Snapshot.Devices[1].PCI: classes[1]}
		require.Equal(t, want, plan.Labels(n)["nvidia.com/gpu.mode"])
	}
	delete(n.Machine.Classes, n.Snapshot.Devices[1].PCI)
	require.Equal(t, "unknown", plan.Labels(n)["nvidia.com/gpu.mode"])
}

func TestUnknownAttributesAreLeftOut(t *testing.T) {
	n := labelInput(t, "flags: {migStrategy: mixed}", divided([]string{"1g.10gb"}))
	n.Machine = plan.Machine{}
	n.Snapshot.Devices[0].MIG[0].Attributes = gpu.Attributes{}
	l := plan.Labels(n)
	require.Equal(t, "1", l["nvidia.com/mig-1g.10gb.slices.gi"])
	require.NotContains(t, l, "nvidia.com/mig-1g.10gb.multiprocessors")
	require.Equal(t, "unknown", l["nvidia.com/gpu.machine"])
	require.Equal(t, "unknown", l["nvidia.com/gpu.mode"])
}

func TestEveryArchitectureHasItsFamily(t *testing.T) {
	for c, want := range map[gpu.Compute]string{
		{Major: 7}: "volta", {Major: 7, Minor: 5}: "turing", {Major: 8, Minor: 9}: "ada-lovelace", {Major: 10, Minor: 3}: "blackwell",
		{Major: 11}: "blackwell", {Major: 12, Minor: 1}: "blackwell", {Major: 13}: "rubin", {Major: 14}: "undefined",
	} {
		s := gputest.Node("t4", 1)
		s.Devices[0].Compute = c
		require.Equal(t, want, labelsOf(t, "flags: {migStrategy: none}", s)["nvidia.com/gpu.family"], "%v", c)
	}
}

func TestLongProductNameIsShortened(t *testing.T) {
	s := gputest.Node("t4", 1)
	s.Devices[0].Product = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
	s.Devices[0].Compute = gpu.Compute{Major: 12}
	l := labelsOf(t, "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", s)
	require.Equal(t, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-SHARED", l["nvidia.com/gpu.product"])
	require.Equal(t, "blackwell", l["nvidia.com/gpu.family"])
	s.Devices[0] = gputest.WithMIG(s.Devices[0], "1g.24gb+me")
	l = labelsOf(t, "flags: {migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}", s)
	require.Equal(t, "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Worksta-MIG-1g.24gb.me-SHARED"[:39], l["nvidia.com/gpu.product"][:39])
	require.True(t, strings.HasSuffix(l["nvidia.com/gpu.product"], "-MIG-1g.24gb.me-SHARED"))
	require.LessOrEqual(t, len(l["nvidia.com/gpu.product"]), 63)
}

func TestUnknownVersionFormHasNoLabels(t *testing.T) {
	s := gputest.Node("t4", 1)
	s.Driver = gpu.Driver{Version: "580.95"}
	l := labelsOf(t, "version: v1", s)
	require.Equal(t, "", l["nvidia.com/cuda.driver.rev"])
	require.Contains(t, l, "nvidia.com/cuda.driver-version.revision")
	require.NotContains(t, l, "nvidia.com/cuda.runtime.major")
	s.Driver = gpu.Driver{Version: "devel", CUDAVersion: "13"}
	for name := range labelsOf(t, "version: v1", s) {
		require.NotContains(t, name, "cuda")
	}
}
