// Package mps runs the MPS control daemons of a node, one for each resource whose
// devices are shared by the CUDA Multi-Process Service. A container's CUDA program
// finds the daemon by its pipes. The daemon starts the server that runs the work of all
// programs on a GPU at once, each with its part of memory and threads.
//
// The configuration and the GPUs determine the daemons (spec.go). Each is a child of
// this process (control.go) in the driver's root (place.go). It is checked while it
// runs and restarted when it ends. Its status goes into the state file (daemon.go),
// which decides whether the unprivileged device plugin allocates the devices.
//
// Limits, paths and variables are those of NVIDIA's device plugin
// (github.com/NVIDIA/k8s-device-plugin, cmd/mps-control-daemon/mps, v0.17.0).
package mps

import (
	"path"

	"github.com/gpuready/gpuready/deviceplugin/config"
)

// Container is the path of the daemon's folder in a container.
const Container = "/mps"

// Shm is the folder in which daemon, servers and containers share memory.
const Shm = "/dev/shm"

// defaultRoot is NVIDIA's default.
const defaultRoot = "/run/nvidia/mps"

// Root returns the host's folder that holds the folders of all daemons.
func Root(c *config.Config) string {
	if root := c.Flags.MpsRoot; root != nil && *root != "" {
		return *root
	}
	return defaultRoot
}

// PipeDir returns the folder of the daemon's pipes below the root of all daemons.
func PipeDir(root, resource string) string { return path.Join("/", root, resource, "pipe") }

// LogDir returns the folder of its logs.
func LogDir(root, resource string) string { return path.Join("/", root, resource, "log") }

// ShmDir returns the folder that is mounted at Shm, the same for all resources.
func ShmDir(root string) string { return path.Join("/", root, "shm") }
