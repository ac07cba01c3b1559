package root

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
)

// realDriver finds a libnvidia-ml in the root that is not simulated; "" if there is
// none.
func realDriver(root string) (string, error) {
	inside, err := host.Open(root)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look for a real driver: %w", err)
	}
	defer inside.Close()
	for folder := range library.New(inside).Folders() {
		entries, err := inside.ReadDir(folder.Path)
		if err != nil {
			return "", fmt.Errorf("look for a real driver: %w", err)
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "libnvidia-ml.so") || !e.Type().IsRegular() {
				continue
			}
			path := inside.Path(filepath.Join(folder.Path, e.Name()))
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
