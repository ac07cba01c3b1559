package spec

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/node"
)

// Input is all that specifications follow from.
type Input struct {
	Files    Files
	Snapshot gpu.Snapshot
	Nodes    []node.Node // that are on the host, or will be in a moment
	Caps     node.Caps   // minor numbers of MIG's capabilities
	DevRoot  string      // host path below which /dev/nvidia* are
	Hook     string      // host path of gpu-cdi-hook
}

// Output are the specifications. Without a usable GPU there is none.
type Output struct {
	Specs    []specs.Spec // in the order of Kinds
	Warnings []string     // what was left out, and why
}

// Kinds are those that Build makes, in this order.
var Kinds = []string{cdi.KindGPU, cdi.KindManagement, cdi.KindNVIDIA}

// FileName is the name of the file that holds our specification of a kind. That
// for nvidia.com/gpu says whose it is: others may write one as well.
func FileName(kind string) string {
	name := strings.ReplaceAll(kind, "/", "-") + ".yaml"
	if kind == cdi.KindNVIDIA {
		return "gpuready-" + name
	}
	return name
}

// Build makes the specification of every kind.
func Build(in Input) Output {
	b := builder{Input: in, there: map[string]bool{}}
	for _, n := range in.Nodes {
		b.there[n.Path] = true
	}
	var byUUID, byIndex []specs.Device
	all := map[string]bool{}
	for _, d := range in.Snapshot.Devices {
		whole, parts := b.gpu(d)
		if whole == nil {
			continue
		}
		index := strconv.Itoa(d.Index)
		byUUID = b.append(byUUID, string(d.UUID), whole)
		byIndex = b.append(byIndex, index, whole)
		for _, p := range whole {
			all[p] = true
		}
		for i, m := range d.MIG {
			if parts[i] != nil {
				byUUID = b.append(byUUID, string(m.UUID), parts[i])
				byIndex = b.append(byIndex, index+":"+strconv.Itoa(m.Index), parts[i])
			}
		}
	}
	if len(byUUID) == 0 {
		return Output{Warnings: b.warnings}
	}
	control := b.control()
	everything := sorted(all)
	management := b.edits()
	nvidia := b.append(slices.Concat(byUUID, byIndex), cdi.All, everything)
	return Output{
		Specs: []specs.Spec{
			{Kind: cdi.KindGPU, ContainerEdits: b.edits(control...), Devices: byUUID},
			{Kind: cdi.KindManagement, ContainerEdits: management, Devices: b.append(nil, cdi.All, b.management())},
			{Kind: cdi.KindNVIDIA, ContainerEdits: b.edits(control...), Devices: nvidia},
		},
		Warnings: b.warnings,
	}
}

type builder struct {
	Input
	there    map[string]bool
	warnings []string
}

func (b *builder) warn(format string, args ...any) {
	b.warnings = append(b.warnings, fmt.Sprintf(format, args...))
}

// gpu returns the nodes of a GPU and of each of its MIG devices; nil where one
// cannot be used. The nodes of a GPU in MIG mode are those of all its parts:
// by its own node alone a container could do nothing with it.
func (b *builder) gpu(d gpu.Device) (whole []string, parts [][]string) {
	p := fmt.Sprintf("/dev/nvidia%d", d.Minor)
	if d.Fault.Reason != "" && b.shared(d.Minor) {
		// What could not be read is 0, and that is another GPU's node.
		b.warn("GPU %s (%s) is left out: its device node is not known; %s", d.UUID, d.PCI, d.Fault.Message)
		return nil, nil
	}
	if d.UUID == "" || !b.there[p] {
		b.warn("GPU %s (%s) is left out: there is no device node %s", d.UUID, d.PCI, path.Join(b.DevRoot, p))
		return nil, nil
	}
	whole = []string{p}
	for _, m := range d.MIG {
		part, missing := b.mig(d, m)
		if missing != "" {
			b.warn("MIG device %s (%s of GPU %s) is left out: %s", m.UUID, m.Profile, d.UUID, missing)
			parts = append(parts, nil)
			continue
		}
		parts = append(parts, append([]string{p}, part...))
		whole = append(whole, part...)
	}
	slices.Sort(whole)
	return slices.Compact(whole), parts
}

