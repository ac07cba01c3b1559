package fleet

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/operator/label"
)

const deployDriver = label.Deploy + label.DriverOperand

func placed(driver string, operands ...string) Placement {
	return Placement{Operands: append(operands, "driver", "device-plugin"), Driver: driver}
}

// shown formats a patch for people: "+key=value", "-key".
func shown(p Patch) map[string]string {
	out := map[string]string{}
	for _, part := range []map[string]*string{p.Labels, p.Annotations} {
		for key, value := range part {
			if value == nil {
				out["-"+key] = ""
			} else {
				out["+"+key] = *value
			}
		}
	}
	return out
}

func TestPatches(t *testing.T) {
	const wrote = "+" + label.OwnLabels
	plugin, dcgm := label.Deploy+"device-plugin", label.Deploy+"dcgm"
	all := "deploy.device-plugin,deploy.driver,present"
	served := map[string]string{label.Present: "true", deployDriver: "true", plugin: "true", label.Driver: "ubuntu22.04", label.Injection: "nri"}
	and := func(more ...string) map[string]string {
		labels := maps.Clone(served)
		maps.Copy(labels, with(label.PCI3D, "true"))
		for i := 0; i < len(more); i += 2 {
			labels[more[i]] = more[i+1]
			if more[i+1] == "" {
				delete(labels, more[i])
			}
		}
		return labels
	}
	for _, c := range []struct {
		name   string
		labels map[string]string
		wrote  string
		want   Placement
		patch  map[string]string
	}{
		{"a new node", with(label.PCI3D, "true"), "", placed("ubuntu22.04"), map[string]string{
			"+" + label.Present: "true", "+" + deployDriver: "true", "+" + plugin: "true",
			"+" + label.Driver: "ubuntu22.04", "+" + label.Injection: "nri", wrote: all}},
		{"no GPU", with(), "", placed("ubuntu22.04"), map[string]string{}},
		{"steady", and(), all, placed("ubuntu22.04"), map[string]string{}},
		{"another driver", and(), all, placed("rhel9.6"), map[string]string{"+" + label.Driver: "rhel9.6"}},
		{"no driver yet", and(), all, placed(""), map[string]string{"-" + label.Driver: ""}},
		{"an operand more", and(), all, placed("ubuntu22.04", "dcgm"), map[string]string{"+" + dcgm: "true", wrote: "deploy.dcgm," + all}},
		{"an operand less", and(dcgm, "true"), "deploy.dcgm," + all, placed("ubuntu22.04"), map[string]string{"-" + dcgm: "", wrote: all}},
		{"a person's operand stays", and(dcgm, "true"), all, placed("ubuntu22.04"), map[string]string{}},
		{"a person keeps one away", and(plugin, "false"), all, placed("ubuntu22.04"), map[string]string{wrote: "deploy.driver,present"}},
		{"what NVIDIA's operator left is taken as it is", and(), "", placed("ubuntu22.04"), map[string]string{}},
		{"a person takes one of ours: it comes back", and(plugin, ""), all, placed("ubuntu22.04"), map[string]string{"+" + plugin: "true"}},
		{"an upgrade pauses one", and(plugin, label.Paused), all, placed("ubuntu22.04"), map[string]string{}},
		{"a paused one is not wanted any more", and(dcgm, label.Paused), "deploy.dcgm," + all, placed("ubuntu22.04"), map[string]string{"-" + dcgm: "", wrote: all}},
		{"a person keeps all away", and(label.Operands, "false", dcgm, "true"), all, placed("ubuntu22.04"), map[string]string{
			"-" + deployDriver: "", "-" + plugin: "", "-" + dcgm: "", "-" + label.Driver: "", "-" + label.Injection: "", wrote: "present"}},
		{"the GPU has gone", and(label.PCI3D, ""), all, placed("ubuntu22.04"), map[string]string{
			"-" + label.Present: "", "-" + deployDriver: "", "-" + plugin: "", "-" + label.Driver: "", "-" + label.Injection: "", "-" + label.OwnLabels: ""}},
		{"a driver on the host", and(), all, Placement{Operands: []string{"driver", "device-plugin"}, Driver: "ubuntu22.04", HostDriver: true}, map[string]string{
			"+" + deployDriver: label.PreInstalled, "+" + label.Driver: label.PreInstalled}},
		{"and no longer", and(deployDriver, label.PreInstalled, label.Driver, label.PreInstalled), all, placed("ubuntu22.04"), map[string]string{
			"+" + deployDriver: "true", "+" + label.Driver: "ubuntu22.04"}},
		{"a driver on the host, and somebody else's true", and(), "present", Placement{Operands: []string{"driver"}, HostDriver: true}, map[string]string{
			"+" + deployDriver: label.PreInstalled, "+" + label.Driver: label.PreInstalled, wrote: "deploy.driver=true,present"}},
		{"which comes back", and(deployDriver, label.PreInstalled), "deploy.driver=true,present", Placement{}, map[string]string{
			"+" + deployDriver: "true", "-" + label.Driver: "", wrote: "present"}},
		{"but not where all are kept away", and(deployDriver, label.PreInstalled, plugin, "", label.Operands, "false"), "deploy.driver=true,present", Placement{}, map[string]string{
			"-" + deployDriver: "", "-" + label.Driver: "", "-" + label.Injection: "", wrote: "present"}},
		{"a person's pre-installed stays", and(deployDriver, label.PreInstalled), "deploy.device-plugin,present", placed("ubuntu22.04"), map[string]string{}},
		{"NVIDIA's operator runs", and(), all, Placement{HandOver: true, Operands: []string{"driver"}, Driver: "ubuntu22.04"}, map[string]string{
			"-" + deployDriver: "", "-" + plugin: "", "-" + label.Driver: "", "-" + label.Injection: "", wrote: "present"}},
		{"and the node is handed over", with(label.PCI3D, "true", label.HandOver, "gpuready", label.Operands, "false"), "", Placement{HandOver: true, Operands: []string{"driver"}, Driver: "ubuntu22.04"}, map[string]string{
			"+" + label.Driver: "ubuntu22.04", "+" + label.Injection: "nri"}},
		{"and NVIDIA's operator has gone", and(label.HandOver, "gpuready", label.Operands, "false", label.Present, "", deployDriver, "", plugin, ""), "", placed("ubuntu22.04"), map[string]string{
			"+" + label.Present: "true", "+" + deployDriver: "true", "+" + plugin: "true", wrote: all}},
	} {
		n := node(c.labels)
		if c.wrote != "" {
			n.Annotations = map[string]string{label.OwnLabels: c.wrote}
		}
		require.Equal(t, c.patch, shown(Observe(n).LabelPatch(c.want)), c.name)
	}
}

