package check

import (
	"path"

	"github.com/gpuready/gpuready/internal/gpu/nvml"
)

// ContainerRoot is the host path of a containerised driver's root.
const ContainerRoot = "/run/nvidia/driver"

// FindDriverRoot returns the node with its driver root set: the configured one, else
// that of a containerised driver where it holds a libnvidia-ml, else the host's own. It is
// called for each check, since a driver may be installed late.
func (n Node) FindDriverRoot() Node {
	if n.DriverRoot == "" {
		n.DriverRoot = "/"
		if _, err := nvml.FindLibrary(n.Root.Dir(), ContainerRoot); err == nil {
			n.DriverRoot = ContainerRoot
		}
	}
	if n.DevRoot == "" {
		n.DevRoot = "/"
		if _, err := n.Root.Lstat(path.Join(n.DriverRoot, "dev/nvidiactl")); err == nil {
			n.DevRoot = n.DriverRoot
		}
	}
	return n
}
