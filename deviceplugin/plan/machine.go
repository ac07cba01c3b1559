package plan

import (
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Machine holds data of the node that is not in a Snapshot. With the zero Machine nothing is
// known: the labels that depend on it are left out, or are "unknown" as in NVIDIA's feature
// discovery.
type Machine struct {
	ProductName string                    // product name of the machine, "DGX H100"; "": not known
	Classes     map[gpu.PCIAddress]uint32 // PCI class code, 0x030200 for a 3D controller
	Started     time.Time                 // when the program was started; zero: no label gfd.timestamp
}

const (
	// productNameFile is the file with the machine's product name, flags.gfd.machineTypeFile
	// by default (cmd/gpu-feature-discovery/main.go).
	productNameFile = "/sys/class/dmi/id/product_name"
	// maxFileBytes bounds the size of a file to read: sysfs has one page at most.
	maxFileBytes = 4096
)

// ReadMachine reads ProductName and Classes from the machine's own files. A missing file leaves
// the value unknown. It reads sysfs below root, or
// if it is not mounted there, this process's own, which has the same content.
func ReadMachine(root *host.Root, c *config.Config, s gpu.Snapshot) Machine {
	if _, err := root.Stat(host.PCIDevices); err != nil {
		if own, err := host.Open("/"); err == nil {
			defer func() { _ = own.Close() }()
			return readMachine(root, own, c, s)
		}
	}
	return readMachine(root, root, c, s)
}

// readMachine reads sysfs below sys, and the file that the configuration names below root.
func readMachine(root, sys *host.Root, c *config.Config, s gpu.Snapshot) Machine {
	h := Machine{Classes: map[gpu.PCIAddress]uint32{}}
	if file := c.Flags.GFD.MachineTypeFile; file == nil {
		h.ProductName = readLine(sys, productNameFile)
	} else if *file != "" {
		h.ProductName = readLine(root, *file)
	}
	for _, d := range s.Devices {
		text, isHex := strings.CutPrefix(readLine(sys, path.Join(host.PCIDevices, string(d.PCI), "class")), "0x")
		if class, err := strconv.ParseUint(text, 16, 24); isHex && err == nil {
			h.Classes[d.PCI] = uint32(class)
		}
	}
	return h
}

// readLine returns the content of a small file, or "" if it cannot be read.
func readLine(root *host.Root, name string) string {
	data, err := root.ReadFile(name, maxFileBytes)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

const unknown = "unknown"

// setHost sets the labels of the machine (internal/lm/machine-type.go) and of the time
// (internal/lm/timestamp.go). The time is that of the program's start: a
// changing time would change the Node at each update.
func (l labelSet) setHost(c *config.Config, h Machine) {
	l.set(prefix+"gpu.machine", h.ProductName)
	if l[prefix+"gpu.machine"] == "" {
		l.set(prefix+"gpu.machine", unknown)
	}
	if off := c.Flags.GFD.NoTimestamp; !h.Started.IsZero() && (off == nil || !*off) {
		l.set(prefix+"gfd.timestamp", strconv.FormatInt(h.Started.Unix(), 10))
	}
}

// setVersions sets the labels of the driver and its CUDA version (internal/lm/nvml.go,
// newVersionLabeler), including the old names. A version of another form has none.
func (l labelSet) setVersions(d gpu.Driver) {
	if v := strings.Split(d.Version, "."); len(v) == 2 || len(v) == 3 {
		v = append(v, "") // the revision of a version that has none
		l.setAll(prefix+"cuda.driver", map[string]any{"major": v[0], "minor": v[1], "rev": v[2]})
		l.setAll(prefix+"cuda.driver-version", map[string]any{"major": v[0], "minor": v[1], "revision": v[2], "full": d.Version})
	}
	if major, minor, ok := strings.Cut(d.CUDAVersion, "."); ok {
		l.setAll(prefix+"cuda.runtime", map[string]any{"major": major, "minor": minor})
		l.setAll(prefix+"cuda.runtime-version", map[string]any{"major": major, "minor": minor, "full": d.CUDAVersion})
	}
}

// modeNames are NVIDIA's names for the PCI class of a GPU (internal/lm/nvml.go,
// getModeForClasses; PCI Code and ID Assignment Specification).
var modeNames = map[uint32]string{0x030000: "graphics", 0x030200: "compute"}

// setMode sets the mode, graphics or compute, that all GPUs have in common.
func (l labelSet) setMode(gpus []gpu.Device, h Machine) {
	mode := unknown
	for i, d := range gpus {
		modeName, known := modeNames[h.Classes[d.PCI]]
		if !known || i > 0 && modeName != mode {
			mode = unknown
			break
		}
		mode = modeName
	}
	l.set(prefix+"gpu.mode", mode)
}

// setClique sets the NVLink partition that the GPUs have joined, unless they are in
// several (internal/lm/imex.go). Nodes that share memory by IMEX have it in common.
func (l labelSet) setClique(gpus []gpu.Device) {
	joined := map[gpu.Fabric]bool{}
	var last gpu.Fabric
	for _, d := range gpus {
		if d.Fabric.Cluster != [16]byte{} {
			joined[d.Fabric], last = true, d.Fabric
		}
	}
	if len(joined) == 1 {
		l.set(prefix+"gpu.clique", last.String())
	}
}
