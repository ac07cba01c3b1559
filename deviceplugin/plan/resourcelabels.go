package plan

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
)

// setGPUs sets the labels of whole GPUs (internal/lm/mig-strategy.go, newGPULabelers,
// and internal/lm/resource.go). All GPUs of one product are counted, divided or not.
// Undivided ones come first, and only they can be shared.
func (l labelSet) setGPUs(gpus []gpu.Device, n LabelInput) {
	group := slices.DeleteFunc(slices.Clone(gpus), isInMIGMode)
	share := sharing{strategy: "none"}
	allInMIGMode := len(group) == 0
	if allInMIGMode {
		group = gpus
	}
	group = mostCommon(group)
	d := group[0]
	if !allInMIGMode {
		share = n.findSharing(listUUIDs(group))
	}
	l.setResource(gpuLabels, share, []string{d.Product}, countProduct(gpus, d.Product))
	if mib := d.MemoryBytes >> 20; mib > 0 {
		l.set(gpuLabels+".memory", mib)
	}
	if d.Compute.Major > 0 {
		l.setAll(gpuLabels, map[string]any{"family": architecture(d.Compute), "compute.major": d.Compute.Major, "compute.minor": d.Compute.Minor})
	}
}

// mostCommon returns the GPUs of the product with the most GPUs, or of the first such
// one.
func mostCommon(gpus []gpu.Device) []gpu.Device {
	first := slices.MaxFunc(gpus, func(a, b gpu.Device) int {
		return cmp.Compare(countProduct(gpus, a.Product), countProduct(gpus, b.Product))
	})
	return slices.DeleteFunc(slices.Clone(gpus), func(d gpu.Device) bool { return d.Product != first.Product })
}

// countProduct returns the number of GPUs of a product.
func countProduct(gpus []gpu.Device, product string) int {
	n := 0
	for _, d := range gpus {
		if d.Product == product {
			n++
		}
	}
	return n
}

func listUUIDs(gpus []gpu.Device) []gpu.UUID {
	var ids []gpu.UUID
	for _, d := range gpus {
		ids = append(ids, d.UUID)
	}
	return ids
}

// architecture returns the name of the architecture of a compute capability
// (internal/lm/resource.go, getArchFamily). CUDA's list of GPUs has no major version 4.
func architecture(c gpu.Compute) string {
	switch {
	case c.Major == 7 && c.Minor < 5:
		return "volta"
	case c.Major == 8 && c.Minor >= 9:
		return "ada-lovelace"
	}
	if name, known := architectures[c.Major]; known {
		return name
	}
	return "undefined"
}

var architectures = map[int]string{
	1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 7: "turing", 8: "ampere", 9: "hopper",
	10: "blackwell", 11: "blackwell", 12: "blackwell", 13: "rubin",
}

// setMIGSingle sets the labels of MIG devices that are advertised as GPUs, over those
// of the whole GPUs (newMigStrategySingleLabeler). If the devices can have no common
// name, so that the plan leaves them out, the labels show that too. A GPU in MIG mode
// without MIG devices is left out alone, not, as by NVIDIA's device plugin, with all others.
func (l labelSet) setMIGSingle(gpus []gpu.Device, n LabelInput) {
	groups := groupByProfile(gpus)
	whole := slices.DeleteFunc(slices.Clone(gpus), isInMIGMode)
	switch {
	case len(groups) == 0 && len(whole) > 0: // as with the strategy none
	case len(groups) != 1 || len(whole) > 0:
		i := slices.IndexFunc(gpus, isInMIGMode)
		l.setResource(gpuLabels, sharing{}, []string{gpus[i].Product, "MIG", "INVALID"}, 0)
		l.set(gpuLabels+".memory", 0)
	default:
		for _, g := range groups {
			l.setMIG(gpuLabels, g, n)
		}
	}
}

// setMIGMixed sets the labels of MIG devices, separately for each profile
// (newMigStrategyMixedLabeler).
func (l labelSet) setMIGMixed(gpus []gpu.Device, n LabelInput) {
	for profile, g := range groupByProfile(gpus) {
		name := "mig-" + dottedProfile(profile)
		if profiles().MatchString(profile) && len(name)+longestKey <= maxValue {
			l.setMIG(prefix+name, g, n)
		}
	}
}

// longestKey is the length of ".engines.decoder": a label's name has a limit too.
const longestKey = 16

// dottedProfile returns a profile in the form used in names, "1g.10gb.me" for
// "1g.10gb+me" (internal/resource/nvml-mig-device.go, GetName).
func dottedProfile(profile string) string { return strings.ReplaceAll(profile, "+", ".") }

