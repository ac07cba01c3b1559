package spec

import (
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
)

// configDirs are the directories of drivers' configuration.
var configDirs = []string{"/etc", "/usr/local/share", "/usr/share"}

// graphics adds the libraries for EGL, which have versions of their own, from the first folder that has one.
func (f *finder) graphics() {
	dirs := slices.Clone(f.libraries)
	for _, folder := range f.folders {
		dirs = append(dirs, folder.Path)
	}
	for _, pattern := range []string{"libnvidia-egl-gbm.so.*.*", "libnvidia-egl-wayland.so.*.*", "libnvidia-egl-wayland2.so.*.*", "libnvidia-egl-xcb.so.*.*", "libnvidia-egl-xlib.so.*.*"} {
		for _, d := range dirs {
			if found := f.match(d, pattern); len(found) > 0 && f.addLibrary(found[0]) {
				break
			}
		}
	}
}

// xorg adds the X server's driver.
func (f *finder) xorg() {
	modules := []string{"/usr/lib/xorg/modules", "/usr/lib64/xorg/modules", "/usr/X11R6/lib/modules", "/usr/X11R6/lib64/modules"}
	var dirs []string
	for _, folder := range f.folders {
		if f.isUsed(folder.Path) { // nvidia_drv.so has no version in its name
			dirs = append(dirs, folder.Path)
		}
		dirs = append(dirs, path.Join(folder.Path, "nvidia/xorg"))
		modules = append(modules, path.Join(folder.Path, "xorg/modules"))
	}
	for _, dir := range modules {
		for _, sub := range []string{"drivers", "extensions", "updates/drivers", "updates/extensions"} {
			dirs = append(dirs, path.Join(dir, sub))
		}
	}
	for _, name := range []string{"nvidia_drv.so", "libglxserver_nvidia.so." + f.version} {
		for _, d := range dirs {
			found := f.match(d, name)
			if len(found) == 0 {
				continue
			}
			f.mount(found[0], found[0], readOnly)
			if stem, _, versioned := strings.Cut(name, ".so."); versioned {
				f.addLink(name, path.Dir(found[0]), stem+".so")
			}
			break
		}
	}
}

// configuration adds the files by which GLVND, EGL, OpenCL, OptiX, X and Vulkan find the driver.
func (f *finder) configuration() {
	for _, name := range []string{
		"glvnd/egl_vendor.d/10_nvidia.json",
		"egl/egl_external_platform.d/15_nvidia_gbm.json", "egl/egl_external_platform.d/10_nvidia_wayland.json", "egl/egl_external_platform.d/09_nvidia_wayland2.json",
		"egl/egl_external_platform.d/20_nvidia_xcb.json", "egl/egl_external_platform.d/20_nvidia_xlib.json",
		"OpenCL/vendors/nvidia.icd",
		"nvidia/nvoptix.bin",
		"X11/xorg.conf.d/10-nvidia.conf", "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
	} {
		for _, dir := range configDirs {
			if real, ok := f.file(path.Join(dir, name), fs.FileMode.IsRegular); ok {
				f.mount(real, path.Join(dir, name), readOnly)
			}
		}
	}
	cpu := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	for _, name := range []string{"icd.d/nvidia_icd.json", "icd.d/nvidia_layers.json", "implicit_layer.d/nvidia_layers.json", "icd.d/nvidia_icd." + cpu + ".json"} {
		// Some installations have them at the top of the driver's root; containers look in /etc.
		for _, dir := range append(slices.Clip(configDirs), "/") {
			if real, ok := f.file(path.Join(dir, "vulkan", name), fs.FileMode.IsRegular); ok {
				f.mount(real, path.Join("/etc/vulkan", name), readOnly)
				break
			}
		}
	}
}

// The sockets of the driver's daemons.
var (
	daemons    = []string{"nvidia-persistenced/socket", "nvidia-fabricmanager/socket"}
	socketDirs = []string{"/run", "/var/run"}
)

// Sockets returns the paths below the driver root at which Find searches for the sockets
// of daemons. They appear and vanish while the driver stays.
//
// /tmp/nvidia-mps, the default directory of an MPS daemon's pipes, is not one of them.
// Anyone who can write to the host's /tmp could replace it, and every container with a
// GPU would get that.
func Sockets() []string {
	var paths []string
	for _, name := range daemons {
		for _, dir := range socketDirs {
			paths = append(paths, path.Join(dir, name))
		}
	}
	return paths
}

// sockets adds the sockets of the running daemons.
func (f *finder) sockets() {
	isSocket := func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }
	for _, name := range daemons {
		for _, dir := range socketDirs {
			if real, ok := f.file(path.Join(dir, name), isSocket); ok {
				f.mount(real, path.Join(dir, name), socket)
				break
			}
		}
	}
}
