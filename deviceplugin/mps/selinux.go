package mps

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// containerLabel is the SELinux label of files that containers may use.
const containerLabel = "system_u:object_r:container_file_t:s0"

// labelForContainers lets containers connect to sockets created in the folder, if SELinux
// enforces. New files there inherit the folder's label.
func labelForContainers(dir string) error {
	// Without SELinux there is no such file and nothing to do.
	if enforce, _ := os.ReadFile("/sys/fs/selinux/enforce"); strings.TrimSpace(string(enforce)) != "1" {
		return nil
	}
	if err := unix.Lsetxattr(dir, "security.selinux", []byte(containerLabel+"\x00"), 0); err != nil {
		return fmt.Errorf("let containers use %s: set its SELinux label %s: %w", dir, containerLabel, err)
	}
	return nil
}
