package daemon

import (
	"path"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/toolkit/setup"
	"github.com/gpuready/gpuready/toolkit/spec"
	"github.com/gpuready/gpuready/toolkit/watch"
)

// setWatches watches all files that the wanted state depends on.
func (d *Daemon) setWatches() (more bool, err error) {
	driverRoot, devRoot := d.Roots()
	roots := map[string]bool{driverRoot: true}
	if d.Config.DriverRoot == "" {
		roots["/"], roots[setup.ContainerRoot] = true, true
	}
	var targets []watch.Target
	add := func(dir, pattern string, means watch.Meaning) {
		targets = append(targets, watch.Target{Dir: dir, Pattern: pattern, Means: means})
	}
	for root := range roots {
		for _, p := range library.WatchedFiles(d.Root, root, "libnvidia-*", "libcuda*") {
			add(path.Dir(p), path.Base(p), filesChanged)
		}
		// The driver's container creates these when it is done.
		add(path.Join(root, "dev"), "nvidia*", devicesChanged)
	}
	for _, p := range spec.Sockets() { // sockets are mounted: pods start again once a vanished one is unspecified
		add(path.Join(driverRoot, path.Dir(p)), path.Base(p), filesChanged)
	}
	for _, p := range spec.Places() {
		for _, root := range []string{devRoot, "/"} {
			add(path.Join(root, path.Dir(p)), path.Base(p), devicesChanged)
		}
	}
	add("/run/nvidia/validations", ".driver-ctr-ready", filesChanged)
	add(path.Join(devRoot, "dev"), "nvidia*", devicesChanged)
	add(path.Join(devRoot, "dev/nvidia-caps"), "nvidia-cap*", devicesChanged)
	add(path.Join(d.Config.StateDir, string(nodestate.DevicePlugin)), nodestate.LayoutName, devicesChanged)
	add(d.Config.InstallDir, setup.HookName, specsChanged)
	for _, file := range d.configFiles() {
		add(path.Dir(file), path.Base(file), configChanged)
		// What a link leads to is what is edited.
		if target, err := d.Root.Resolve(file); err == nil && target != file {
			add(path.Dir(target), path.Base(target), configChanged)
		}
	}
	for _, dir := range []string{cdi.StaticDir, cdi.DynamicDir, d.Config.CDIDir} {
		add(dir, "*.yaml", specsChanged)
		add(dir, "*.json", specsChanged)
	}
	return d.watch.Set(targets)
}
