package daemon

import (
	"context"
	"errors"
	"path"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/validator/check"
)

// Watch calls changed immediately, and then whenever something that a layer depends
// on may have changed, until ctx ends.
func Watch(ctx context.Context, node check.Node, changed func()) error {
	var mu sync.Mutex // changed is not called by two at once
	report := func() {
		mu.Lock()
		defer mu.Unlock()
		changed()
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return host.Watch(ctx, watchedFiles(node), mountableRoots(node), report) })
	group.Go(func() error {
		return nodestate.WatchHeld(ctx, node.StatePath(nodestate.DevicePlugin), node.BootID, func(s nodestate.State, err error) {
			// A device plugin that is killed changes no file. Where it serves the kubelet, the kubelet's account shows it.
			if errors.Is(err, nodestate.ErrUnheld) && s.DevicePlugin != nil && s.DevicePlugin.Serve == nodestate.ServeDRA {
				report()
			}
		})
	})
	group.Go(func() error {
		return nodestate.WatchHeld(ctx, node.StatePath(nodestate.DRADriver), node.BootID, func(_ nodestate.State, err error) {
			if errors.Is(err, nodestate.ErrUnheld) {
				report()
			}
		})
	})
	return group.Wait()
}

// driverRoots returns the host paths of the roots that may hold a driver.
func driverRoots(node check.Node) []string {
	if node.DriverRoot != "" {
		return []string{node.DriverRoot}
	}
	return []string{check.ContainerRoot, "/"}
}

// mountableRoots returns the driver roots that may appear as a mount. It leaves out the
// host's own root, below which pods mount all the time.
func mountableRoots(node check.Node) []string {
	var roots []string
	for _, root := range driverRoots(node) {
		if p := node.Root.Path(root); p != node.Root.Path("/") {
			roots = append(roots, p)
		}
	}
	return roots
}

// watchedFiles returns patterns of the files whose change can change an outcome.
func watchedFiles(node check.Node) []string {
	var patterns []string
	for _, root := range driverRoots(node) {
		for _, p := range library.WatchedFiles(node.Root, root, "libnvidia-ml.so.*", "libcuda.so.*") {
			patterns = append(patterns, node.Root.Path(p))
		}
		root = node.Root.Path(root)
		patterns = append(patterns,
			path.Join(root, "dev/nvidia*"), path.Join(root, "dev/nvidia-caps/*"), path.Join(root, "dev/gdrdrv"),
			// Useful for a stand-in only: the real /proc sends no events.
			path.Join(root, "proc/driver/nvidia/version"))
	}
	if node.DevRoot != "" {
		patterns = append(patterns, path.Join(node.Root.Path(node.DevRoot), "dev/nvidia*"))
	}
	for _, dir := range node.CDIDirs {
		patterns = append(patterns, path.Join(node.Root.Path(dir), "*.yaml"), path.Join(node.Root.Path(dir), "*.json"))
	}
	for _, c := range []nodestate.Component{nodestate.Driver, nodestate.Toolkit, nodestate.DevicePlugin, nodestate.DRADriver} {
		patterns = append(patterns, path.Join(node.StatePath(c), nodestate.FileName))
	}
	return append(patterns, node.Root.Path(node.PodResources))
}
