package namespace

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mountGPUs gives a node the machine's GPUs: device nodes, and those files of the driver that are mounted on
// this machine one by one, as in a container. All others are in /usr and /etc, which a node shares anyway.
func mountGPUs(wanted bool, root string) error {
	if !wanted {
		return nil
	}
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*"} {
		found, err := filepath.Glob(filepath.Join("/dev", pattern))
		if err != nil {
			return err
		}
		for _, device := range found {
			var st unix.Stat_t
			if err := unix.Stat(device, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
				continue
			}
			at := filepath.Join(root, device)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
			if err := copyDevice(at, st); err != nil {
				return err
			}
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || !strings.HasPrefix(fields[4], "/usr/") {
			continue
		}
		if err := bind(fields[4], filepath.Join(root, fields[4]), 0); err != nil {
			return fmt.Errorf("%s: %w", fields[4], err)
		}
	}
	return nil
}
