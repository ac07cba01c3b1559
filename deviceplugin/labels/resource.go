package labels

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/pattern"
)

// whole puts the labels of whole GPUs (internal/lm/mig-strategy.go, newGPULabelers,
// and internal/lm/resource.go). Of one product all are counted, divided or not;
// those that are not divided come first, and only they can be shared.
func (l labels) whole(gpus []gpu.Device, n Node) {
	group := slices.DeleteFunc(slices.Clone(gpus), isDivided)
	share := sharing{strategy: "none"}
	divided := len(group) == 0
	if divided {
		group = gpus
	}
	group = most(group)
	d := group[0]
	if !divided {
		share = n.sharing(uuids(group))
	}
	l.resource(gpuLabels, share, []string{d.Product}, count(gpus, d.Product))
	if mib := d.MemoryBytes >> 20; mib > 0 {
		l.put(gpuLabels+".memory", mib)
	}
	if d.Compute.Major > 0 {
		l.all(gpuLabels, map[string]any{"family": family(d.Compute), "compute.major": d.Compute.Major, "compute.minor": d.Compute.Minor})
	}
}

// most are the GPUs of the product that has the most of them, and then the first.
func most(gpus []gpu.Device) []gpu.Device {
	first := slices.MaxFunc(gpus, func(a, b gpu.Device) int { return cmp.Compare(count(gpus, a.Product), count(gpus, b.Product)) })
	return slices.DeleteFunc(slices.Clone(gpus), func(d gpu.Device) bool { return d.Product != first.Product })
}

func count(gpus []gpu.Device, product string) int {
	n := 0
	for _, d := range gpus {
		if d.Product == product {
			n++
		}
	}
	return n
}

func uuids(gpus []gpu.Device) []gpu.UUID {
	var ids []gpu.UUID
	for _, d := range gpus {
		ids = append(ids, d.UUID)
	}
	return ids
}

// family is the architecture of a compute capability, with the reference's
// words (internal/lm/resource.go, getArchFamily). CUDA's list of GPUs has no 4.
func family(c gpu.Compute) string {
	switch {
	case c.Major == 7 && c.Minor < 5:
		return "volta"
	case c.Major == 8 && c.Minor >= 9:
		return "ada-lovelace"
	}
	if name, known := families[c.Major]; known {
		return name
	}
	return "undefined"
}

var families = map[int]string{
	1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 7: "turing", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell",
}

// single puts the labels of MIG devices that are advertised as GPUs, over those
// of the whole ones (newMigStrategySingleLabeler). Where the plan can give the
// devices no common name, and so leaves them out, the labels say that too. A GPU
// that is in MIG mode and not divided is left out by itself, and not, as by the
// reference, with all others.
func (l labels) single(gpus []gpu.Device, n Node) {
	groups := byProfile(gpus)
	whole := slices.DeleteFunc(slices.Clone(gpus), isDivided)
	switch {
	case len(groups) == 0 && len(whole) > 0: // as with the strategy none
	case len(groups) != 1 || len(whole) > 0:
		i := slices.IndexFunc(gpus, isDivided)
		l.resource(gpuLabels, sharing{}, []string{gpus[i].Product, "MIG", "INVALID"}, 0)
		l.put(gpuLabels+".memory", 0)
	default:
		for _, g := range groups {
			l.mig(gpuLabels, g, n)
		}
	}
}

// mixed puts the labels of MIG devices, for each profile its own
// (newMigStrategyMixedLabeler).
func (l labels) mixed(gpus []gpu.Device, n Node) {
	for profile, g := range byProfile(gpus) {
		name := "mig-" + dotted(profile)
		if profiles.Matches(profile) && len(name)+longestKey <= maxValue {
			l.mig(prefix+name, g, n)
		}
	}
}

// longestKey is the length of ".engines.decoder": a label's name has a limit too.
const longestKey = 16

