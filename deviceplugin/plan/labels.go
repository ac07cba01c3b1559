package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
)

// The labels that describe a node's GPUs to the cluster are those of NVIDIA's feature
// discovery (gpu-feature-discovery of github.com/NVIDIA/k8s-device-plugin, internal/lm,
// v0.19.0), with the same names and values, so that existing node selectors keep working.
//
// There are no labels of a virtual GPU's guest, nvidia.com/vgpu.present,
// vgpu.host-driver-version and vgpu.host-driver-branch: vGPU is not supported. Nor is
// there nvidia.com/gpu.present, which decides where agents run: if agents set it on
// their own node, none would ever be removed.

// prefix is the prefix of every label.
const prefix = "nvidia.com/"

// gpuLabels begins the names of the labels of whole GPUs and, with the MIG strategy single, of MIG
// devices. A resource with another configured name has these labels too: they
// describe the hardware, not the resource's name.
const gpuLabels = prefix + "gpu"

// LabelInput holds the inputs of the labels.
type LabelInput struct {
	Snapshot gpu.Snapshot
	Health   health.State   // a GPU that went missing in this boot still counts, as it does for the kubelet
	Config   *config.Config // in force
	Plan     Plan           // result of Compute for the three fields above
	Machine  Machine
}

// Labels returns the labels of a node, by their full names. Each is valid for Kubernetes.
// A node without GPUs has none. The labels do not depend on the health of the GPUs, except that a
// lost GPU does not count if this process has never learned its product.
//
// The Snapshot must come from a driver. Until there is one, do not call Labels, and keep the
// previous labels.
//
// A GPU in devices.exclude does not count, so that a display card does not give the
// node its name. Of several products, the one with the most GPUs gives the labels, then
// the first; NVIDIA's device plugin takes any.
func Labels(n LabelInput) map[string]string {
	l := labelSet{}
	gpus := n.labelledGPUs()
	if len(gpus) == 0 {
		return l
	}
	l.setHost(n.Config, n.Machine)
	l.setVersions(n.Snapshot.Driver)
	l.setMode(gpus, n.Machine)
	l.setClique(gpus)
	l.setNotes(gpus)

	// internal/lm/nvml.go, newMigCapabilityLabeler and newSharingLabeler
	strategy, _ := n.Config.Sharing.Active()
	l.set(prefix+"mig.capable", slices.ContainsFunc(gpus, func(d gpu.Device) bool { return d.MIGCapable }))
	l.set(prefix+"mps.capable", strategy == "mps" && !slices.ContainsFunc(gpus, isInMIGMode))

	l.setGPUs(gpus, n)
	if n.Config.Flags.MIG() != config.MIGNone { // internal/lm/strategy.go
		l.set(prefix+"mig.strategy", n.Config.Flags.MIG())
	}
	switch n.Config.Flags.MIG() {
	case config.MIGSingle:
		l.setMIGSingle(gpus, n)
	case config.MIGMixed:
		l.setMIGMixed(gpus, n)
	}
	return l
}

// setNotes sets a label with the reasons of the GPUs' notes, for whoever chooses when to reset them. It is not one of
// NVIDIA's.
func (l labelSet) setNotes(gpus []gpu.Device) {
	reasons := map[string]bool{}
	for _, d := range gpus {
		for _, n := range d.Notes {
			reasons[string(n.Reason)] = true
		}
	}
	text := ""
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		if next := strings.TrimPrefix(text+"."+reason, "."); len(next) <= maxValue {
			text = next
		}
	}
	if text != "" {
		l.set(gpuLabels+".notes", text)
	}
}

// isInMIGMode reports whether a GPU is divided into MIG devices, or could be now.
func isInMIGMode(d gpu.Device) bool { return d.MIGEnabled }

// labelledGPUs returns the GPUs that the labels describe, by index, each with the MIG devices
// that they describe.
func (n LabelInput) labelledGPUs() []gpu.Device {
	all := slices.Clone(n.Snapshot.Devices)
	for _, g := range n.Health.GPUs() {
		if _, listed := n.Snapshot.Device(g.Device.UUID); !listed {
			all = append(all, g.Device)
		}
	}
	slices.SortStableFunc(all, func(a, b gpu.Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	all = slices.DeleteFunc(all, func(d gpu.Device) bool {
		return d.Product == "" || !isSelected(n.Config.Devices, d) // no label describes a GPU without a name
	})
	for i, d := range all {
		all[i].MIG = slices.DeleteFunc(slices.Clone(d.MIG), func(m gpu.MIGDevice) bool { return !isSelectedMIG(n.Config.Devices, d, m) })
	}
	return all
}

// isSelected reports whether a GPU, or any part of it, is to be advertised.
func isSelected(c config.Devices, d gpu.Device) bool {
	matches := func(s config.Selector) bool { return s.MatchesGPU(d) }
	part := func(m gpu.MIGDevice) bool { return isSelectedMIG(c, d, m) }
	return !slices.ContainsFunc(c.Exclude, matches) &&
		(len(c.Include) == 0 || slices.ContainsFunc(c.Include, matches) || slices.ContainsFunc(d.MIG, part))
}

// isSelectedMIG reports whether a MIG device is to be advertised.
func isSelectedMIG(c config.Devices, d gpu.Device, m gpu.MIGDevice) bool {
	matches := func(s config.Selector) bool { return s.MatchesGPU(d) || s.MatchesMIG(d, m) }
	return !slices.ContainsFunc(c.Exclude, matches) && (len(c.Include) == 0 || slices.ContainsFunc(c.Include, matches))
}

// labelSet maps full names to values.
type labelSet map[string]string

// set sets a label to a valid form of a text, a number or a boolean.
func (l labelSet) set(name string, value any) {
	switch typed := value.(type) {
	case string:
		l[name] = labelValue(typed)
	case bool:
		l[name] = strconv.FormatBool(typed)
	case int:
		l[name] = strconv.Itoa(typed)
	case uint64:
		l[name] = strconv.FormatUint(typed, 10)
	}
}

// setAll sets the labels of a resource: each name is the resource and its key.
func (l labelSet) setAll(resource string, values map[string]any) {
	for key, value := range values {
		l.set(resource+"."+key, value)
	}
}

// maxValue is the maximum length of a label's value: Kubernetes, "Labels and
// Selectors".
const maxValue = 63

// labelValue makes a text a valid label value: it drops the parts that NVIDIA's device plugin
// drops (internal/lm/resource.go, sanitise), replaces runs of spaces by one dash, and
// drops everything that Kubernetes would refuse.
func labelValue(text string) string {
	text = strings.Map(func(r rune) rune {
		if isAlphanumeric(r) || strings.ContainsRune("-_. ", r) {
			return r
		}
		return -1
	}, text)
	return truncate(strings.Join(strings.Fields(text), "-"), maxValue)
}

// truncate cuts a value to a length and trims its ends to what a label allows.
func truncate(value string, limit int) string {
	return strings.TrimFunc(value[:min(len(value), max(limit, 0))], func(r rune) bool { return !isAlphanumeric(r) })
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// sortedNames returns the sorted names of the labels.
func sortedNames(l map[string]string) []string { return slices.Sorted(maps.Keys(l)) }

// LabelLines returns labels in the form of a feature file, one line for each, sorted, so
// that equal labels give equal bytes.
func LabelLines(l map[string]string) string {
	var text strings.Builder
	for _, name := range sortedNames(l) {
		fmt.Fprintf(&text, "%s=%s\n", name, l[name])
	}
	return text.String()
}
