package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// The values of the attribute type.
const (
	typeGPU = "gpu"
	typeMIG = "mig"
)

// devicesOf returns the GPU, or its MIG devices if it is in MIG mode. A GPU whose device number is
// not known has no name, and is not published.
func devicesOf(g nodestate.GPU, driver *nodestate.DriverInfo, roots PCIeRoots) []Device {
	if g.Minor < 0 {
		return nil
	}
	name := "gpu-" + strconv.Itoa(g.Minor)
	if !g.MIGEnabled {
		d := Device{Name: name, Hardware: Hardware{UUID: g.UUID}, Fault: g.Condition, API: resourceapi.Device{Name: name}}
		a := newAttributes(g, driver, roots)
		a.text("type", typeGPU)
		a.text("uuid", string(g.UUID))
		a.placement(g)
		c := capacities{}
		c.bytes("memory", g.MemoryBytes)
		d.API.Attributes, d.API.Capacity = a, c
		d.share(g.Sharing)
		return []Device{d}
	}
	var all []Device
	for _, m := range g.MIG {
		// NVIDIA's driver ends the name with the numbers of profile and placement, which only a
		// privileged process can read; those of the instances are as unique.
		name := fmt.Sprintf("%s-mig-%s-%d-%d", name, profileName(m.Profile), m.GPUInstance, m.ComputeInstance)
		d := Device{
			Name: name, Hardware: Hardware{UUID: m.UUID, Parent: g.UUID, Placement: placementOf(g, m)},
			Fault: m.Condition, instance: &m.GPUInstance, API: resourceapi.Device{Name: name},
		}
		a := newAttributes(g, driver, roots)
		a.text("type", typeMIG)
		a.text("uuid", string(m.UUID))
		a.text("parentUUID", string(g.UUID))
		a.text("profile", m.Profile)
		d.API.Attributes, d.API.Capacity = a, migCapacities(m)
		d.share(m.Sharing)
		all = append(all, d)
	}
	return all
}

// maxProfileName bounds a profile in a device's name, which is a DNS label of at most 63 characters.
const maxProfileName = 24

// profileName returns a profile as part of a DNS label: "1g12gb", "1g12gbme".
func profileName(profile string) string {
	name := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(profile))
	return name[:min(len(name), maxProfileName)]
}

func migCapacities(m nodestate.MIGDevice) capacities {
	c := capacities{}
	c.bytes("memory", m.MemoryBytes)
	if m.Multiprocessors == 0 {
		return c // the driver does not report the MIG device's share
	}
	c.engines(m.Multiprocessors, m.CopyEngines, m.Decoders, m.Encoders, m.JPEGEngines, m.OFAEngines)
	return c
}

type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// newAttributes returns what a GPU and its MIG devices have in common.
func newAttributes(g nodestate.GPU, driver *nodestate.DriverInfo, roots PCIeRoots) attributes {
	a := attributes{}
	a.text("productName", g.Product)
	a.text("brand", g.Brand)
	a.text("architecture", g.Architecture)
	a.version("cudaComputeCapability", g.ComputeCapability)
	if driver != nil {
		a.version("driverVersion", driver.Version)
		a.version("cudaDriverVersion", driver.CUDAVersion)
		a["simulated"] = resourceapi.DeviceAttribute{BoolValue: &driver.Simulated}
	}
	// NVIDIA's driver has used both of these names, before there was a standard one.
	a.text("pciBusID", string(g.PCI))
	a.text("pcieBusID", string(g.PCI))
	a.text(deviceattribute.StandardDeviceAttributePCIBusID, string(g.PCI))
	if roots != nil && g.PCI != "" {
		a.text(deviceattribute.StandardDeviceAttributePCIeRoot, roots(g.PCI))
	}
	a.text("addressingMode", g.AddressingMode)
	if g.NUMANode != nil && *g.NUMANode >= 0 {
		node := int64(*g.NUMANode)
		a[deviceattribute.StandardDeviceAttributeNUMANode] = resourceapi.DeviceAttribute{IntValue: &node}
	}
	return a
}

// placement sets what a whole GPU has, and its MIG devices lack: NVLink reaches no MIG device, and
// the compute mode does not concern it.
func (a attributes) placement(g nodestate.GPU) {
	a.text("computeMode", g.ComputeMode)
	a.text("nvlinkDomain", string(g.NVLinkDomain))
	a.text("nvlinkNearest", string(g.NVLinkNearest))
	a.text("fabricClique", g.FabricClique)
	degraded := slices.ContainsFunc(g.Notes, func(n nodestate.Note) bool { return n.Reason == gpu.NoteFabricDegraded })
	if degraded || g.FabricClique != "" {
		a["fabricDegraded"] = resourceapi.DeviceAttribute{BoolValue: &degraded}
	}
}

// text sets an attribute to a text, cut to what the API accepts. An unknown one stays unset.
func (a attributes) text(name resourceapi.QualifiedName, value string) {
	if value == "" {
		return
	}
	value = strings.ToValidUTF8(value[:min(len(value), resourceapi.DeviceAttributeMaxValueLength)], "")
	a[name] = resourceapi.DeviceAttribute{StringValue: &value}
}

// version sets an attribute to a version in the form of semver.org, as the API demands:
// "580.95.05" becomes 580.95.5. A version that is not made of numbers stays unset.
func (a attributes) version(name resourceapi.QualifiedName, text string) {
	if text == "" {
		return
	}
	parts := strings.Split(text, ".")
	if len(parts) > 3 {
		return
	}
	var numbers [3]uint64
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 63)
		if err != nil {
			return
		}
		numbers[i] = n
	}
	value := fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2])
	a[name] = resourceapi.DeviceAttribute{VersionValue: &value}
}

type capacities map[resourceapi.QualifiedName]resourceapi.DeviceCapacity

// bytes sets a capacity in bytes; 0: it is not known.
func (c capacities) bytes(name resourceapi.QualifiedName, n uint64) {
	if n > 0 {
		c[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.BinarySI)}
	}
}

// engines sets the capacities of a MIG device besides memory.
func (c capacities) engines(multiprocessors, copies, decoders, encoders, jpegs, ofas int) {
	for name, n := range map[resourceapi.QualifiedName]int{
		"multiprocessors": multiprocessors, "copyEngines": copies, "decoders": decoders, "encoders": encoders, "jpegEngines": jpegs, "ofaEngines": ofas,
	} {
		c[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
	}
}