// labelPart is a MIG device and its GPU.
type labelPart struct {
	gpu gpu.Device
	mig gpu.MIGDevice
}

// profiles matches profiles as the driver spells them: "1g.10gb", "1c.3g.40gb",
// "1g.10gb+me". A profile of another form has no labels with it in their names. It is
// compiled on first use, since most nodes have no MIG devices.
var profiles = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:([0-9]+)c\.)?([0-9]+)g\.[0-9]+gb(?:[.+-][A-Za-z0-9]+)*$`)
})

// groupByProfile returns the MIG devices of each profile.
func groupByProfile(gpus []gpu.Device) map[string][]labelPart {
	groups := map[string][]labelPart{}
	for _, d := range gpus {
		for _, m := range d.MIG {
			if d.MIGEnabled {
				groups[m.Profile] = append(groups[m.Profile], labelPart{gpu: d, mig: m})
			}
		}
	}
	return groups
}

// setMIG sets the labels of the MIG devices of one profile (internal/lm/resource.go,
// NewMIGResourceLabeler). The attributes are NVML's
// (internal/resource/nvml-mig-device.go, GetAttributes). Unknown ones are left out: a 0
// would mean that the device has no such engine.
func (l labelSet) setMIG(resource string, group []labelPart, n LabelInput) {
	var ids []gpu.UUID
	var owners []gpu.Device
	for _, p := range group {
		ids, owners = append(ids, p.mig.UUID), append(owners, p.gpu)
	}
	m := group[0].mig
	l.setResource(resource, n.findSharing(ids), []string{mostCommon(owners)[0].Product, "MIG", dottedProfile(m.Profile)}, len(group))
	delete(l, resource+".memory") // with the strategy single it was the whole GPU's
	if mib := m.MemoryBytes >> 20; mib > 0 {
		l.set(resource+".memory", mib)
	}
	if numbers := profiles().FindStringSubmatch(m.Profile); numbers != nil {
		l.set(resource+".slices.gi", numbers[2])
		l.set(resource+".slices.ci", cmp.Or(numbers[1], numbers[2])) // without its own number it has all of them
	}
	a := m.Attributes
	if a == (gpu.Attributes{}) {
		return
	}
	l.setAll(resource, map[string]any{
		"multiprocessors": a.Multiprocessors, "engines.copy": a.CopyEngines, "engines.decoder": a.Decoders,
		"engines.encoder": a.Encoders, "engines.jpeg": a.JPEGEngines, "engines.ofa": a.OFAEngines,
	})
}

// sharing describes how the devices of one kind are shared.
type sharing struct {
	strategy string // as in config.Sharing.Active; "": there is nothing to share
	replicas int    // 1: not shared
	renamed  bool   // replicas have a name of their own, so that they must be requested explicitly
}

// findSharing returns how the devices are shared. If they differ, the largest number of replicas
// counts, since a label for all of them must not hide that one is shared.
func (n LabelInput) findSharing(ids []gpu.UUID) sharing {
	strategy, replicated := n.Config.Sharing.Active()
	s := sharing{strategy: "none", replicas: 1, renamed: true}
	for _, r := range n.Plan.Resources {
		renamed := slices.ContainsFunc(replicated.Resources, func(c config.ReplicatedResource) bool {
			return c.Rename == r.Name && c.Name != r.Name
		})
		for _, d := range r.Devices {
			if d.Replica > 0 || d.Replicas < 2 || !slices.Contains(ids, d.UUID()) {
				continue
			}
			s.strategy, s.replicas, s.renamed = strategy, max(s.replicas, d.Replicas), s.renamed && renamed
		}
	}
	return s
}

// setResource sets the labels that every kind of device has (baseLabeler). The product
// ends in SHARED if a request for a device may get a replica of it.
func (l labelSet) setResource(name string, s sharing, product []string, count int) {
	if s.replicas > 1 && !s.renamed {
		product = append(product, "SHARED")
	}
	l.setAll(name, map[string]any{"product": "", "count": count, "replicas": s.replicas, "sharing-strategy": s.strategy})
	l[name+".product"] = joinProduct(product)
}

// joinProduct returns the value of a product label. The model's name is shortened in
// favour of the suffix, which identifies the kind of device. The length is limited, and
// "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition" with a profile exceeds it.
func joinProduct(product []string) string {
	words := []string{""}
	for _, word := range product[1:] {
		words = append(words, labelValue(word))
	}
	rest := strings.Join(words, "-")
	return truncate(truncate(labelValue(product[0]), maxValue-len(rest))+rest, maxValue)
}