func TestRemoval(t *testing.T) {
	n := node(with(label.PCI3D, "true", label.Deploy+"dcgm", "true", label.Operands, "x"))
	before := n.DeepCopy()
	n = apply(n, Observe(n).LabelPatch(placed("a", "dcgm")))
	n.Labels[label.UpgradeState] = "upgrade-done"
	n.Annotations[label.UpgradeSince] = "now"
	n = apply(n, Observe(n).RemovalPatch(false))
	require.Equal(t, before.Labels, n.Labels)
	require.Empty(t, n.Annotations)
	require.True(t, Observe(n).RemovalPatch(false).Empty())

	n.Labels[label.UpgradeState] = "upgrade-done"
	require.True(t, Observe(n).RemovalPatch(false).Empty(), "where the operator never was, it is NVIDIA's")
	require.True(t, Observe(n).RemovalPatch(true).Empty(), "nor is a validator there the operator's")
}

// The validator writes twice after the operator has released the Node.
func TestLateValidatorLabelsAreRemoved(t *testing.T) {
	for name, letGo := range map[string]func(n *Node, hasValidator bool) Patch{
		"there is no policy": (*Node).RemovalPatch,
		"it has no GPU": func(n *Node, hasValidator bool) Patch {
			return n.LabelPatch(Placement{Operands: []string{"driver"}, HasValidator: hasValidator})
		},
	} {
		n := node(with(label.PCI3D, "true"))
		n = apply(n, Observe(n).LabelPatch(placed("a", "driver")))
		delete(n.Labels, label.PCI3D)
		n = apply(n, letGo(Observe(n), true))
		require.Equal(t, map[string]string{label.OwnLabels: ""}, n.Annotations, name)
		before := maps.Clone(n.Labels)
		for _, hasValidator := range []bool{true, false} {
			n.Labels[label.GPUProduct] = "NVIDIA-L4"
			n.Annotations[label.Features] = "gpu.product"
			n = apply(n, letGo(Observe(n), hasValidator))
			require.Equal(t, before, n.Labels, name)
			require.True(t, letGo(Observe(n), hasValidator).Empty(), name)
		}
		require.Empty(t, n.Annotations, name)
	}
}

