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

// libraries adds all libraries whose names end in the driver's version, including those
// for VDPAU, and the links by which programs load them.
func (f *finder) libraries(dir string) {
	for _, d := range []string{dir, path.Join(dir, "vdpau")} {
		for _, p := range f.match(d, "*.so."+f.version) {
			f.library(p)
		}
	}
}

// library adds a library, its directory for the container's loader, and its links.
func (f *finder) library(p string) {
	f.mount(p, p, readOnly)
	dir, name := path.Split(p)
	dir = path.Clean(dir)
	if strings.HasPrefix(name, "lib") {
		f.Folders = append(f.Folders, dir)
	}
	stem, _, _ := strings.Cut(name, ".so.")
	switch stem {
	case "libcuda": // many programs load it by this name
		f.link("libcuda.so.1", dir, "libcuda.so")
	case "libGLX_nvidia": // GLVND's indirect rendering
		f.link(name, dir, "libGLX_indirect.so.0")
	case "libnvidia-opticalflow":
		f.link("libnvidia-opticalflow.so.1", dir, "libnvidia-opticalflow.so")
	case "libnvidia-allocator": // GBM's back end
		f.link("../libnvidia-allocator.so.1", dir+"/gbm", "nvidia-drm_gbm.so")
	case "libnvidia-vulkan-producer", "libglxserver_nvidia":
		f.link(name, dir, stem+".so")
	}
	soname := f.soname(p)
	if soname == "" || strings.Contains(soname, "/") {
		return
	}
	if soname != name {
		f.link(name, dir, soname)
	}
	// The name for compilers, if the host has it.
	if plain := stem + ".so"; plain != soname && f.isLink(dir, plain) {
		f.link(soname, dir, plain)
	}
}

func (f *finder) link(target, dir, name string) {
	f.Links = append(f.Links, target+"::"+path.Join(dir, name))
}

func (f *finder) isLink(dir, name string) bool {
	info, err := f.root.Lstat(path.Join(dir, name))
	return !f.collect(err) && info.Mode()&fs.ModeSymlink != 0
}

// soname returns the name by which programs load a library, "" if it has none or is not a
// library.
func (f *finder) soname(p string) string {
	file, err := f.root.OpenFile(p)
	if f.collect(err) {
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
