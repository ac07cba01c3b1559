package preflight

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Port is the end of a GPU's PCIe link on the machine's side, as the kernel lists it in sysfs. In a
// virtual machine there is often none.
type Port struct {
	MaxGeneration int   `json:"maxGeneration,omitempty"` // 0: not known
	MaxWidth      int   `json:"maxWidth"`
	Above         *Link `json:"above,omitempty"` // the narrowest link between the port and the CPU, if there is a switch
}

// Link is the width and generation of a PCIe link.
type Link struct {
	Generation int `json:"generation"`
	Width      int `json:"width"`
}

func (l Link) rate() float64 { return pcieRate(l.Generation, l.Width) }

// readPort returns the port of the GPU at an address, nil if none is visible.
// Documentation/ABI/testing/sysfs-bus-pci describes the files.
func readPort(root *host.Root, address gpu.PCIAddress) *Port {
	bridges := bridgesAbove(root, address)
	if len(bridges) == 0 || emulated(root, bridges[0]) || readAttribute(root, address, "vendor") != nvidia {
		return nil // another device may be where a simulated GPU claims to be
	}
	end := readLink(root, bridges[0], "max")
	if end.Width == 0 {
		return nil
	}
	p := &Port{MaxGeneration: end.Generation, MaxWidth: end.Width}
	// The bridges alternate: a switch has a port towards the GPU, and above it one towards the CPU, whose
	// link the next bridge ends. Unlike a GPU, a switch does not slow its link down while it is idle.
	for i := 1; i < len(bridges); i += 2 {
		above := readLink(root, bridges[i], "current")
		if above.rate() > 0 && (p.Above == nil || above.rate() < p.Above.rate()) {
			p.Above = &above
		}
	}
	return p
}

// readLink reads the current or the max width and generation of a port's link; 0 if it is not known.
func readLink(root *host.Root, port gpu.PCIAddress, which string) Link {
	return Link{
		Generation: generationOf(readAttribute(root, port, which+"_link_speed")),
		Width:      lanes(readAttribute(root, port, which+"_link_width")),
	}
}

// generationOf returns the generation of a speed in sysfs: "16.0 GT/s PCIe"; 0 for "Unknown".
func generationOf(speed string) int {
	number, _, _ := strings.Cut(speed, " ")
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return max(0, slices.Index([]float64{1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64}, rate))
}

// lanes returns the number of lanes in sysfs; 0 for what no PCIe link has.
func lanes(width string) int {
	n, err := strconv.Atoi(width)
	if err != nil || n < 1 || n > 32 {
		return 0 // 255: unknown
	}
	return n
}

const nvidia = "0x10de"

// hypervisors are the PCI vendors of the bridges that virtual machines have: Red Hat (QEMU) twice, VMware, Xen,
// Microsoft. Their links are made up. Amazon's bridges are not here: they show the link of the machine.
var hypervisors = []string{"0x1b36", "0x1af4", "0x15ad", "0x5853", "0x1414"}

// emulated reports whether a bridge exists only in a virtual machine.
func emulated(root *host.Root, bridge gpu.PCIAddress) bool {
	vendor := readAttribute(root, bridge, "vendor")
	ioh3420 := vendor == "0x8086" && readAttribute(root, bridge, "device") == "0x3420" // QEMU's older root port
	return ioh3420 || slices.Contains(hypervisors, vendor)
}

func readAttribute(root *host.Root, device gpu.PCIAddress, name string) string {
	data, err := root.ReadFile(path.Join(pciDevices, string(device), name), maxSlotFile)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(string(data)))
}

// bridgesAbove returns the bridges above a device, the nearest first.
func bridgesAbove(root *host.Root, address gpu.PCIAddress) []gpu.PCIAddress {
	link, err := root.Readlink(path.Join(pciDevices, string(address)))
	if err != nil {
		return nil
	}
	var list []gpu.PCIAddress
	for dir := path.Dir(link); dir != "." && dir != "/"; dir = path.Dir(dir) {
		bridge, err := gpu.ParsePCIAddress(path.Base(dir))
		if err != nil {
			break
		}
		list = append(list, bridge)
	}
	return list
}
