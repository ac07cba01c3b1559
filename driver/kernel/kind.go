package kernel

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// Kind is one of NVIDIA's two sets of kernel modules, or Auto.
type Kind string

// The kinds, in the spelling of the policy's kernelModuleType.
const (
	Auto        Kind = "auto"
	OpenKind    Kind = "open"
	Proprietary Kind = "proprietary"
)

// ParseKind parses kernelModuleType; "" is Auto.
func ParseKind(s string) (Kind, error) {
	if s == "" {
		return Auto, nil
	}
	if k := Kind(s); slices.Contains([]Kind{Auto, OpenKind, Proprietary}, k) {
		return k, nil
	}
	return "", fmt.Errorf("kernel module type %q: want auto, open or proprietary", s)
}

// Kind returns the kind of a module.
func (i Info) Kind() Kind {
	if i.IsOpen() {
		return OpenKind
	}
	return Proprietary
}

// generation is a range of PCI device IDs, of one architecture or several, and the kinds
// of modules that support it.
type generation struct {
	from        uint16
	name        string
	open, prior bool // supported by the open modules, and by the proprietary ones
}

// generations is ordered by the first device ID. The blocks of IDs are from the PCI ID
// repository (pci-ids.ucw.cz, vendor 10de). The supported kinds are from the README of NVIDIA's
// driver, chapter "Open Linux Kernel Modules": the open modules support Turing and later, and
// only they support Blackwell. GP100 is the only Pascal among Maxwell's IDs; the same modules
// support both.
var generations = []generation{
	{0x0000, "an architecture before Maxwell", false, false},
	{0x1340, "Maxwell", false, true},
	{0x1b00, "Pascal", false, true},
	{0x1d80, "Volta", false, true},
	{0x1e00, "Turing", true, true},
	{0x2080, "Ampere", true, true},
	{0x2180, "Turing", true, true},
	{0x2200, "Ampere", true, true},
	{0x2300, "Hopper", true, true},
	{0x2380, "Ampere", true, true},
	{0x2600, "Ada", true, true},
	{0x2900, "Blackwell or later", true, false},
}

// graceHopper lists the device IDs of the H100 and H200 on a Grace CPU, which only the open
// modules support (PCI ID repository: GH100 [GH200 120GB / 480GB], [GH200 144G HBM3e]; Linux,
// nvgrace-gpu/main.c).
var graceHopper = []uint16{0x2342, 0x2345, 0x2348}

func generationOf(device uint16) generation {
	if slices.Contains(graceHopper, device) {
		return generation{device, "Grace Hopper", true, false}
	}
	i, found := slices.BinarySearchFunc(generations, device, func(g generation, id uint16) int { return int(g.from) - int(id) })
	if !found {
		i--
	}
	return generations[i]
}

// openForAll is the first branch whose open modules support GeForce and workstation GPUs. Earlier ones
// refuse them without NVreg_OpenRmEnableUnsupportedGpus=1 (README of driver 535, chapter "Open Linux
// Kernel Modules").
const openForAll = 550

// Branch returns the branch of a driver's version: 580 of "580.95.05", and 0 of "".
func Branch(version string) int {
	first, _, _ := strings.Cut(version, ".")
	branch, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return branch
}

// openIsLimited reports whether the open modules of a version support GPUs for data centers alone.
func openIsLimited(version string) bool { return Branch(version) > 0 && Branch(version) < openForAll }

// ChooseKind chooses one of the kinds that a driver of a version has by the GPUs on the PCI bus, and
// returns the choice with an explanation. If both kinds support all GPUs it chooses the open modules;
// before branch 550 the proprietary ones, as NVIDIA does before 560. version "" is unknown.
func ChooseKind(wanted Kind, have []Kind, gpus []host.PCIGPU, version string) (Kind, string, error) {
	if len(have) == 0 {
		return "", "", newError(ReasonDependencyMissing, "nvidia", nil, "the driver's image has no kernel modules for this kernel")
	}
	if wanted != Auto && !slices.Contains(have, wanted) {
		return "", "", newError(ReasonDependencyMissing, "nvidia", nil,
			"kernel module type %q is wanted, and the driver's image has %s alone; change kernelModuleType, or the image", wanted, have[0])
	}
	order := []Kind{OpenKind, Proprietary}
	if openIsLimited(version) {
		slices.Reverse(order)
	}
	for _, k := range order {
		if !slices.Contains(have, k) || wanted != Auto && wanted != k {
			continue
		}
		unsupported := slices.IndexFunc(gpus, func(g host.PCIGPU) bool { return !supportsGPU(k, g) })
		switch {
		case unsupported < 0:
			why := explainKind(wanted, have, gpus)
			if k == Proprietary && wanted == Auto && len(have) > 1 && openIsLimited(version) {
				why += fmt.Sprintf("; the open modules of driver %s are for data centers", version)
			}
			return k, why, nil
		case wanted == k || len(have) == 1:
			g := gpus[unsupported]
			return "", "", newError(ReasonNoDevice, "nvidia", nil,
				"GPU %s (10de:%04x, %s) is not supported by the %s kernel modules; %s", g.Address, g.Device, generationOf(g.Device).name, k, describeSupported(k, g))
		}
	}
	return "", "", newError(ReasonNoDevice, "nvidia", nil,
		"no one kind of kernel modules supports all GPUs of this node (%s); take one of them out, or give it to vfio-pci", listGenerations(gpus))
}

// supportsGPU reports whether a kind supports a GPU. It assumes so for a device without an ID.
func supportsGPU(k Kind, g host.PCIGPU) bool {
	if g.Device == 0 {
		return true
	}
	gen := generationOf(g.Device)
	return k == OpenKind && gen.open || k == Proprietary && gen.prior
}

func explainKind(wanted Kind, have []Kind, gpus []host.PCIGPU) string {
	switch {
	case wanted != Auto:
		return "as kernelModuleType says"
	case len(have) == 1:
		return "the image has no other"
	case len(gpus) == 0:
		return "there is no GPU to decide by"
	}
	return "for " + listGenerations(gpus)
}

// describeSupported names the modules that would support a GPU.
func describeSupported(k Kind, g host.PCIGPU) string {
	switch gen := generationOf(g.Device); {
	case k == OpenKind && gen.prior:
		return "set kernelModuleType: proprietary, with a driver up to branch 580"
	case k == Proprietary && gen.open:
		return "set kernelModuleType: open"
	}
	return "this driver supports Maxwell and later alone"
}

// listGenerations names the architectures, each once.
func listGenerations(gpus []host.PCIGPU) string {
	var names []string
	for _, g := range gpus {
		if name := generationOf(g.Device).name; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
