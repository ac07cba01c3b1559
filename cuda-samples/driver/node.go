package driver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// refusedNodes lists the driver's device nodes that exist but that this process may not open.
// The driver returns the same error code for a missing node and for a forbidden one.
func refusedNodes() []string {
	var refused []string
	for _, pattern := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia[0-9]*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err == nil {
				_ = f.Close()
			} else if errors.Is(err, fs.ErrPermission) {
				refused = append(refused, path)
			}
		}
	}
	return refused
}