// dotted is a profile as it stands in names, "1g.10gb.me" for "1g.10gb+me"
// (internal/resource/nvml-mig-device.go, GetName).
func dotted(profile string) string { return strings.ReplaceAll(profile, "+", ".") }

// part is a MIG device and its GPU.
type part struct {
	gpu gpu.Device
	mig gpu.MIGDevice
}

// profiles as the driver spells them: "1g.10gb", "1c.3g.40gb", "1g.10gb+me". One of
// another form has no labels that have it in their names.
var profiles = pattern.New(`^(?:([0-9]+)c\.)?([0-9]+)g\.[0-9]+gb(?:[.+-][A-Za-z0-9]+)*$`)

// byProfile are the MIG devices of each profile.
func byProfile(gpus []gpu.Device) map[string][]part {
	groups := map[string][]part{}
	for _, d := range gpus {
		for _, m := range d.MIG {
			if d.MIGEnabled {
				groups[m.Profile] = append(groups[m.Profile], part{gpu: d, mig: m})
			}
		}
	}
	return groups
}

// mig puts the labels of the MIG devices of one profile
// (internal/lm/resource.go, NewMIGResourceLabeler). The attributes are NVML's
// (internal/resource/nvml-mig-device.go, GetAttributes). Those that are not known
// are left out: a 0 would say that the device has no such engine.
func (l labels) mig(resource string, group []part, n Node) {
	var ids []gpu.UUID
	var owners []gpu.Device
	for _, p := range group {
		ids, owners = append(ids, p.mig.UUID), append(owners, p.gpu)
	}
	m := group[0].mig
	l.resource(resource, n.sharing(ids), []string{most(owners)[0].Product, "MIG", dotted(m.Profile)}, len(group))
	delete(l, resource+".memory") // with the strategy single it was the whole GPU's
	if mib := m.MemoryBytes >> 20; mib > 0 {
		l.put(resource+".memory", mib)
	}
	if numbers := profiles.Groups(m.Profile); numbers != nil {
		l.put(resource+".slices.gi", numbers[2])
		l.put(resource+".slices.ci", cmp.Or(numbers[1], numbers[2])) // without a number of its own it has all of them
	}
	a := m.Attributes
	if a == (gpu.Attributes{}) {
		return
	}
	l.all(resource, map[string]any{
		"multiprocessors": a.Multiprocessors, "engines.copy": a.CopyEngines, "engines.decoder": a.Decoders,
		"engines.encoder": a.Encoders, "engines.jpeg": a.JPEGEngines, "engines.ofa": a.OFAEngines,
	})
}

// sharing is how the devices of one kind are shared.
type sharing struct {
	strategy string // as config.Sharing.Active has it; "" means that there is nothing to share
	replicas int
	renamed  bool // replicas have a name of their own, so that nobody gets one unasked
}

// sharing says how devices are shared. Where the configuration has more than
// one thing in mind for them, it is the most replicas that one of them has: who
// stays away from shared GPUs wants to stay away from that one.
func (n Node) sharing(ids []gpu.UUID) sharing {
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

// resource puts the labels that every kind of device has (baseLabeler). The
// product ends in SHARED where who asks for a device may get a replica of it.
func (l labels) resource(name string, s sharing, product []string, count int) {
	if s.replicas > 1 && !s.renamed {
		product = append(product, "SHARED")
	}
	l.all(name, map[string]any{"product": "", "count": count, "replicas": s.replicas, "sharing-strategy": s.strategy})
	l[name+".product"] = joined(product)
}

// joined is the value of a product label. The name of the model gives way to
// what follows it, which tells the kind of device: the value has a limit, which
// "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition" with a profile is over.
func joined(product []string) string {
	words := []string{""}
	for _, word := range product[1:] {
		words = append(words, fitting(word))
	}
	rest := strings.Join(words, "-")
	return bounded(bounded(fitting(product[0]), maxValue-len(rest))+rest, maxValue)
}
