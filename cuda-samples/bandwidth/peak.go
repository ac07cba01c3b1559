package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/cuda-samples/driver"
)

// memoryPeak returns the peak bandwidth of the memory interface in bytes per second:
// clock × bus width × 2, since data moves on both edges of the clock. The driver reports
// a clock for which this factor 2 is right with every kind of memory, even where the hardware moves more
// in a cycle of its real clock (GDDR6X). The results match the data sheets: H100 SXM 2619 MHz × 5120 bits × 2 =
// 3352 GB/s, A100 80GB 1593 MHz × 5120 × 2 = 2039, T4 5001 MHz × 256 × 2 = 320,
// RTX 3090 9751 MHz × 384 × 2 = 936. It returns 0, unknown, where an attribute is 0 and
// for a MIG device: no attribute gives its share of the interface.
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

// pciDevices is the kernel's folder of PCI devices. Containers see it, too.
const pciDevices = "/sys/bus/pci/devices"

// linkPeak returns the bandwidth of the PCIe link each way after encoding, in bytes per
// second. It reads the link's current state from the kernel: the driver has no attribute
// for it. An idle GPU may slow its link: call it right after a copy. It returns 0, unknown, where the kernel does not report the link and where the
// host link is not PCIe but NVLink-C2C: the GPU then uses the host's page tables.
func linkPeak(root string, d *driver.Device) (float64, error) {
	coherent, err := d.Attribute(driver.HostPageTables)
	if err != nil || coherent != 0 {
		return 0, err
	}
	return pcieRate(filepath.Join(root, d.PCI)), nil
}

// pcieRate reads a link's speed and width: "16.0 GT/s PCIe" and "16". From 8 GT/s on,
// links encode 128 bits in 130; slower ones encode 8 in 10. At 64 GT/s a flit of 256
// bytes carries 236 of payload (PCI Express Base Specification 6.0, section 4.2.3.4).
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
