package root

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/simulator/state"
)

// A GPU has 15 possible GPU instances, each with 8 compute instances: the
// driver assigns a minor number to each of them, used or not.
const (
	capInstances = 15
	capCompute   = 8
	capsPerGPU   = capInstances * (1 + capCompute)
	firstCap     = 3 // after config and monitor
)

// capability is one of the driver's MIG capabilities: a process that can open its
// device node may use the instance.
type capability struct {
	path  string // below /proc/driver/nvidia/capabilities
	minor uint32
	mode  uint32
}

func instanceCap(gpu, gi uint32) uint32 { return firstCap + gpu*capsPerGPU + gi*(1+capCompute) }

func computeCap(gpu, gi, ci uint32) uint32 { return instanceCap(gpu, gi) + 1 + ci }

// caps returns the present capabilities.
func (m Machine) caps() []capability {
	caps := []capability{{"mig/config", 1, 0o400}, {"mig/monitor", 2, 0o444}}
	for _, g := range m.State.GPUs() {
		for _, gi := range g.Gi {
			if gi.Used == 0 {
				continue
			}
			dir := fmt.Sprintf("gpu%d/mig/gi%d", g.Minor, gi.Id)
			caps = append(caps, capability{dir + "/access", instanceCap(g.Minor, gi.Id), 0o444})
			for _, ci := range g.Ci {
				if ci.Used != 0 && ci.Gi == gi.Id {
					caps = append(caps, capability{fmt.Sprintf("%s/ci%d/access", dir, ci.Id), computeCap(g.Minor, gi.Id, ci.Id), 0o444})
				}
			}
		}
	}
	return caps
}

// capabilities returns the files in /proc that describe capabilities, in the driver's
// formats: one with all minor numbers, and one for each present capability.
func (m Machine) capabilities() []Entry {
	var minors strings.Builder
	minors.WriteString("config 1\nmonitor 2\n")
	for _, g := range m.State.GPUs() {
		for gi := range uint32(capInstances) {
			fmt.Fprintf(&minors, "gpu%d/gi%d/access %d\n", g.Minor, gi, instanceCap(g.Minor, gi))
			for ci := range uint32(capCompute) {
				fmt.Fprintf(&minors, "gpu%d/gi%d/ci%d/access %d\n", g.Minor, gi, ci, computeCap(g.Minor, gi, ci))
			}
		}
	}
	entries := []Entry{NewFile("proc/driver/nvidia-caps/mig-minors", 0o444, []byte(minors.String()))}
	for _, c := range m.caps() {
		entries = append(entries, text("proc/driver/nvidia/capabilities/"+c.path,
			"DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", c.minor, c.mode))
	}
	return entries
}

// proc returns the stand-ins for the driver's files in /proc.
func (m Machine) proc() []Entry {
	module := state.Text(m.State.ModuleVersion[:])
	platform := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[m.Arch]
	entries := []Entry{
		text("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for %s  %s  SIMULATED by gpusim: there is no GPU\nGCC version:  none\n", platform, module),
		text("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"),
		text("proc/devices", "%s", m.devices()),
		text("sys/module/nvidia/version", "%s\n", module),
		text("sys/module/nvidia/initstate", "live\n"),
	}
	for _, g := range m.State.GPUs() {
		entries = append(entries, text("proc/driver/nvidia/gpus/"+g.Pci.Address()+"/information",
			"Model: \t\t %s\nIRQ:   \t\t 0\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"+
				"Bus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
			state.Text(g.Name[:]), state.Text(g.Uuid[:]), state.Text(g.Vbios[:]), g.Pci.Address(), g.Minor, module))
	}
	return entries
}

// devices returns the driver's lines of /proc/devices.
func (m Machine) devices() string {
	lines := fmt.Sprintf("Character devices:\n%3d nvidia\n%3d nvidia-modeset\n%3d nvidiactl\n%3d nvidia-uvm\n%3d nvidia-caps\n",
		m.Majors.GPU, m.Majors.GPU, m.Majors.GPU, m.Majors.UVM, m.Majors.Caps)
	if len(m.switches()) > 0 {
		lines += fmt.Sprintf("%3d nvidia-nvswitch\n", m.Majors.NVSwitch)
	}
	return lines + "\nBlock devices:\n"
}

// PCI classes: 3D controller (a GPU), and other bridge (an NVSwitch).
const (
	classGPU    = 0x030200
	classSwitch = 0x068000
)

// sys returns the PCI devices as the kernel lists them in /sys.
func (m Machine) sys() []Entry {
	const drivers = "sys/bus/pci/drivers/nvidia"
	entries := []Entry{{Path: drivers, Kind: Dir, Mode: 0o755}}
	for _, g := range m.State.GPUs() {
		entries = append(entries, pciDevice(g.Pci, classGPU, int(g.NumaNode), "nvidia")...)
	}
	switches := m.switches()
	if len(switches) > 0 {
		entries = append(entries, Entry{Path: "sys/bus/pci/drivers/nvidia-nvswitch", Kind: Dir, Mode: 0o755})
	}
	for _, s := range switches {
		entries = append(entries, pciDevice(s, classSwitch, -1, "nvidia-nvswitch")...)
	}
	return entries
}

func pciDevice(p state.PCI, class uint32, numa int, driver string) []Entry {
	dir := "sys/bus/pci/devices/" + p.Address() + "/"
	vendor, device := pciID(p)
	return []Entry{
		text(dir+"vendor", "0x%04x\n", vendor),
		text(dir+"device", "0x%04x\n", device),
		text(dir+"subsystem_vendor", "0x%04x\n", p.SubsystemId&0xffff),
		text(dir+"subsystem_device", "0x%04x\n", p.SubsystemId>>16),
		text(dir+"class", "0x%06x\n", class),
		text(dir+"revision", "0xa1\n"),
		text(dir+"numa_node", "%d\n", numa),
		text(dir+"resource", "%s", strings.Repeat("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", 13)),
		NewFile(dir+"config", 0o644, configSpace(vendor, device, class, p.SubsystemId)),
		link(dir+"driver", "../../drivers/"+driver),
	}
}

func pciID(p state.PCI) (vendor, device uint32) {
	if p.DeviceId == 0 {
		return 0x10de, 0
	}
	return p.DeviceId & 0xffff, p.DeviceId >> 16
}

// ShowOnBus lets the configuration space of a GPU be all ones if the GPU has fallen off the bus, as the bus
// answers for a device that does not, and else what it was.
func (r *Root) ShowOnBus(g state.GPU) error {
	vendor, device := pciID(g.Pci)
	content := configSpace(vendor, device, classGPU, g.Pci.SubsystemId)
	if g.Lost != state.LostNo && g.Lost != state.LostUnknown {
		content = bytes.Repeat([]byte{0xff}, len(content))
	}
	f, err := os.OpenFile(filepath.Join(r.Dir, "sys/bus/pci/devices", g.Pci.Address(), "config"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a root of an older gpusim
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Close())
}

// configSpace returns the standard header of a PCI device (PCI Local Bus Specification
// 3.0, 6.1).
func configSpace(vendor, device, class, subsystem uint32) []byte {
	c := make([]byte, 64)
	put := func(at int, value uint32, bytes int) {
		for i := range bytes {
			c[at+i] = byte(value >> (8 * i))
		}
	}
	put(0x00, vendor, 2)
	put(0x02, device, 2)
	put(0x08, 0xa1, 1)
	put(0x09, class, 3)
	put(0x2c, subsystem&0xffff, 2)
	put(0x2e, subsystem>>16, 2)
	return c
}
