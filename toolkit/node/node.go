// Package node plans the device nodes that a host needs and that other programs may not
// create: those of GPUs, the control nodes and MIG's capabilities. It also plans the links
// below /dev/char by which a container runtime's systemd cgroup driver finds a device by its
// numbers.
package node

import (
	"bufio"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/apply"
)

// Minor numbers that the driver's sources fix.
const (
	minorCtl      = 255
	minorModeset  = 254
	minorUVM      = 0
	minorUVMTools = 1
)

// frontends are the names of the GPUs' driver in /proc/devices. Drivers before 560 use the
// second.
var frontends = []string{"nvidia", "nvidia-frontend"}

// maxProc limits the size of the files of /proc that are read.
const maxProc = 1 << 20

// Node is a character device below a dev root.
type Node struct {
	Path         string // "/dev/nvidia0", without the dev root
	Major, Minor uint32
}

// Nodes are the device nodes below a dev root.
type Nodes struct {
	All    []Node // Wanted, and the others that exist
	Wanted []Node // those that the toolkit creates if they are missing
	Caps   Caps
}

// Scan finds the existing device nodes and determines the wanted ones, for the GPUs of a
// snapshot and the drivers in the kernel. Without a driver it wants none.
func Scan(root *host.Root, driverRoot, devRoot string, s gpu.Snapshot) (Nodes, error) {
	majors, err := readMajors(root, driverRoot)
	if err != nil {
		return Nodes{}, err
	}
	caps, err := ReadCaps(root, driverRoot)
	if err != nil {
		return Nodes{}, err
	}
	existing, err := Find(root, devRoot)
	if err != nil {
		return Nodes{}, err
	}
	names := []string{"config", monitor}
	for _, d := range s.Devices {
		for _, m := range d.MIG {
			names = append(names, Instance(d.Minor, m.GPUInstance), Compute(d.Minor, m.GPUInstance, m.ComputeInstance))
		}
	}
	slices.Sort(names)
	wanted := control(majors, caps, slices.Compact(names))
	makes, err := makesGPUs(root, driverRoot)
	if err != nil {
		return Nodes{}, err
	}
	if makes {
		wanted = append(wanted, gpus(majors, s.Devices)...)
	}
	return Nodes{All: union(wanted, existing), Wanted: wanted, Caps: caps}, nil
}

// union returns the wanted nodes, then the existing ones at other paths.
func union(wanted, existing []Node) []Node {
	all := slices.Clone(wanted)
	for _, n := range existing {
		if !slices.ContainsFunc(wanted, func(w Node) bool { return w.Path == n.Path }) {
			all = append(all, n)
		}
	}
	return all
}

// majors maps the names of character drivers ("nvidia-uvm") to their numbers, as listed in
// /proc/devices.
type majors map[string]uint32

// Caps maps the names of MIG's capabilities ("gpu0/gi1/access", "config") to their minor
// numbers, as listed in /proc/driver/nvidia-caps/mig-minors.
type Caps map[string]uint32

// readMajors reads /proc/devices of the driver root if it has one (a driver container, the
// simulator), otherwise of the host.
func readMajors(root *host.Root, driverRoot string) (majors, error) {
	data, err := readProc(root, driverRoot, "/proc/devices")
	return parseMajors(data), err
}

// ReadCaps reads the minor numbers of MIG's capabilities. If there are none, no GPU supports
// MIG, which is not an error.
func ReadCaps(root *host.Root, driverRoot string) (Caps, error) {
	data, err := readProc(root, driverRoot, "/proc/driver/nvidia-caps/mig-minors")
	return parseCaps(data), err
}

// makesGPUs reports whether the toolkit creates the nodes of GPUs, accessible to everyone, as
// with the driver's default parameters. If these set other permissions or an owner, or forbid
// it, the administrator manages the nodes.
func makesGPUs(root *host.Root, driverRoot string) (bool, error) {
	data, err := readProc(root, driverRoot, "/proc/driver/nvidia/params")
	defaults := map[string]string{"ModifyDeviceFiles": "1", "DeviceFileMode": "438", "DeviceFileUID": "0", "DeviceFileGID": "0"} // 0666
	for line := range strings.Lines(data) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if want, ok := defaults[name]; ok && value != want {
			return false, err
		}
	}
	return err == nil, err
}

func readProc(root *host.Root, driverRoot, name string) (string, error) {
	var data []byte
	var err error
	for _, p := range []string{path.Join(driverRoot, name), name} {
		if _, statErr := root.Stat(p); statErr == nil {
			data, err = root.ReadFile(p, maxProc)
			break
		}
	}
	return string(data), err
}

func parseMajors(s string) majors {
	found := majors{}
	for lines := bufio.NewScanner(strings.NewReader(s)); lines.Scan(); {
		line := lines.Text()
		if line == "Block devices:" {
			break
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[0], 10, 12) // the kernel's majors have 12 bits
		if _, there := found[fields[1]]; err == nil && !there {
			found[fields[1]] = uint32(n)
		}
	}
	return found
}

func parseCaps(s string) Caps {
	caps := Caps{}
	for lines := bufio.NewScanner(strings.NewReader(s)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 20); err == nil { // minors have 20 bits
			caps[fields[0]] = uint32(n)
		}
	}
	return caps
}

// monitor is the capability to monitor all MIG instances: with it NVML lists also those that
// a process may not use. The source is the driver's monitor session:
// github.com/NVIDIA/open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/mig_mgr/mig_monitor_session.c.
const monitor = "monitor"

