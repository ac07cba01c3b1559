package step

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/validator/check"
)

const maxKernelFile = 64 << 10

// kernelView reads the kernel's files of a node, without NVML: the loaded modules, their
// devices, and the devices on the PCI bus.
//
// A driver root may contain its own /proc and /sys: a driver container has those of the
// host there, the simulator its stand-ins. They are read before the host's own.
type kernelView struct {
	node  check.Node
	roots []string
}

// openKernel returns a View of the kernel of a node.
func openKernel(node check.Node) kernelView {
	node = node.FindDriverRoot()
	return kernelView{node: node, roots: slices.Compact([]string{node.DriverRoot, "/"})}
}

// Read returns the content of a file of /proc or /sys without the white space around it,
// "" if the file does not exist.
func (v kernelView) Read(name string) string {
	for _, root := range v.roots {
		if data, err := v.node.Root.ReadFile(path.Join(root, name), maxKernelFile); err == nil {
			return strings.TrimSpace(string(data))
		}
	}
	return ""
}

// Names returns the sorted names of the entries of a folder of /proc or /sys.
func (v kernelView) Names(dir string) []string {
	for _, root := range v.roots {
		if names, err := v.node.Root.Names(path.Join(root, dir)); err == nil && len(names) > 0 {
			slices.Sort(names)
			return names
		}
	}
	return nil
}

// Loaded reports whether a module is loaded, by its name with underscores. A built-in
// module counts if the kernel lists it.
func (v kernelView) Loaded(module string) bool {
	return slices.ContainsFunc(v.roots, func(root string) bool {
		_, err := v.node.Root.Stat(path.Join(root, "sys/module", module))
		return err == nil
	})
}

// Version returns the version that a module reports.
func (v kernelView) Version(module string) string {
	if version := v.Read(path.Join("/sys/module", module, "version")); version != "" {
		return "version " + version
	}
	return "of unknown version"
}

// Loading identifies one loading of a module: by its build, and by the number of its folder, of which the kernel
// gives each loading another. The folder's times say nothing: they are those of somebody's first look at it.
func (v kernelView) Loading(module string) string {
	dir := path.Join("/sys/module", module)
	build := v.Read(path.Join(dir, "srcversion"))
	for _, root := range v.roots {
		info, err := v.node.Root.Stat(path.Join(root, dir))
		if err != nil {
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.IsDir() {
			return fmt.Sprintf("%.64q %d", build, stat.Ino)
		}
	}
	return ""
}

// Missing returns the modules that are not loaded.
func (v kernelView) Missing(modules ...string) []string {
	return slices.DeleteFunc(slices.Clone(modules), v.Loaded)
}

// Majors returns the major numbers of character devices by driver name. It reads the first
// /proc/devices that lists a wanted driver.
func (v kernelView) Majors(wanted func(name string) bool) map[string]int {
	majors := map[string]int{}
	for _, root := range v.roots {
		data, _ := v.node.Root.ReadFile(path.Join(root, "proc/devices"), maxKernelFile)
		majors = characterMajors(string(data))
		for name := range majors {
			if wanted(name) {
				return majors
			}
		}
	}
	return majors
}

// characterMajors parses the first part of /proc/devices.
func characterMajors(text string) map[string]int {
	majors := map[string]int{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Block devices") {
			break
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if major, err := strconv.Atoi(fields[0]); err == nil && major >= 0 {
			majors[fields[1]] = major
		}
	}
	return majors
}

// Device returns what is wrong with the node of a driver's character device. It returns ""
// if the node has the driver's major number, or is not visible to this process.
func (v kernelView) Device(name, driver string) string {
	major, registered := v.Majors(func(n string) bool { return n == driver })[driver]
	if !registered {
		return "/proc/devices does not list " + driver
	}
	if !v.node.Visible("/dev/" + name) {
		return ""
	}
	for _, root := range slices.Compact([]string{v.node.DevRoot, "/"}) {
		p := path.Join(root, "dev", name)
		info, err := v.node.Root.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err.Error()
		}
		have, _, ok := host.Device(info)
		if !ok || int(have) != major {
			return fmt.Sprintf("%s is no character device of major %d, which is that of %s", p, major, driver)
		}
		return ""
	}
	return "the device node /dev/" + name + " is not there"
}

// pciDevice is a device on the PCI bus.
type pciDevice struct {
	Address string
	Class   string // six digits after 0x
	Driver  string // bound to it; "" none
}

// PCI vendor IDs.
const (
	vendorNVIDIA   = "0x10de"
	vendorMellanox = "0x15b3"
)

// PCI lists the devices of a vendor, by address.
func (v kernelView) PCI(vendor string) []pciDevice {
	var found []pciDevice
	for _, address := range v.Names(host.PCIDevices) {
		dir := path.Join(host.PCIDevices, address)
		if v.Read(path.Join(dir, "vendor")) != vendor {
			continue
		}
		found = append(found, pciDevice{Address: address, Class: strings.TrimPrefix(v.Read(path.Join(dir, "class")), "0x"), Driver: v.Link(path.Join(dir, "driver"))})
	}
	return found
}

// GPUs returns NVIDIA's GPUs, without their virtual functions.
func (v kernelView) GPUs() []pciDevice {
	return slices.DeleteFunc(v.PCI(vendorNVIDIA), func(d pciDevice) bool {
		return !strings.HasPrefix(d.Class, "0300") && !strings.HasPrefix(d.Class, "0302") || v.Link(path.Join(host.PCIDevices, d.Address, "physfn")) != ""
	})
}

// Link returns the last element of a link's target, "" if there is no link.
func (v kernelView) Link(name string) string {
	for _, root := range v.roots {
		if target, err := v.node.Root.Readlink(path.Join(root, name)); err == nil {
			return path.Base(target)
		}
	}
	return ""
}

// Exists reports whether a path of /sys or /proc exists.
func (v kernelView) Exists(name string) bool {
	return slices.ContainsFunc(v.roots, func(root string) bool {
		_, err := v.node.Root.Stat(path.Join(root, name))
		return err == nil
	})
}
