package podsample

import (
	"os"
	"regexp"
)

var device = regexp.MustCompile(`^(nvidia[0-9]+|dxg)$`)

// devices counts the GPUs' device nodes in dev, a container's /dev.
func devices(dev string) int {
	entries, err := os.ReadDir(dev)
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if device.MatchString(e.Name()) {
			n++
		}
	}
	return n
}
