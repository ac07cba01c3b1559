// Package mps runs the MPS control daemons of a node, one for each resource whose
// devices are shared by the CUDA Multi-Process Service: a container's CUDA program
// finds the daemon by its pipes, and the daemon starts the server that runs the
// work of all programs on a GPU at once, each with its part of memory and threads.
//
// Which daemons there are follows from the configuration and the GPUs (spec.go).
// Each is a child of this process (control.go) in the driver's root (place.go). It
// is asked for as long as it serves, and started anew when it ends. What becomes
// of it stands in the state file (daemon.go), by which the device plugin, which
// has no rights, gives the devices away or does not.
//
// Limits, paths and variables are those of the reference
// (github.com/NVIDIA/k8s-device-plugin, cmd/mps-control-daemon/mps, v0.17.0).
package mps

import (
	"path"

	"github.com/gpuready/gpuready/deviceplugin/config"
)

// Container is where a container sees the folder of its daemon.
const Container = "/mps"

// Shm is where daemon, servers and containers share memory with each other.
const Shm = "/dev/shm"

// defaultRoot is the reference's.
const defaultRoot = "/run/nvidia/mps"

// Root is the host's folder of all daemons' folders.
func Root(c *config.Config) string {
	if root := c.Flags.MpsRoot; root != nil && *root != "" {
		return *root
	}
	return defaultRoot
}

// PipeDir is the folder of the daemon's pipes below the root of all daemons.
func PipeDir(root, resource string) string { return path.Join("/", root, resource, "pipe") }

// LogDir is the folder of its logs.
func LogDir(root, resource string) string { return path.Join("/", root, resource, "log") }

// ShmDir is what is mounted at Shm, the same for all resources.
func ShmDir(root string) string { return path.Join("/", root, "shm") }
