package host

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
)

// PCIDevices is the directory of the PCI devices in sysfs.
const PCIDevices = "/sys/bus/pci/devices"

// PCIGPU is an NVIDIA GPU on the PCI bus, with or without a working driver.
type PCIGPU struct {
	Address gpu.PCIAddress
	Device  uint16 // PCI device ID: 0x2330; 0 where sysfs has none
	Driver  string // kernel driver that has it: "nvidia", "vfio-pci"; "" none
}

// GPUs lists the NVIDIA GPUs in a folder of sysfs, PCIDevices or a stand-in:
// vendor 10de, class 0300 (VGA) or 0302 (3D controller; PCI Code and ID
// Assignment Specification), by address. A machine without the folder has none.
func (r *Root) GPUs(dir string) []PCIGPU {
	entries, err := r.ReadDir(dir)
	if err != nil {
		return nil
	}
	read := func(name, file string) string {
		data, err := r.ReadFile(path.Join(dir, name, file), int64(os.Getpagesize()))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	var found []PCIGPU
	for _, e := range entries {
		class := read(e.Name(), "class")
		if read(e.Name(), "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		address, err := gpu.ParsePCIAddress(e.Name())
		if err != nil {
			continue
		}
		device := PCIGPU{Address: address}
		if id, err := strconv.ParseUint(read(e.Name(), "device"), 0, 16); err == nil {
			device.Device = uint16(id)
		}
		if driver, err := r.Readlink(path.Join(dir, e.Name(), "driver")); err == nil {
			device.Driver = path.Base(driver)
		}
		found = append(found, device)
	}
	slices.SortFunc(found, func(a, b PCIGPU) int { return strings.Compare(string(a.Address), string(b.Address)) })
	return found
}

// HasGPU reports whether the machine has an NVIDIA GPU on its PCI bus. It reads sysfs
// below the host's root or, if it is not mounted there, this process's own: both list
// the same devices.
func (r *Root) HasGPU() bool {
	if _, err := r.Stat(PCIDevices); err == nil {
		return len(r.GPUs(PCIDevices)) > 0
	}
	own, err := Open("/")
	if err != nil {
		return false
	}
	defer func() { _ = own.Close() }()
	return len(own.GPUs(PCIDevices)) > 0
}
