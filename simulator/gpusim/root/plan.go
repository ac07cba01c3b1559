package root

// This file computes the content of a driver root of the simulated driver, as a pure
// function of the state.

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

func text(name, format string, a ...any) Entry {
	return NewFile(name, 0o444, fmt.Appendf(nil, format, a...))
}

func link(name, target string) Entry {
	return Entry{Path: name, Kind: Link, Target: target}
}

// Majors are the major numbers of the device nodes.
type Majors struct {
	GPU      uint32 `json:"gpu"`
	UVM      uint32 `json:"uvm"`
	Caps     uint32 `json:"caps"`
	NVSwitch uint32 `json:"nvswitch"`
}

// Machine is the input of a plan.
type Machine struct {
	State     *state.State
	Version   string // of the libraries
	Arch      string // as Go calls it
	Majors    Majors
	Plain     bool // device nodes cannot be made: plain files stand in
	Libraries []Entry
}

// LibDir returns the library directory of distributions for the architecture.
func LibDir(arch string) string {
	if arch == "arm64" {
		return "usr/lib/aarch64-linux-gnu"
	}
	return "usr/lib/x86_64-linux-gnu"
}

// StatePath returns the path of the state file. It is named like a library so that
// programs that find a driver's files by their version inject it into containers too.
func StatePath(arch, version string) string {
	return path.Join(LibDir(arch), "libnvidia-gpusim.so."+version)
}

// OwnDir is gpusim's own folder below the root.
const OwnDir = "var/lib/gpusim"

// LogPath is the file to which libcuda writes why it refused a module or stopped a
// kernel.
const LogPath = OwnDir + "/log"

// Entries lists the content of the root, in the order in which it is created. The last
// entry is libnvidia-ml.so.1: a program that waits for it finds all the rest.
func (m Machine) Entries() []Entry {
	lib := LibDir(m.Arch)
	plan := slices.Concat(m.proc(), m.capabilities(), m.sys(), m.nodes(), m.Libraries)
	return append(plan,
		Entry{Path: LogPath, Kind: Log, Mode: 0o666},
		Entry{Path: StatePath(m.Arch, m.Version), Kind: State},
		link(OwnDir+"/state", "../../../"+StatePath(m.Arch, m.Version)),
		link(lib+"/libcuda.so.1", "libcuda.so."+m.Version),
		link(lib+"/libcuda.so", "libcuda.so.1"),
		link(lib+"/libnvidia-ml.so.1", "libnvidia-ml.so."+m.Version),
	)
}

// nodes returns the device nodes in /dev. Their minors are the driver's own: 255 for
// control, 254 for mode setting (nv.h of the open kernel modules).
func (m Machine) nodes() []Entry {
	node := func(name string, mode, major, minor uint32) Entry {
		return Entry{Path: "dev/" + name, Kind: Node, Mode: mode, Major: major, Minor: minor, Plain: m.Plain}
	}
	nodes := []Entry{
		node("nvidiactl", 0o666, m.Majors.GPU, 255),
		node("nvidia-modeset", 0o666, m.Majors.GPU, 254),
		node("nvidia-uvm", 0o666, m.Majors.UVM, 0),
		node("nvidia-uvm-tools", 0o666, m.Majors.UVM, 1),
	}
	for _, g := range m.State.GPUs() {
		nodes = append(nodes, node(fmt.Sprintf("nvidia%d", g.Minor), 0o666, m.Majors.GPU, g.Minor))
	}
	if switches := m.switches(); len(switches) > 0 {
		nodes = append(nodes, node("nvidia-nvswitchctl", 0o666, m.Majors.NVSwitch, 255))
		for i := range switches {
			nodes = append(nodes, node(fmt.Sprintf("nvidia-nvswitch%d", i), 0o666, m.Majors.NVSwitch, uint32(i)))
		}
	}
	for _, c := range m.caps() {
		nodes = append(nodes, node(fmt.Sprintf("nvidia-caps/nvidia-cap%d", c.minor), c.mode, m.Majors.Caps, c.minor))
	}
	return nodes
}

// switches returns the NVSwitches at the ends of NVLinks, by address. From NVLink 5 on they are no PCI devices, and
// the profile gives them no device ID.
func (m Machine) switches() []state.PCI {
	var switches []state.PCI
	for _, g := range m.State.GPUs() {
		for _, l := range g.Link[:g.Nlinks] {
			if l.RemoteType == state.RemoteSwitch && l.Remote.DeviceId != 0 && !slices.Contains(switches, l.Remote) {
				switches = append(switches, l.Remote)
			}
		}
	}
	slices.SortFunc(switches, func(a, b state.PCI) int { return strings.Compare(a.Address(), b.Address()) })
	return switches
}
