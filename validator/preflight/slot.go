package preflight

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Folders of sysfs.
const (
	pciDevices = "/sys/bus/pci/devices"
	pciSlots   = "/sys/bus/pci/slots"        // Documentation/ABI/testing/sysfs-bus-pci
	dmiEntries = "/sys/firmware/dmi/entries" // Documentation/ABI/testing/sysfs-firmware-dmi-entries
)

// Bounds of the files read, against odd firmware.
const (
	maxSlotFile = 4096
	maxSlotName = 64
)

// slotNames names the slots of a machine by their addresses, without function: "0000:3b:00".
type slotNames struct {
	root  *host.Root
	slots map[string]string // the kernel's names
	board map[string]string // the names printed on the board, according to the firmware; only root may read them
}

// readSlots reads the names of the slots. Those that cannot be read are left out.
func readSlots(root *host.Root) slotNames {
	m := slotNames{root: root, slots: map[string]string{}, board: map[string]string{}}
	names, _ := root.Names(pciSlots)
	for _, name := range names {
		if data, err := root.ReadFile(path.Join(pciSlots, name, "address"), maxSlotFile); err == nil {
			m.slots[strings.ToLower(strings.TrimSpace(string(data)))] = cleanSlotName(name)
		}
	}
	entries, _ := root.Names(dmiEntries)
	for _, entry := range entries {
		if !strings.HasPrefix(entry, "9-") {
			continue
		}
		data, err := root.ReadFile(path.Join(dmiEntries, entry, "raw"), maxSlotFile)
		if err != nil {
			continue
		}
		if at, name := parseSlotRecord(data); name != "" {
			m.board[at] = name
		}
	}
	return m
}

// find returns the slot of the GPU at the address, or of the nearest bridge above it that has
// one: `3 (PCIe Slot 3)`; "" if none is known.
func (m slotNames) find(address gpu.PCIAddress) string {
	for _, at := range m.above(address) {
		name, board := m.slots[at], m.board[at]
		switch {
		case name != "" && board != "" && name != board:
			return name + " (" + board + ")"
		case name != "" || board != "":
			return name + strings.TrimPrefix(board, name)
		}
	}
	return ""
}

// above returns the slot addresses of the device and of the bridges above it, the nearest
// first.
func (m slotNames) above(address gpu.PCIAddress) []string {
	var list []string
	for _, at := range append([]gpu.PCIAddress{address}, bridgesAbove(m.root, address)...) {
		slot, _, _ := strings.Cut(string(at), ".")
		list = append(list, slot)
	}
	return list
}

// parseSlotRecord parses a System Slots structure of the firmware (DMTF DSP0134, type 9): the
// name at 04h, segment at 0Dh, bus at 0Fh, device and function at 10h.
func parseSlotRecord(data []byte) (at, name string) {
	const end = 0x11
	if len(data) < end || data[0] != 9 || int(data[1]) < end || int(data[1]) > len(data) {
		return "", ""
	}
	segment, bus, device := binary.LittleEndian.Uint16(data[0x0d:]), data[0x0f], data[0x10]
	if segment == 0xffff || bus == 0xff && device == 0xff {
		return "", ""
	}
	texts := strings.Split(string(data[data[1]:]), "\x00")
	if n := int(data[4]); n >= 1 && n <= len(texts) {
		name = cleanSlotName(texts[n-1])
	}
	return fmt.Sprintf("%04x:%02x:%02x", segment, bus, device>>3), name
}

func cleanSlotName(s string) string { return strings.TrimSpace(record.Clean(s, maxSlotName)) }
