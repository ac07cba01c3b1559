package spec

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
)

// Node is a device node besides a GPU's own.
type Node struct {
	Path string // in containers
	Host string // on the host
}

// Peripherals holds the devices that GPUs work with: graphics nodes, storage, network.
type Peripherals struct {
	DRM    map[gpu.PCIAddress][]Node // for graphics, of each GPU
	Nodes  map[string][]Node         // by their kind
	Mounts map[string][]Mount        // by their kind

	Warnings []string // what was left out, and why
}

// peripherals are the device nodes of each kind other than GPUs, as in the reference
// (nvidia-container-toolkit, internal/discover).
var peripherals = []struct {
	kind     string
	patterns []string
}{
	{cdi.KindGDS, []string{"/dev/nvidia-fs*"}},
	{cdi.KindMOFED, []string{"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"}},
	{cdi.KindGDRCopy, []string{"/dev/gdrdrv"}},
	{cdi.KindNVSwitch, []string{"/dev/nvidia-nvswitch*"}},
	{cdi.KindIMEX, []string{"/dev/nvidia-caps-imex-channels/channel*"}},
}

// Places returns the patterns of the paths that FindPeripherals searches for, below the dev root or
// in the host's own /dev.
func Places() []string {
	places := []string{"/dev/dri/*"}
	for _, p := range peripherals {
		places = append(places, p.patterns...)
	}
	return places
}

// FindPeripherals finds the devices that GPUs work with, below the dev root or else in the host's
// own /dev, where the kernel creates the nodes of other drivers.
func FindPeripherals(root *host.Root, driverRoot, devRoot string, s gpu.Snapshot) (Peripherals, error) {
	a := Peripherals{DRM: map[gpu.PCIAddress][]Node{}, Nodes: map[string][]Node{}, Mounts: map[string][]Mount{}}
	for _, p := range peripherals {
		for _, pattern := range p.patterns {
			nodes, err := devices(root, devRoot, path.Dir(pattern), path.Base(pattern))
			if err != nil {
				return a, err
			}
			a.Nodes[p.kind] = append(a.Nodes[p.kind], nodes...)
		}
	}
	slices.SortFunc(a.Nodes[cdi.KindIMEX], func(x, y Node) int { return cmp.Compare(channel(x), channel(y)) })
	if len(a.Nodes[cdi.KindGDS]) > 0 {
		a.Mounts[cdi.KindGDS], a.Warnings = storage(root, driverRoot)
	}
	return a, a.findDRM(root, driverRoot, devRoot, s)
}

// channel returns the number of an IMEX channel's node.
func channel(n Node) int {
	number, err := strconv.Atoi(strings.TrimPrefix(path.Base(n.Path), "channel"))
	if err != nil {
		return -1
	}
	return number
}

// devices returns the device nodes in a directory that match a pattern.
func devices(root *host.Root, devRoot, dir, pattern string) ([]Node, error) {
	for _, at := range slices.Compact([]string{path.Clean("/" + devRoot), "/"}) {
		found, err := root.Glob(path.Join(at, dir), pattern)
		if err != nil && !absent(err) {
			return nil, err
		}
		var nodes []Node
		for _, p := range found {
			info, err := root.Stat(p)
			if err != nil {
				continue // removed meanwhile, or a dangling link
			}
			if _, _, ok := host.Device(info); ok {
				nodes = append(nodes, Node{Path: path.Join(dir, path.Base(p)), Host: p})
			}
		}
		if len(nodes) > 0 {
			return nodes, nil
		}
	}
	return nil, nil
}

// storage returns the mounts that programs with GPUDirect Storage read, and warnings of those left out.
func storage(root *host.Root, driverRoot string) (mounts []Mount, warnings []string) {
	for p, wanted := range map[string]func(fs.FileMode) bool{"/run/udev": fs.FileMode.IsDir, "/etc/cufile.json": fs.FileMode.IsRegular} {
		real, err := root.Resolve(path.Join("/", driverRoot, p))
		if err != nil {
			continue
		}
		if info, err := root.Lstat(real); err != nil || !wanted(info.Mode()) {
			continue
		}
		switch dir, err := exposed(root, real, map[string]bool{}); {
		case err != nil:
		case dir != "":
			warnings = append(warnings, explainExposed(root.Path(real), root.Path(dir), 0))
		default:
			mounts = append(mounts, Mount{Host: real, Container: p, Options: readOnly})
		}
	}
	slices.SortFunc(mounts, func(a, b Mount) int { return cmp.Compare(a.Container, b.Container) })
	slices.Sort(warnings)
	return mounts, warnings
}

// findDRM finds the graphics nodes of each GPU by its address, as the kernel lists them in
// /sys. A simulated driver has its own /sys below its root.
func (a Peripherals) findDRM(root *host.Root, driverRoot, devRoot string, s gpu.Snapshot) error {
	all, err := devices(root, devRoot, "/dev/dri", "*")
	if err != nil || len(all) == 0 {
		return err
	}
	for _, d := range s.Devices {
		if d.MIGEnabled && !slices.ContainsFunc(d.MIG, hasGraphics) || d.PCI == "" {
			continue
		}
		for _, at := range []string{driverRoot, "/"} {
			entries, err := root.ReadDir(path.Join("/", at, "/sys/bus/pci/devices", string(d.PCI), "drm"))
			if err != nil && !absent(err) {
				return err
			}
			for _, e := range entries {
				i := slices.IndexFunc(all, func(n Node) bool { return path.Base(n.Path) == e.Name() })
				if i >= 0 {
					a.DRM[d.PCI] = append(a.DRM[d.PCI], all[i])
				}
			}
			if len(entries) > 0 {
				break
			}
		}
	}
	return nil
}

// hasGraphics reports whether a MIG device can render: its profile has the attribute gfx, as "1g.24gb+gfx". The
// attributes follow a plus, and those that it lacks a minus ("1g.24gb+me,gfx-ofa").
func hasGraphics(m gpu.MIGDevice) bool {
	_, attributes, _ := strings.Cut(m.Profile, "+")
	attributes, _, _ = strings.Cut(attributes, "-")
	return slices.Contains(strings.Split(attributes, ","), "gfx")
}

// links returns the links by which programs find a GPU's nodes by its address, as udev
// creates them.
func (a Peripherals) links(address gpu.PCIAddress) []string {
	var links []string
	for _, n := range a.DRM[address] {
		name := path.Base(n.Path)
		kind := "render"
		if strings.HasPrefix(name, "card") {
			kind = "card"
		}
		links = append(links, "../"+name+"::/dev/dri/by-path/pci-"+string(address)+"-"+kind)
	}
	return links
}
