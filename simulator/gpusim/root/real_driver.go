package root

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// folders in which distributions and NVIDIA's installer put driver libraries.
var driverFolders = []string{
	"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib",
	"lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib",
	"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current",
	"usr/local/nvidia/lib64", "usr/local/nvidia/lib",
}

// realDriver finds a libnvidia-ml in the root that is not simulated; "" if there is
// none.
func realDriver(root string) (string, error) {
	for _, folder := range driverFolders {
		entries, err := os.ReadDir(filepath.Join(root, folder))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("look for a real driver: %w", err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "libnvidia-ml.so") || !e.Type().IsRegular() {
				continue
			}
			path := filepath.Join(root, folder, e.Name())
			content, err := os.ReadFile(path)
			if err != nil {
				return "", fmt.Errorf("look for a real driver: %w", err)
			}
			ours, err := Simulated(content)
			if err != nil {
				return "", fmt.Errorf("look for a real driver: %s: %w", path, err)
			}
			if !ours {
				return path, nil
			}
		}
	}
	return "", nil
}
