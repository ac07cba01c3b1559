package nodestate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// BootID returns the kernel's ID of this boot.
func BootID() (string, error) { return BootIDAt("/") }

// BootIDAt returns the boot ID from the host's /proc, for a host root mounted at
// hostRoot. For a root without a /proc (a test directory) it returns this boot's.
func BootIDAt(hostRoot string) (string, error) {
	const boot = "proc/sys/kernel/random/boot_id"
	path := filepath.Join("/", hostRoot, boot)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		path = "/" + boot
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if !isBootID(id) {
		return "", fmt.Errorf("read the boot ID: %s does not hold a boot ID", path)
	}
	return id, nil
}

// isBootID reports whether s is a UUID as the kernel writes it.
func isBootID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (s[i] == '-') || !dash && !strings.Contains("0123456789abcdef", s[i:i+1]) {
			return false
		}
	}
	return true
}
