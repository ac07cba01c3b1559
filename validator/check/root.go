package check

import (
	"path"

	"github.com/gpuready/gpuready/internal/gpu/nvml"
)

// ContainerRoot is where a containerised driver shows its root on the host.
const ContainerRoot = "/run/nvidia/driver"

// FindDriverRoot returns the node with its driver root set: the one it was
// given, else that of a containerised driver where it holds a libnvidia-ml,
// else the host's own. It is asked anew for each check: a driver may come late.
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
