package nri

import (
	"cmp"
	"slices"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
)

// Table is what there is to give to workloads: the node's CDI specifications with the
// numbers of their device nodes. It does not change once it is made.
type Table struct {
	files   []cdi.File
	nothing string // why there is nothing to give; "": there is
}

// NewTable makes a table of specifications, which it does not change. A node that is
// not there is missed by who asks for it, and by nobody else.
func NewTable(root *host.Root, files []cdi.File) *Table {
	t := &Table{files: slices.Clone(files)}
	numbers := map[string]specs.DeviceNode{}
	for i, f := range t.files {
		if f.Spec == nil {
			continue
		}
		spec := *f.Spec
		spec.ContainerEdits = numbered(root, spec.ContainerEdits, numbers)
		spec.Devices = slices.Clone(spec.Devices)
		for j := range spec.Devices {
			spec.Devices[j].ContainerEdits = numbered(root, spec.Devices[j].ContainerEdits, numbers)
		}
		t.files[i].Spec = &spec
	}
	return t
}

// Nothing is the table of a node that has nothing to give, and why.
func Nothing(why string) *Table { return &Table{nothing: why} }

// numbered returns edits whose device nodes have the numbers that the host's have, or
// no type where the host has none. It asks once for each.
func numbered(root *host.Root, e specs.ContainerEdits, known map[string]specs.DeviceNode) specs.ContainerEdits {
	e.DeviceNodes = slices.Clone(e.DeviceNodes)
	for i, n := range e.DeviceNodes {
		at := cmp.Or(n.HostPath, n.Path)
		is, asked := known[at]
		if !asked {
			if info, err := root.Stat(at); err == nil {
				if major, minor, ok := host.Device(info); ok {
					is.Type, is.Major, is.Minor = "c", int64(major), int64(minor)
				}
			}
			known[at] = is
		}
		node := *n
		node.Type, node.Major, node.Minor = is.Type, is.Major, is.Minor
		e.DeviceNodes[i] = &node
	}
	return e
}