// Monitor returns the node of the capability to monitor all MIG instances, "" if there is
// none.
func (c Caps) Monitor() string {
	minor, ok := c[monitor]
	if !ok {
		return ""
	}
	return CapPath(minor)
}

// Instances returns the nodes of the capabilities for single MIG instances, whether or not
// the instances exist now.
func (c Caps) Instances() map[string]bool {
	nodes := map[string]bool{}
	for name, minor := range c {
		if strings.HasPrefix(name, "gpu") {
			nodes[CapPath(minor)] = true
		}
	}
	return nodes
}

// CapPath returns the node of a capability.
func CapPath(minor uint32) string { return fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor) }

// Instance returns the name of the capability for a GPU instance of the GPU with the given
// minor number.
func Instance(gpuMinor, gi int) string { return fmt.Sprintf("gpu%d/gi%d/access", gpuMinor, gi) }

// Compute returns the name of the capability for a compute instance in it.
func Compute(gpuMinor, gi, ci int) string {
	return fmt.Sprintf("gpu%d/gi%d/ci%d/access", gpuMinor, gi, ci)
}

// Find returns the NVIDIA device nodes below a dev root, sorted by path.
func Find(root *host.Root, devRoot string) ([]Node, error) {
	var nodes []Node
	for _, at := range [][2]string{{"/dev", "nvidia*"}, {"/dev/nvidia-caps", "nvidia-cap*"}, {"/dev/nvidia-caps-imex-channels", "channel*"}} {
		found, err := root.Glob(path.Join(devRoot, at[0]), at[1])
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			info, err := root.Stat(p)
			if err != nil {
				continue // removed meanwhile, or a dangling link
			}
			if major, minor, ok := host.Device(info); ok {
				nodes = append(nodes, Node{path.Join(at[0], path.Base(p)), major, minor})
			}
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Path, b.Path) })
	return nodes, nil
}

// control returns the wanted control nodes and capabilities for which the kernel has drivers.
// caps names the wanted capabilities.
func control(drivers majors, minors Caps, caps []string) []Node {
	var nodes []Node
	add := func(name string, minor uint32, names ...string) {
		for _, d := range names {
			if major, ok := drivers[d]; ok {
				nodes = append(nodes, Node{name, major, minor})
				return
			}
		}
	}
	add("/dev/nvidiactl", minorCtl, frontends...)
	add("/dev/nvidia-modeset", minorModeset, append([]string{"nvidia-modeset"}, frontends...)...)
	add("/dev/nvidia-uvm", minorUVM, "nvidia-uvm")
	add("/dev/nvidia-uvm-tools", minorUVMTools, "nvidia-uvm")
	for _, name := range caps {
		if minor, ok := minors[name]; ok {
			add(CapPath(minor), minor, "nvidia-caps")
		}
	}
	return nodes
}

// gpus returns the nodes of GPUs. The driver's libraries create missing ones in the /dev of
// the calling process, which in a container is not the host's. So a node whose driver is
// installed by a container would have none. A GPU that could not be read is skipped, because
// its minor number is unknown.
func gpus(drivers majors, devices []gpu.Device) []Node {
	var nodes []Node
	for _, name := range frontends {
		major, ok := drivers[name]
		if !ok {
			continue
		}
		for _, d := range devices {
			if d.UUID != "" && d.Fault.Reason == "" {
				nodes = append(nodes, Node{fmt.Sprintf("/dev/nvidia%d", d.Minor), major, uint32(d.Minor)})
			}
		}
		break
	}
	return nodes
}

// Items returns the items for the nodes. Missing ones that are wanted are created, and every
// node gets a link below /dev/char if none leads to the device yet. A node with other
// numbers than the kernel's is replaced, since it leads nowhere.
func (n Nodes) Items(root *host.Root, devRoot string) []apply.Item {
	var items []apply.Item
	for _, w := range n.Wanted {
		items = append(items, apply.Item{
			Path: path.Join(devRoot, w.Path),
			Node: &apply.Node{Major: w.Major, Minor: w.Minor, Mode: 0o666}, // as created by nvidia-modprobe
		})
	}
	linked := map[string]bool{}
	for _, n := range n.All {
		link := fmt.Sprintf("/dev/char/%d:%d", n.Major, n.Minor)
		if linked[link] || leads(root, link, n) {
			continue
		}
		linked[link] = true
		// The link is relative, as in the kernel's devtmpfs, if the node is in the same
		// /dev. The links themselves are always the host's.
		target := ".." + strings.TrimPrefix(n.Path, "/dev")
		if path.Clean("/"+devRoot) != "/" {
			target = path.Join(devRoot, n.Path)
		}
		items = append(items, apply.Item{Path: link, Link: target})
	}
	return items
}

// Stale returns items that remove the links below /dev/char that no longer lead to the device
// of their name: it is gone, or its driver was reloaded and has other numbers.
func Stale(root *host.Root, links []string) []apply.Item {
	var items []apply.Item
	for _, link := range links {
		var n Node
		if _, err := fmt.Sscanf(path.Base(link), "%d:%d", &n.Major, &n.Minor); err == nil && !leads(root, link, n) {
			items = append(items, apply.Item{Path: link, Absent: true})
		}
	}
	return items
}

func leads(root *host.Root, link string, n Node) bool {
	info, err := root.Stat(link)
	if err != nil {
		return false
	}
	major, minor, ok := host.Device(info)
	return ok && major == n.Major && minor == n.Minor
}
