package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

// memoryPeak is what the memory's interface carries, in bytes a second: clock × bus
// width × 2, since data moves on both edges of the clock. The driver reports such a
// clock for every kind of memory, also where more is moved in a cycle of the real
// one (GDDR6X): H100 SXM 2619 MHz × 5120 bits × 2 = 3352 GB/s, A100 80GB 1593 MHz ×
// 5120 × 2 = 2039, T4 5001 MHz × 256 × 2 = 320, RTX 3090 9751 MHz × 384 × 2 = 936,
// as the data sheets say. It is 0, unknown, where an attribute is 0, and for a MIG
// device, whose share of the interface no attribute tells.
func memoryPeak(d *driver.Device) (float64, error) {
	kHz, err := d.Attribute(driver.MemoryClockRate)
	if err != nil {
		return 0, err
	}
	bits, err := d.Attribute(driver.MemoryBusWidth)
	if err != nil || strings.HasPrefix(d.UUID, "MIG-") {
		return 0, err
	}
	return float64(kHz) * 1000 * 2 * float64(bits) / 8, nil
}

// sysfs is where the kernel tells of PCI devices; containers see it, too.
const sysfs = "/sys/bus/pci/devices"

// linkPeak is what the PCIe link carries each way after encoding, in bytes a second:
// the link as it is now, from the kernel, since the driver has no attribute for it.
// It is 0, unknown, where the kernel does not tell, and where the host link is not
// PCIe (NVLink-C2C: the GPU uses the host's page tables).
func linkPeak(root string, d *driver.Device) (float64, error) {
	coherent, err := d.Attribute(driver.HostPageTables)
	if err != nil || coherent != 0 {
		return 0, err
	}
	return pcieRate(filepath.Join(root, d.PCI)), nil
}

// pcieRate reads "16.0 GT/s PCIe" and "16": 8 GT/s and more are encoded 128 in 130
// bits, slower ones 8 in 10; 64 GT/s comes in flits of 256 bytes with 236 of
// payload (PCI Express Base Specification 6.0, section 4.2.3.4).
func pcieRate(dir string) float64 {
	speed, errSpeed := os.ReadFile(filepath.Join(dir, "current_link_speed"))
	width, errWidth := os.ReadFile(filepath.Join(dir, "current_link_width"))
	if errSpeed != nil || errWidth != nil {
		return 0
	}
	number, _, _ := strings.Cut(string(speed), " ")
	transfers, errSpeed := strconv.ParseFloat(number, 64)
	lanes, errWidth := strconv.Atoi(strings.TrimSpace(string(width)))
	if errSpeed != nil || errWidth != nil { // "Unknown"
		return 0
	}
	encoding := 128.0 / 130
	switch {
	case transfers < 8:
		encoding = 8.0 / 10
	case transfers >= 64:
		encoding = 236.0 / 256
	}
	return transfers * 1e9 * float64(lanes) * encoding / 8
}
