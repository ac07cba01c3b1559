package daemon

import (
	"context"
	"path"
	"slices"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// libraryDirs is where distributions put a driver's libraries.
var libraryDirs = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib",
	"usr/lib/x86_64-linux-gnu/nvidia/current", "usr/lib/aarch64-linux-gnu/nvidia/current", "usr/local/nvidia/lib64",
}

// Watch calls changed once at once and whenever something that a layer depends
// on may have changed, until ctx ends.
func Watch(ctx context.Context, node check.Node, changed func()) error {
	return host.Watch(ctx, files(node), mountable(node), changed)
}

func driverRoots(node check.Node) []string {
	if node.DriverRoot != "" {
		return []string{node.Root.Path(node.DriverRoot)}
	}
	return []string{node.Root.Path(check.ContainerRoot), node.Root.Path("/")}
}

// mountable are the driver roots that may come as a mount: not the host's own
// root, below which pods mount all the time.
func mountable(node check.Node) []string {
	return slices.DeleteFunc(driverRoots(node), func(p string) bool { return p == node.Root.Path("/") })
}

// files are those whose change can change what is proven.
func files(node check.Node) []string {
	var patterns []string
	for _, root := range driverRoots(node) {
		for _, dir := range libraryDirs {
			patterns = append(patterns, path.Join(root, dir, "libnvidia-ml.so.*"), path.Join(root, dir, "libcuda.so.*"))
		}
		patterns = append(patterns,
			path.Join(root, "dev/nvidia*"), path.Join(root, "dev/nvidia-caps/*"), path.Join(root, "dev/gdrdrv"),
			// Of use where it is a stand-in: /proc itself tells of nothing.
			path.Join(root, "proc/driver/nvidia/version"))
	}
	if node.DevRoot != "" {
		patterns = append(patterns, path.Join(node.Root.Path(node.DevRoot), "dev/nvidia*"))
	}
	for _, dir := range node.CDIDirs {
		patterns = append(patterns, path.Join(node.Root.Path(dir), "*.yaml"), path.Join(node.Root.Path(dir), "*.json"))
	}
	for _, c := range []nodestate.Component{nodestate.Driver, nodestate.Toolkit, nodestate.DevicePlugin} {
		patterns = append(patterns, path.Join(node.StatePath(c), nodestate.FileName))
	}
	return append(patterns, node.Root.Path(node.PodResources))
}
