package inside

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PCI is the folder of a node with the devices of a PCI bus of its own. Without it the node
// shows the machine's.
const PCI = "/var/lib/pci-devices"

// GPU has, by file name, what sysfs has of the PCI function of an H100.
func GPU() map[string]string {
	return map[string]string{"vendor": "0x10de\n", "device": "0x2330\n", "class": "0x030200\n", "subsystem_vendor": "0x10de\n", "subsystem_device": "0x16c1\n"}
}

// bindPCI shows the node's PCI bus in place of the machine's below a root, where the node
// has one of its own.
func bindPCI(root string) error {
	if _, err := os.Stat(PCI); err != nil {
		return nil //nolint:nilerr // it has none
	}
	at := filepath.Join(root, "sys/bus/pci/devices")
	if _, err := os.Stat(at); err != nil {
		return nil //nolint:nilerr // a container without /sys
	}
	if err := unix.Mount(PCI, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("show the node's PCI bus: %w", err)
	}
	return nil
}
