// Package labels says with which labels a node tells the cluster about its GPUs:
// those of the reference's feature discovery (gpu-feature-discovery of
// github.com/NVIDIA/k8s-device-plugin, internal/lm, v0.19.0), under the same names
// and with the same values, so that what selects nodes by them goes on working.
//
// For is pure. What it needs of the machine and no Snapshot has is in Host, which
// ReadHost reads. Write leaves the labels where Node Feature Discovery takes them.
//
// Not made are the labels of a virtual GPU's guest, nvidia.com/vgpu.present,
// vgpu.host-driver-version and vgpu.host-driver-branch: vGPU is not supported. Nor
// is nvidia.com/gpu.present, by which it is chosen where agents run: if they said it
// of their own node, none would ever leave.
package labels

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/internal/gpu"
)

// prefix is that of every label.
const prefix = "nvidia.com/"

// gpuLabels begins the labels of whole GPUs, and with the MIG strategy single of
// MIG devices. A resource that the configuration names otherwise has these labels
// too: they say what is in the node, not what it is called.
const gpuLabels = prefix + "gpu"

// Node is that which labels are made of.
type Node struct {
	Snapshot gpu.Snapshot
	Health   health.State   // with it a GPU that went missing in this boot still counts, as the kubelet still counts it
	Config   *config.Config // in force
	Plan     plan.Plan      // what plan.Make makes of these three
	Host     Host
}

// For returns the labels of a node, by their full names. Each is one that
// Kubernetes takes. A node without GPUs has none. The same node has the same
// labels, and health changes none of them; but a GPU whose product no driver has
// told this process, having been lost before, does not count.
//
// The Snapshot must be one that a driver gave: until there is one, nothing is
// known, and the labels of before are to stay.
//
// A GPU that devices.exclude names does not count, so that a display card does
// not lend the node its name. Of GPUs of several products the one with the most
// GPUs gives the labels, and then the first; the reference takes any.
func For(n Node) map[string]string {
	l := labels{}
	gpus := n.gpus()
	if len(gpus) == 0 {
		return l
	}
	l.host(n.Config, n.Host)
	l.versions(n.Snapshot.Driver)
	l.mode(gpus, n.Host)
	l.clique(gpus)

	// internal/lm/nvml.go, newMigCapabilityLabeler and newSharingLabeler
	strategy, _ := n.Config.Sharing.Active()
	l.put(prefix+"mig.capable", slices.ContainsFunc(gpus, func(d gpu.Device) bool { return d.MIGCapable }))
	l.put(prefix+"mps.capable", strategy == "mps" && !slices.ContainsFunc(gpus, isDivided))

	l.whole(gpus, n)
	if n.Config.Flags.MIG() != config.MIGNone { // internal/lm/strategy.go
		l.put(prefix+"mig.strategy", n.Config.Flags.MIG())
	}
	switch n.Config.Flags.MIG() {
	case config.MIGSingle:
		l.single(gpus, n)
	case config.MIGMixed:
		l.mixed(gpus, n)
	}
	return l
}

func isDivided(d gpu.Device) bool { return d.MIGEnabled }

// gpus are those that count, by index, each with the MIG devices that do.
func (n Node) gpus() []gpu.Device {
	all := slices.Clone(n.Snapshot.Devices)
	for _, g := range n.Health.GPUs() {
		if _, listed := n.Snapshot.Device(g.Device.UUID); !listed {
			all = append(all, g.Device)
		}
	}
	slices.SortStableFunc(all, func(a, b gpu.Device) int { return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID)) })
	all = slices.DeleteFunc(all, func(d gpu.Device) bool {
		return d.Product == "" || !chosen(n.Config.Devices, d) // without a name there is nothing to say of it
	})
	for i, d := range all {
		all[i].MIG = slices.DeleteFunc(slices.Clone(d.MIG), func(m gpu.MIGDevice) bool { return !chosenMIG(n.Config.Devices, d, m) })
	}
	return all
}

// chosen says whether a GPU, or any part of it, is to be advertised.
func chosen(c config.Devices, d gpu.Device) bool {
	means := func(s config.Selector) bool { return s.MatchesGPU(d) }
	part := func(m gpu.MIGDevice) bool { return chosenMIG(c, d, m) }
	return !slices.ContainsFunc(c.Exclude, means) &&
		(len(c.Include) == 0 || slices.ContainsFunc(c.Include, means) || slices.ContainsFunc(d.MIG, part))
}

// chosenMIG says whether a MIG device is to be advertised.
func chosenMIG(c config.Devices, d gpu.Device, m gpu.MIGDevice) bool {
	means := func(s config.Selector) bool { return s.MatchesGPU(d) || s.MatchesMIG(d, m) }
	return !slices.ContainsFunc(c.Exclude, means) && (len(c.Include) == 0 || slices.ContainsFunc(c.Include, means))
}

// labels are labels by their full names.
type labels map[string]string

// put sets a label to a text, a number or a truth, made fit for a label's value.
func (l labels) put(name string, value any) {
	switch v := value.(type) {
	case string:
		l[name] = fitting(v)
	case bool:
		l[name] = strconv.FormatBool(v)
	case int:
		l[name] = strconv.Itoa(v)
	case uint64:
		l[name] = strconv.FormatUint(v, 10)
	}
}

// all sets the labels of a resource: each has the resource and its key for a name.
func (l labels) all(resource string, values map[string]any) {
	for key, value := range values {
		l.put(resource+"."+key, value)
	}
}

// maxValue is the length of a label's value: Kubernetes, "Labels and Selectors".
const maxValue = 63

// fitting makes a text the value of a label: the parts that the reference leaves
// out go (internal/lm/resource.go, sanitise), spaces become one dash, and what
// Kubernetes would refuse the label for goes too.
func fitting(text string) string {
	text = strings.Map(func(r rune) rune {
		if isAlphanumeric(r) || strings.ContainsRune("-_. ", r) {
			return r
		}
		return -1
	}, text)
	return bounded(strings.Join(strings.Fields(text), "-"), maxValue)
}

// bounded cuts a value to a length, and to the ends that a label may have.
func bounded(value string, limit int) string {
	return strings.TrimFunc(value[:min(len(value), max(limit, 0))], func(r rune) bool { return !isAlphanumeric(r) })
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// names are the sorted names of the labels.
func names(l map[string]string) []string { return slices.Sorted(maps.Keys(l)) }
