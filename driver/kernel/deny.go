package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// osRelease holds what of os-release(5) tells how a distribution builds its initramfs.
type osRelease struct {
	ids    []string // ID, and the distributions that it is like
	ostree bool     // its root is managed by rpm-ostree
}

// readOSRelease reads the node's os-release, not the image's.
func (s System) readOSRelease() osRelease {
	if !s.seesNode() {
		return osRelease{}
	}
	f, err := os.Open(filepath.Join(s.Proc, "1/root/etc/os-release"))
	if err != nil {
		return osRelease{}
	}
	defer f.Close() //nolint:errcheck // it is only read
	data, err := readAtMost(f, 64<<10)
	if err != nil {
		return osRelease{}
	}
	return parseOSRelease(string(data))
}

func parseOSRelease(text string) osRelease {
	var o osRelease
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if unquoted, err := strconv.Unquote(value); err == nil {
			value = unquoted
		}
		switch key {
		case "ID", "ID_LIKE":
			o.ids = append(o.ids, strings.Fields(strings.Trim(value, "'"))...)
		case "OSTREE_VERSION":
			o.ostree = true
		}
	}
	return o
}

// initramfs lists how distributions make the initramfs anew, by their IDs in os-release.
var initramfs = []struct {
	ids     []string
	command string
}{
	{[]string{"debian", "ubuntu"}, "update-initramfs -u"},
	{[]string{"rhel", "fedora", "centos", "suse", "sles", "opensuse", "amzn", "azurelinux", "mariner"}, "dracut -f"},
	{[]string{"arch"}, "mkinitcpio -P"},
}

// adviseDeny returns the lines that keep modules from being loaded at the next boots. They have to be kept from the
// initramfs, too.
func adviseDeny(modules []string, o osRelease) string {
	list := strings.Join(modules, ",")
	if o.ostree {
		return "rpm-ostree kargs --append=modprobe.blacklist=" + list + " --append=rd.driver.blacklist=" + list +
			" (OpenShift: kernelArguments of a MachineConfig), then reboot"
	}
	var lines []string
	for _, m := range modules {
		lines = append(lines, "blacklist "+m)
	}
	for _, i := range initramfs {
		if slices.ContainsFunc(i.ids, func(id string) bool { return slices.Contains(o.ids, id) }) {
			return fmt.Sprintf(`printf '%s\n' > /etc/modprobe.d/gpuready.conf; %s; reboot`, strings.Join(lines, `\n`), i.command)
		}
	}
	return "boot with modprobe.blacklist=" + list + " on the kernel's command line"
}
