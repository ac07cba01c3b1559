package nri

import (
	"cmp"
	"slices"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
)

// Table holds the devices for workloads: the node's CDI specifications with the numbers
// of their device nodes. It is immutable.
type Table struct {
	files   []cdi.File
	nothing string // why the table is empty; "" if it is not
}

// NewTable makes a table from specifications, without changing them. A missing device
// node only fails the requests for its device.
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

// EmptyTable returns the table of a node that has no devices, with the reason.
func EmptyTable(why string) *Table { return &Table{nothing: why} }

// numbered returns the edits with the host's numbers in their device nodes. A node that
// the host lacks has no type. Each node is looked up once.
func numbered(root *host.Root, e specs.ContainerEdits, known map[string]specs.DeviceNode) specs.ContainerEdits {
	e.DeviceNodes = slices.Clone(e.DeviceNodes)
	for i, n := range e.DeviceNodes {
		at := cmp.Or(n.HostPath, n.Path)
		found, ok := known[at]
		if !ok {
			if info, err := root.Stat(at); err == nil {
				if major, minor, ok := host.Device(info); ok {
					found.Type, found.Major, found.Minor = "c", int64(major), int64(minor)
				}
			}
			known[at] = found
		}
		node := *n
		node.Type, node.Major, node.Minor = found.Type, found.Major, found.Minor
		e.DeviceNodes[i] = &node
	}
	return e
}
