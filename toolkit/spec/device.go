package spec

import (
	"fmt"
	"path"
	"regexp"
	"slices"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/toolkit/node"
)

// gpu returns the nodes of a GPU and of each of its MIG devices, nil for an unusable one.
// The nodes of a GPU in MIG mode include those of all its parts, because its own node is
// useless by itself.
func (b *builder) gpu(d gpu.Device) (whole []string, parts [][]string) {
	p := fmt.Sprintf("/dev/nvidia%d", d.Minor)
	if d.Fault.Reason != "" && b.shared(d.Minor) {
		// A minor number that could not be read is 0, which is another GPU's node.
		b.warn("GPU %s (%s) is left out: its device node is not known; %s", d.UUID, d.PCI, d.Fault.Message)
		return nil, nil
	}
	if d.Minor < 0 {
		b.warn("GPU %s (%s) is left out: neither NVML nor /proc/driver/nvidia tells its minor number, so its device node is not known", d.UUID, d.PCI)
		return nil, nil
	}
	if d.UUID == "" || !b.exists[p] {
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

// shared reports whether two GPUs claim the same minor number.
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
		minor, ok := b.Nodes.Caps[name]
		if !ok {
			return nil, "the driver lists no capability " + name + " in /proc/driver/nvidia-caps/mig-minors"
		}
		p := node.CapPath(minor)
		if !b.exists[p] {
			return nil, "there is no device node " + path.Join(b.DevRoot, p) + " for its capability " + name
		}
		nodes = append(nodes, p)
	}
	return nodes, ""
}

// control returns the nodes that every container with a GPU gets.
func (b *builder) control() []string {
	var nodes []string
	for _, p := range []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"} {
		if b.exists[p] {
			nodes = append(nodes, p)
		}
	}
	return nodes
}

// managed matches the nodes for node agents: GPUs, control nodes and all capabilities,
// including those to configure and monitor MIG. NVSwitch and GPUDirect Storage have
// agents of their own.
var managed = regexp.MustCompile(`^/dev/(nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset|nvidia-caps/nvidia-cap[0-9]+)$`)

func (b *builder) management() []string {
	var nodes []string
	for _, n := range b.Nodes.All {
		if managed.MatchString(n.Path) {
			nodes = append(nodes, n.Path)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