// shared says that two GPUs claim one minor number.
func (b *builder) shared(minor int) bool {
	n := 0
	for _, d := range b.Snapshot.Devices {
		if d.Minor == minor {
			n++
		}
	}
	return n > 1
}

func (b *builder) mig(d gpu.Device, m gpu.MIGDevice) (nodes []string, missing string) {
	for _, name := range []string{node.Instance(d.Minor, m.GPUInstance), node.Compute(d.Minor, m.GPUInstance, m.ComputeInstance)} {
		minor, ok := b.Caps[name]
		if !ok {
			return nil, "the driver lists no capability " + name + " in /proc/driver/nvidia-caps/mig-minors"
		}
		p := node.CapPath(minor)
		if !b.there[p] {
			return nil, "there is no device node " + path.Join(b.DevRoot, p) + " for its capability " + name
		}
		nodes = append(nodes, p)
	}
	return nodes, ""
}

// control are the nodes that every container with a GPU gets.
func (b *builder) control() []string {
	var nodes []string
	for _, p := range []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"} {
		if b.there[p] {
			nodes = append(nodes, p)
		}
	}
	return nodes
}

// managed are the nodes of node agents: GPUs, control nodes, all capabilities
// (those to configure and monitor MIG too); but no NVSwitch or GPUDirect Storage,
// which have agents of their own.
var managed = regexp.MustCompile(`^/dev/(nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset|nvidia-caps/nvidia-cap[0-9]+)$`)

func (b *builder) management() []string {
	var nodes []string
	for _, n := range b.Nodes {
		if managed.MatchString(n.Path) {
			nodes = append(nodes, n.Path)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (b *builder) append(devices []specs.Device, name string, nodes []string) []specs.Device {
	if err := parser.ValidateDeviceName(name); err != nil {
		b.warn("device %q is left out: %v", name, err) // MIG UUIDs of drivers before R470 hold a slash
		return devices
	}
	return append(devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{DeviceNodes: b.nodes(nodes)}})
}

func (b *builder) nodes(paths []string) []*specs.DeviceNode {
	var nodes []*specs.DeviceNode
	for _, p := range paths {
		n := &specs.DeviceNode{Path: p, Permissions: "rw"}
		if at := path.Join("/", b.DevRoot, p); at != p {
			n.HostPath = at
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// edits are what all devices of a kind have in common.
func (b *builder) edits(control ...string) specs.ContainerEdits {
	e := specs.ContainerEdits{Env: b.Files.Env, DeviceNodes: b.nodes(control)}
	for _, m := range b.Files.Mounts {
		e.Mounts = append(e.Mounts, &specs.Mount{HostPath: m.Host, ContainerPath: m.Container, Options: m.Options})
	}
	hook := func(name, flag string, values []string) {
		if len(values) == 0 {
			return
		}
		args := []string{path.Base(b.Hook), name}
		for _, v := range values {
			args = append(args, flag, v)
		}
		e.Hooks = append(e.Hooks, &specs.Hook{
			HookName: "createContainer", // in the container's mounts, before its root is switched to
			Path:     b.Hook,
			Args:     args,
			// Never empty: a runtime then passes on the container's own
			// environment, LD_PRELOAD included (CVE-2025-23266).
			Env: []string{"PATH=/usr/bin:/bin"},
		})
	}
	hook("create-symlinks", "--link", b.Files.Links)
	hook("update-ldcache", "--folder", b.Files.Folders)
	return e
}

func sorted(set map[string]bool) []string {
	var list []string
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// Owner returns the path of a file, not ours, that defines the kind
// nvidia.com/gpu; "" if there is none. A file that runtimes cannot read counts
// if its kind can be made out: it may be a newer version's.
func Owner(files []cdi.File, ours string) string {
	for _, f := range files {
		if f.Kind == cdi.KindNVIDIA && f.Path != ours {
			return f.Path
		}
	}
	return ""
}
