package labels

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Host is what a node has and no Snapshot tells. The zero Host means that
// nothing is known: labels that would have to be guessed are then left out, or
// say unknown where the reference's do.
type Host struct {
	Machine string                    // product name of the machine, "DGX H100"; "": not known
	Class   map[gpu.PCIAddress]uint32 // PCI class code, 0x030200 for a 3D controller
	Start   time.Time                 // of the program; zero: no gfd.timestamp
}

const (
	// machineType is the file with the machine's product name, flags.gfd.machineTypeFile
	// by default (cmd/gpu-feature-discovery/main.go).
	machineType = "/sys/class/dmi/id/product_name"
	// maxFile bounds what is read of one file: sysfs has one page at most.
	maxFile = 4096
)

// ReadHost reads what the machine's own files tell: Machine and Class. What is
// not there is left out; a machine without firmware tables is no failure. sysfs is
// looked at below root, or, where it is not mounted there, in this process's own,
// which shows the same.
func ReadHost(root *host.Root, c *config.Config, s gpu.Snapshot) Host {
	if _, err := root.Stat(host.PCIDevices); err != nil {
		if own, err := host.Open("/"); err == nil {
			defer func() { _ = own.Close() }()
			return readHost(root, own, c, s)
		}
	}
	return readHost(root, root, c, s)
}

func readHost(root, sys *host.Root, c *config.Config, s gpu.Snapshot) Host {
	h := Host{Class: map[gpu.PCIAddress]uint32{}}
	if file := c.Flags.GFD.MachineTypeFile; file == nil {
		h.Machine = line(sys, machineType)
	} else if *file != "" {
		h.Machine = line(root, *file)
	}
	for _, d := range s.Devices {
		text, is := strings.CutPrefix(line(sys, path.Join(host.PCIDevices, string(d.PCI), "class")), "0x")
		if class, err := strconv.ParseUint(text, 16, 24); is && err == nil {
			h.Class[d.PCI] = uint32(class)
		}
	}
	return h
}

// line is the content of a small file; "" where it cannot be read.
func line(root *host.Root, name string) string {
	data, err := root.ReadFile(name, maxFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

const unknown = "unknown"

// host puts the labels of the machine (internal/lm/machine-type.go) and of the
// time (internal/lm/timestamp.go). The time is that of the start, as in the
// reference: one that changed with each look would change the Node with each look.
func (l labels) host(c *config.Config, h Host) {
	l.put(prefix+"gpu.machine", h.Machine)
	if l[prefix+"gpu.machine"] == "" {
		l.put(prefix+"gpu.machine", unknown)
	}
	if off := c.Flags.GFD.NoTimestamp; !h.Start.IsZero() && (off == nil || !*off) {
		l.put(prefix+"gfd.timestamp", strconv.FormatInt(h.Start.Unix(), 10))
	}
}

// versions puts the labels of the driver and its CUDA (internal/lm/nvml.go,
// newVersionLabeler), under the old names too. A version of another form has none.
func (l labels) versions(d gpu.Driver) {
	if v := strings.Split(d.Version, "."); len(v) == 2 || len(v) == 3 {
		v = append(v, "") // the revision of a version that has none
		l.all(prefix+"cuda.driver", map[string]any{"major": v[0], "minor": v[1], "rev": v[2]})
		l.all(prefix+"cuda.driver-version", map[string]any{"major": v[0], "minor": v[1], "revision": v[2], "full": d.Version})
	}
	if major, minor, ok := strings.Cut(d.CUDAVersion, "."); ok {
		l.all(prefix+"cuda.runtime", map[string]any{"major": major, "minor": minor})
		l.all(prefix+"cuda.runtime-version", map[string]any{"major": major, "minor": minor, "full": d.CUDAVersion})
	}
}

// modes are the reference's words for what a GPU is to the PCI bus
// (internal/lm/nvml.go, getModeForClasses; PCI Code and ID Assignment Specification).
var modes = map[uint32]string{0x030000: "graphics", 0x030200: "compute"}

// mode puts what all GPUs are to the PCI bus.
func (l labels) mode(gpus []gpu.Device, h Host) {
	mode := unknown
	for i, d := range gpus {
		one, known := modes[h.Class[d.PCI]]
		if !known || i > 0 && one != mode {
			mode = unknown
			break
		}
		mode = one
	}
	l.put(prefix+"gpu.mode", mode)
}

// clique puts the NVLink partition that the GPUs have joined, unless they are in
// several (internal/lm/imex.go). It is what nodes that share memory by IMEX have
// in common.
func (l labels) clique(gpus []gpu.Device) {
	joined := map[gpu.Fabric]bool{}
	var last gpu.Fabric
	for _, d := range gpus {
		if d.Fabric.Cluster != [16]byte{} {
			joined[d.Fabric], last = true, d.Fabric
		}
	}
	if len(joined) == 1 {
		c := last.Cluster
		l.put(prefix+"gpu.clique", fmt.Sprintf("%x-%x-%x-%x-%x.%d", c[:4], c[4:6], c[6:8], c[8:10], c[10:], last.Clique))
	}
}
