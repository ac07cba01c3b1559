package main

// This file restricts EGL and Vulkan in a container to its GPUs. They may otherwise list GPUs of
// the host that the container has no device nodes of.

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// profilePath is an application profile, which the driver's graphics libraries read when they
// start (driver README, "Using Application Profiles").
const profilePath = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"

const (
	maxProfile = 4 << 10 // ours has 120 bytes
	maxNodes   = 4096    // names in /dev; a host's has a few hundred
)

func updateProfile(c container) error {
	mask, err := findGPUs(c.Root)
	if err != nil {
		c.warn("/dev: %v", err)
	}
	if mask == 0 {
		return nil
	}
	text := formatProfile(mask)
	if now, err := c.ReadOwnFile(profilePath, maxProfile); err == nil && bytes.Equal(now, text) {
		return nil
	}
	if err = c.MkdirAll(path.Dir(profilePath), 0o755); err == nil {
		err = c.Replace(profilePath, text, 0o444)
	}
	if err != nil { // CUDA needs no profile, so the container starts all the same
		c.warn("EGL and Vulkan are not restricted to the container's GPUs: %v", err)
	}
	return nil
}

// findGPUs returns the minor numbers of the GPUs in the container's /dev, as a mask. Numbers that
// the mask cannot express are left out.
func findGPUs(root *rootfs.Root) (mask uint64, err error) {
	entries, err := root.ReadDirAtMost("/dev", maxNodes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if len(entries) == maxNodes {
		return 0, fmt.Errorf("%d names or more", maxNodes)
	}
	for _, e := range entries {
		if e.Type()&fs.ModeCharDevice == 0 || !isGPUName(e.Name()) {
			continue
		}
		info, err := root.Lstat(path.Join("/dev", e.Name()))
		if err != nil {
			continue // removed meanwhile
		}
		if _, minor, ok := host.Device(info); ok && minor < 64 {
			mask |= 1 << minor
		}
	}
	return mask, nil
}

// isGPUName reports whether a device node has the name of a GPU's, nvidia and a number.
func isGPUName(name string) bool {
	number, ok := strings.CutPrefix(name, "nvidia")
	_, err := strconv.ParseUint(number, 10, 32)
	return ok && err == nil
}

// formatProfile returns the profile for all programs that shows only the GPUs in the mask.
func formatProfile(mask uint64) []byte {
	const name = "gpuready-container"
	return fmt.Appendf(nil, `{"rules":[{"pattern":[],"profile":%q}],"profiles":[{"name":%[1]q,"settings":["EGLVisibleDGPUDevices",%#x]}]}`+"\n", name, mask)
}
