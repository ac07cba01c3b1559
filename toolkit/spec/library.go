package spec

import (
	"debug/elf"
	"io/fs"
	"path"
	"runtime"
	"strings"
)

// libraryDirs returns the directories of drivers' libraries below a driver root.
// internal/gpu/nvml searches the same ones for libnvidia-ml.
func libraryDirs() []string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return []string{
		"/usr/lib64", "/usr/lib/" + triplet, "/usr/lib/" + triplet + "/nvidia/current", "/usr/lib",
		"/lib64", "/lib/" + triplet, "/lib/" + triplet + "/nvidia/current", "/lib",
		"/usr/local/lib64", "/usr/local/lib", "/usr/local/nvidia/lib64", "/run/opengl-driver/lib",
	}
}

// addLibraries adds all libraries whose names end in the driver's version, including those
// for VDPAU, and the links by which programs load them. The compiler for older NVVM code has a
// version of its own.
func (f *finder) addLibraries(dir string) {
	for _, d := range []string{dir, path.Join(dir, "vdpau")} {
		for _, p := range f.match(d, "*.so."+f.version) {
			f.addLibrary(p)
		}
	}
	for _, p := range f.match(dir, "libnvidia-nvvm70.so.*") {
		f.addLibrary(p)
	}
}

// addLibrary adds a library, its directory for the container's loader, and its links.
func (f *finder) addLibrary(p string) {
	f.mount(p, p, readOnly)
	dir, name := path.Split(p)
	dir = path.Clean(dir)
	if strings.HasPrefix(name, "lib") { // programs load others by their paths
		f.Folders = append(f.Folders, dir)
	}
	stem, _, _ := strings.Cut(name, ".so.")
	switch stem {
	case "libcuda": // many programs load it by this name
		f.addLink("libcuda.so.1", dir, "libcuda.so")
	case "libGLX_nvidia": // GLVND's indirect rendering
		f.addLink(name, dir, "libGLX_indirect.so.0")
	case "libnvidia-opticalflow":
		f.addLink("libnvidia-opticalflow.so.1", dir, "libnvidia-opticalflow.so")
	case "libnvidia-allocator": // GBM's back end
		f.addLink("../libnvidia-allocator.so.1", dir+"/gbm", "nvidia-drm_gbm.so")
	case "libnvidia-vulkan-producer", "libglxserver_nvidia":
		f.addLink(name, dir, stem+".so")
	}
	soname := f.soname(p)
	if soname == "" || strings.Contains(soname, "/") {
		return
	}
	if soname != name {
		f.addLink(name, dir, soname)
	}
	// The name for compilers, if the host has it.
	if plain := stem + ".so"; plain != soname && f.isLink(dir, plain) {
		f.addLink(soname, dir, plain)
	}
}

// addLink adds a link in the form of nvidia-ctk's hook create-symlinks: target::link.
func (f *finder) addLink(target, dir, name string) {
	f.Links = append(f.Links, target+"::"+path.Join(dir, name))
}

func (f *finder) isLink(dir, name string) bool {
	info, err := f.root.Lstat(path.Join(dir, name))
	return !f.failed(err) && info.Mode()&fs.ModeSymlink != 0
}

// soname returns the name by which programs load a library, "" if it has none or is not a
// library.
func (f *finder) soname(p string) string {
	file, err := f.root.OpenFile(p)
	if f.failed(err) {
		return ""
	}
	defer file.Close()
	library, err := elf.NewFile(file)
	if err != nil {
		return ""
	}
	names, err := library.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 {
		return ""
	}
	return names[0]
}
