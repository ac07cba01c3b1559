package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/library"
)

// addLibraries adds all libraries of the driver, wherever they are, and the links by which programs
// load them. It returns the folder of libcuda.
func (f *finder) addLibraries(driverRoot string) (cuda string, err error) {
	found := library.New(f.root)
	f.folders = slices.Collect(found.Folders())
	var unread []error
	if err := found.Err(); err != nil {
		unread = append(unread, err)
	}
	hasML := false
	for _, folder := range f.folders {
		if f.lists[folder.Path], err = library.Names(f.root, folder.Path); err != nil && !absent(err) {
			unread = append(unread, fmt.Errorf("the libraries there are left out: %w", err))
		}
		added := f.addFolder(folder)
		for _, p := range added {
			switch stem, _, _ := strings.Cut(path.Base(p), ".so."); {
			case stem == "libcuda" && cuda == "":
				cuda = path.Dir(p)
			case stem == "libnvidia-ml":
				hasML = true
			}
		}
		for _, p := range added {
			if dir := path.Dir(p); !slices.Contains(f.libraries, dir) && !isXModule(path.Base(p)) {
				f.libraries = append(f.libraries, dir)
			}
		}
	}
	for _, err := range unread {
		f.Warnings = append(f.Warnings, err.Error())
	}
	return cuda, f.checkLibraries(driverRoot, cuda != "", hasML, errors.Join(unread...))
}

// checkLibraries returns an error if libcuda was not found, or if there is a libnvidia-ml that must not be mounted.
func (f *finder) checkLibraries(driverRoot string, hasCUDA, hasML bool, unread error) error {
	for name, err := range f.refused {
		stem, _, _ := strings.Cut(name, ".so.")
		if stem == "libcuda" && !hasCUDA || stem == "libnvidia-ml" && !hasML {
			return fmt.Errorf("driver root %s: %w", driverRoot, err)
		}
	}
	switch {
	case hasCUDA:
		return nil
	case hasML:
		return fmt.Errorf("%w: no libcuda.so.%s below %s, only libnvidia-ml; install the driver's compute libraries there (libcuda1, nvidia-driver-cuda-libs, or the installer without --no-…-libs)", ErrNoCUDA, f.version, driverRoot)
	}
	var searched []string
	for _, folder := range f.folders {
		searched = append(searched, folder.Path)
	}
	return fmt.Errorf("driver root %s: no libcuda.so.%s and no libnvidia-ml.so.%[2]s in %s: %w", driverRoot, f.version, strings.Join(searched, ", "), errors.Join(append(f.errs, unread, errGone)...))
}

// addFolder adds the driver's libraries in a folder, including those for VDPAU, and returns them. The
// names of most end in the driver's version. The compiler for older NVVM code has a version of its own.
func (f *finder) addFolder(folder library.Folder) (added []string) {
	add := func(files []string) {
		for _, p := range files {
			if f.addLibrary(p) {
				added = append(added, p)
			}
		}
	}
	add(f.match(folder.Path, "*.so."+f.version))
	if folder.Whole {
		add(slices.DeleteFunc(f.match(folder.Path, "lib*.so*"), func(p string) bool {
			version := library.Version(p)
			return version != "" && version != f.version
		}))
	}
	if len(added) > 0 {
		f.addAll(f.match(folder.Path, "libnvidia-nvvm70.so.*"))
	}
	f.addAll(f.match(path.Join(folder.Path, "vdpau"), "*.so."+f.version))
	return added
}

// isXModule reports whether a library is a module of the X server, which programs do not load.
func isXModule(name string) bool { return strings.HasPrefix(name, "libglxserver_nvidia.so.") }

// isUsed reports whether a library in a folder was added.
func (f *finder) isUsed(folder string) bool {
	for _, p := range f.taken {
		if path.Dir(p) == folder {
			return true
		}
	}
	return false
}

func (f *finder) addAll(files []string) {
	for _, p := range files {
		f.addLibrary(p)
	}
}

// addLibrary adds a library, its directory for the container's loader, and its links. It reports whether it is
// there: it leaves out a library that programs of this machine cannot load, and one whose name it has
// from a folder that comes first.
func (f *finder) addLibrary(p string) bool {
	dir, name := path.Split(p)
	dir = path.Clean(dir)
	if first, taken := f.taken[name]; taken {
		return first == p
	}
	soname, native := f.soname(p)
	if !native {
		return false
	}
	f.taken[name] = p
	f.mount(p, p, readOnly)
	if strings.HasPrefix(name, "lib") && !isXModule(name) { // programs load others by their paths
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
	if soname == "" {
		return true
	}
	if soname != name {
		f.addLink(name, dir, soname)
	}
	// The name for compilers, if the host has it.
	if plain := stem + ".so"; plain != soname && f.isLink(dir, plain) {
		f.addLink(soname, dir, plain)
	}
	return true
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
// library. native is false for a library of another kind of machine, such as a 32-bit one.
func (f *finder) soname(p string) (name string, native bool) {
	file, err := f.root.OpenFile(p)
	if f.failed(err) {
		return "", !absent(err)
	}
	defer file.Close()
	if library.IsForeign(file) {
		return "", false
	}
	name, err = library.Soname(file)
	if err != nil {
		return "", true
	}
	return name, true
}
