package mps

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// label is the SELinux label of files that containers may use.
const label = "system_u:object_r:container_file_t:s0"

// relabel lets containers connect to sockets created in the folder, if SELinux
// enforces. New files there inherit the folder's label.
func relabel(dir string) error {
	// Without SELinux there is no such file and nothing to do.
	if enforce, _ := os.ReadFile("/sys/fs/selinux/enforce"); strings.TrimSpace(string(enforce)) != "1" {
		return nil
	}
	if err := unix.Lsetxattr(dir, "security.selinux", []byte(label+"\x00"), 0); err != nil {
		return fmt.Errorf("let containers use %s: set its SELinux label %s: %w", dir, label, err)
	}
	return nil
}
