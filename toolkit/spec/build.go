package spec

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/node"
)

// Input is the complete input of Build.
type Input struct {
	Files      Files
	Around     Peripherals
	Snapshot   gpu.Snapshot
	Nodes      node.Nodes
	DriverRoot string // host path of the root of the driver's files
	DevRoot    string // host path of the root of /dev/nvidia*
	Hook       string // host path of gpu-cdi-hook
}

// Output holds the specifications. Without a usable GPU there are none.
type Output struct {
	Specs    []specs.Spec // in the order of Kinds, without kinds that have no device
	Warnings []string     // the devices that were left out, and why
}

// Kinds are the kinds that Build makes, in this order. The first three always occur
// together.
var Kinds = []string{
	cdi.KindGPU, cdi.KindManagement, cdi.KindNVIDIA,
	cdi.KindGDS, cdi.KindMOFED, cdi.KindGDRCopy, cdi.KindNVSwitch, cdi.KindIMEX,
}

// Spec returns the specification of a kind, nil if there is none.
func (o Output) Spec(kind string) *specs.Spec {
	for i := range o.Specs {
		if o.Specs[i].Kind == kind {
			return &o.Specs[i]
		}
	}
	return nil
}

// FileName returns the name of the file with our specification of a kind. For NVIDIA's
// kinds it names us, since others may write one as well.
func FileName(kind string) string {
	name := strings.ReplaceAll(kind, "/", "-") + ".yaml"
	if !Own(kind) {
		return "gpuready-" + name
	}
	return name
}

// Own reports whether only we write the kind.
func Own(kind string) bool { return kind == cdi.KindGPU || kind == cdi.KindManagement }

// Build builds the specification of every kind.
func Build(in Input) Output {
	b := builder{Input: in, exists: map[string]bool{}}
	for _, n := range in.Nodes.All {
		b.exists[n.Path] = true
	}
	var byUUID, byIndex []specs.Device
	all := map[string]bool{}
	var drm []Node
	var links []string
	for _, d := range in.Snapshot.Devices {
		whole, parts := b.gpu(d)
		if whole == nil {
			continue
		}
		index := strconv.Itoa(d.Index)
		edits := b.device(d.PCI, whole)
		byUUID = b.append(byUUID, string(d.UUID), edits)
		byIndex = b.append(byIndex, index, edits)
		for _, p := range whole {
			all[p] = true
		}
		drm, links = append(drm, in.Around.DRM[d.PCI]...), append(links, in.Around.links(d.PCI)...)
		for i, m := range d.MIG {
			if parts[i] != nil {
				part := specs.ContainerEdits{DeviceNodes: b.nodes(parts[i])}
				if hasGraphics(m) {
					part = b.device(d.PCI, parts[i])
				}
				byUUID = b.append(byUUID, string(m.UUID), part)
				byIndex = b.append(byIndex, index+":"+strconv.Itoa(m.Index), part)
			}
		}
	}
	if len(byUUID) == 0 {
		return Output{Warnings: b.warnings}
	}
	everything := specs.ContainerEdits{DeviceNodes: append(b.nodes(sorted(all)), around(drm)...), Hooks: b.hooks(flags("create-symlinks", "--link", links))}
	agents := specs.ContainerEdits{DeviceNodes: b.nodes(b.management()), Mounts: b.roots()}
	out := Output{Specs: []specs.Spec{
		{Kind: cdi.KindGPU, ContainerEdits: b.compute(), Devices: byUUID},
		{Kind: cdi.KindManagement, ContainerEdits: b.common(), Devices: b.append(nil, cdi.All, agents)},
		{Kind: cdi.KindNVIDIA, ContainerEdits: b.compute(), Devices: b.append(slices.Concat(byUUID, byIndex), cdi.All, everything)},
	}}
	for _, kind := range Kinds {
		if nodes := in.Around.Nodes[kind]; len(nodes) > 0 {
			void := specs.ContainerEdits{Env: []string{invisible}} // as in Files.Env
			out.Specs = append(out.Specs, specs.Spec{Kind: kind, ContainerEdits: void, Devices: b.peripheral(kind, nodes)})
		}
	}
	out.Warnings = b.warnings
	return out
}

type builder struct {
	Input
	exists   map[string]bool
	warnings []string
}

func (b *builder) warn(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

// peripheral returns the devices of a kind other than GPUs.
func (b *builder) peripheral(kind string, nodes []Node) []specs.Device {
	var list []specs.Device
	if kind == cdi.KindIMEX {
		for _, n := range nodes {
			list = b.append(list, strings.TrimPrefix(path.Base(n.Path), "channel"), specs.ContainerEdits{DeviceNodes: around([]Node{n})})
		}
	}
	return b.append(list, cdi.All, specs.ContainerEdits{DeviceNodes: around(nodes), Mounts: mounts(b.Around.Mounts[kind])})
}

// append adds a device unless its name is invalid or taken, for which runtimes refuse the
// whole file.
func (b *builder) append(devices []specs.Device, name string, edits specs.ContainerEdits) []specs.Device {
	if err := parser.ValidateDeviceName(name); err != nil {
		b.warn("device %q is left out: %v", name, err) // MIG UUIDs of drivers before R470 hold a slash
		return devices
	}
	if slices.ContainsFunc(devices, func(d specs.Device) bool { return d.Name == name }) {
		b.warn("device %q is left out: the driver gives the name to two", name)
		return devices
	}
	return append(devices, specs.Device{Name: name, ContainerEdits: edits})
}

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