func TestPatchNamesItsBaseVersion(t *testing.T) {
	p := Observe(node(with(label.PCI3D, "true"))).LabelPatch(Placement{})
	require.False(t, p.Empty())
	data, err := p.JSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"metadata":{"uid":"1","resourceVersion":"7",
		"labels":{"nvidia.com/gpu.present":"true","gpuready.io/injection":"nri"},
		"annotations":{"gpuready.io/labels":"present"}}}`, string(data))
}

// anyNode draws relevant labels with values that people and programs give them.
func anyNode(t *rapid.T) *corev1.Node {
	keys := []string{label.PCI3D, label.Kernel, label.OSID, label.Present, label.Operands, deployDriver, label.Deploy + "device-plugin", label.Deploy + "dcgm",
		label.Deploy + "someone-elses", label.Driver, label.Injection, label.HandOver, "example.com/mine"}
	values := []string{"true", "false", label.PreInstalled, "gpuready", "x"}
	n := node(map[string]string{})
	for _, key := range rapid.SliceOfDistinct(rapid.SampledFrom(keys), func(s string) string { return s }).Draw(t, "keys") {
		n.Labels[key] = rapid.SampledFrom(values).Draw(t, key)
	}
	names := rapid.SliceOfN(rapid.SampledFrom([]string{"present", "deploy.driver", "deploy.driver=true", "deploy.dcgm", "deploy.operands", "", "product", "deploy.x=y"}), 0, 4).Draw(t, "wrote")
	n.Annotations = map[string]string{label.OwnLabels: strings.Join(names, ",")}
	return n
}

func anyPlacement(t *rapid.T) Placement {
	return Placement{
		HandOver:     rapid.Bool().Draw(t, "handOver"),
		Operands:     rapid.SliceOfDistinct(rapid.SampledFrom([]string{"driver", "device-plugin", "dcgm"}), func(s string) string { return s }).Draw(t, "operands"),
		Driver:       rapid.SampledFrom([]string{"", "ubuntu22.04"}).Draw(t, "driver"),
		HostDriver:   rapid.Bool().Draw(t, "hostDriver"),
		HasValidator: rapid.Bool().Draw(t, "speaks"),
	}
}

func TestAPatchAppliedTwiceIsEmptyAndLeavesOthersLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n, p := anyNode(t), anyPlacement(t)
		first := Observe(n).LabelPatch(p)
		for key := range first.Labels {
			require.NotContains(t, []string{label.Operands, label.HandOver, label.PCI3D, "example.com/mine"}, key)
		}
		seen := Observe(n)
		for key, value := range first.Labels {
			has, exists := n.Labels[key]
			mine := seen.recorded().has(key) || !strings.HasPrefix(key, "nvidia.com/")
			if exists && !mine {
				// Two words of others are changed: "true" where a person wants no operand at
				// all, and "true" where the host has its own driver.
				require.Equal(t, "true", has, key)
				require.True(t, seen.Excluded() && value == nil || key == deployDriver && *value == label.PreInstalled, key)
			}
		}
		n = apply(n, first)
		require.Empty(t, shown(Observe(n).LabelPatch(p)))
		n = apply(n, Observe(n).RemovalPatch(false))
		require.Empty(t, shown(Observe(n).RemovalPatch(false)))
		require.NotContains(t, n.Labels, label.Driver)
		require.NotContains(t, n.Labels, label.Injection)
		require.NotContains(t, n.Annotations, label.OwnLabels)
	})
}

func TestRemovalRestoresThePreviousLabels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := anyNode(t)
		delete(n.Labels, label.Driver)
		delete(n.Labels, label.Injection)
		n.Annotations = nil
		before := maps.Clone(n.Labels)
		if n.Labels[label.Operands] == "false" {
			return // there a person has labels removed
		}
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			n = apply(n, Observe(n).LabelPatch(anyPlacement(t)))
		}
		n = apply(n, Observe(n).RemovalPatch(false))
		require.Equal(t, before, n.Labels)
	})
}

func TestPlacementsAreEqualIfEachFieldIs(t *testing.T) {
	require.True(t, Placement{Operands: []string{"a"}}.Equal(Placement{Operands: []string{"a"}}))
	for i := range reflect.TypeFor[Placement]().NumField() {
		var other Placement
		switch f := reflect.ValueOf(&other).Elem().Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.String:
			f.SetString("a")
		default:
			f.Set(reflect.ValueOf([]string{"a"}))
		}
		require.False(t, Placement{}.Equal(other), "%+v", other)
	}
}

// A person's value of the label stays, also one that replaced the operator's.
func TestServeLabelBelongsToWhoSetIt(t *testing.T) {
	for _, c := range []struct{ has, wrote, want, then string }{
		{"", "", "", ""},
		{"", "", "dra", "dra"},
		{"dra", "present,serve", "dra", "dra"},
		{"dra", "present,serve", "", ""},
		{"plugin", "", "dra", "plugin"},
		{"dra", "present", "", "dra"},
		{"plugin", "present,serve", "dra", "plugin"},
		{"plugin", "present,serve", "", "plugin"},
	} {
		labels := with(label.PCI, "true", label.Present, "true")
		if c.has != "" {
			labels[label.Serve] = c.has
		}
		n := node(labels)
		n.Annotations = map[string]string{label.OwnLabels: c.wrote}
		n = apply(n, Observe(n).LabelPatch(Placement{Serve: c.want}))
		require.Equal(t, c.then, n.Labels[label.Serve], "%+v", c)
		require.True(t, Observe(n).LabelPatch(Placement{Serve: c.want}).Empty(), "%+v: once is enough", c)
		_, byPerson := Observe(n).ServedBy()
		require.Equal(t, c.then != "" && c.then != c.want, byPerson, "%+v", c)
	}
}

func TestAllocatableResourcesSurviveStrip(t *testing.T) {
	const nics = "nvidia.com/hostdev" // of the Network Operator: they stay when the GPUs go
	for amount, want := range map[string]bool{"0": false, "8": true} {
		n := node(with())
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), nics: resource.MustParse("2"), "nvidia.com/gpu.shared": resource.MustParse(amount)}
		n.Status.Capacity = corev1.ResourceList{nics: resource.MustParse("2"), "nvidia.com/gpu.shared": resource.MustParse("8")}
		for range 2 {
			require.Equal(t, want, Observe(n).Allocatable, amount)
			require.True(t, Observe(n).Registered)
			require.Equal(t, !want, Observe(n).Withheld)
			Strip(n)
		}
		require.LessOrEqual(t, len(n.Status.Allocatable)+len(n.Status.Capacity), 2)
	}
}
