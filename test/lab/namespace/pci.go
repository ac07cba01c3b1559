package namespace

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PCI is the folder of a node's own PCI bus, with its devices. Without it the node shows the
// machine's bus.
const PCI = "/var/lib/pci-devices"

// GPUFunction returns the sysfs files of an H100's PCI function, by name.
func GPUFunction() map[string]string {
	return map[string]string{"vendor": "0x10de\n", "device": "0x2330\n", "class": "0x030200\n", "subsystem_vendor": "0x10de\n", "subsystem_device": "0x16c1\n"}
}

// bindPCI binds the node's PCI bus, if it has its own, over the machine's below a root.
func bindPCI(root string) error {
	if _, err := os.Stat(PCI); err != nil {
		return nil //nolint:nilerr // no bus of its own
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
