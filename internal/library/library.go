// Package library finds the libraries of NVIDIA's driver below a driver root: in the folders of all
// known distributions and installers, and in those of the loader's cache. A driver can lie in
// several of them at once, and several drivers in one.
//
// A driver root may be somebody else's work. Its links are followed inside of it only, and what is
// read of it is bounded.
package library

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/gpuready/gpuready/internal/host"
)

// CachePath is the path of the loader's cache.
const CachePath = "/etc/ld.so.cache"

// Limits on what is read of a driver root.
const (
	maxCache    = 8 << 20 // a full desktop's cache has 300 KiB
	maxFolders  = 64      // that match a pattern, or that a cache names
	maxNames    = 1 << 17 // in a folder; a full desktop's has 5,000
	maxVersion  = 4 << 10 // of the module's account of itself
	versionFile = "/proc/driver/nvidia/version"
)

// Folder is a folder that may hold the driver's libraries.
type Folder struct {
	Path  string // real, below the driver root
	Whole bool   // there are only the driver's libraries, also such whose names do not end in its version
}

// Finder finds libraries below one driver root. It is for one goroutine.
type Finder struct {
	root  *host.Root
	first []string
	err   error
}

// New returns a Finder for a driver root, which searches further folders before those of the layouts.
func New(root *host.Root, first ...string) *Finder { return &Finder{root: root, first: first} }

// Err returns what was wrong with the loader's cache when it was read, nil if nothing was.
func (f *Finder) Err() error { return f.err }

// Folders returns the existing folders, each once, in the order of preference. It reads the loader's cache only after
// the folders of the layouts.
func (f *Finder) Folders() iter.Seq[Folder] {
	return func(yield func(Folder) bool) {
		seen := map[string]bool{}
		visit := func(folder string, whole bool) bool {
			real, err := f.root.Resolve(folder)
			if err != nil || seen[real] {
				return true
			}
			seen[real] = true
			if info, err := f.root.Lstat(real); err != nil || !info.IsDir() {
				return true
			}
			return yield(Folder{Path: real, Whole: whole})
		}
		for _, folder := range f.first {
			if !visit(folder, false) {
				return
			}
		}
		for _, l := range layouts {
			for _, pattern := range l.folders {
				for _, folder := range expand(f.root, expandTriplet(pattern)) {
					if !visit(folder, l.whole) {
						return
					}
				}
			}
		}
		for _, folder := range f.cached() {
			if !visit(folder, false) {
				return
			}
		}
	}
}

// cached returns the folders of the driver's libraries in the loader's cache.
func (f *Finder) cached() []string {
	data, err := f.root.ReadFile(CachePath, maxCache)
	if isAbsent(err) {
		return nil
	}
	var cache Cache
	if err == nil {
		cache, err = ParseCache(data)
	}
	if err != nil {
		f.err = fmt.Errorf("the loader's cache %s is not used: %w", f.root.Path(CachePath), err)
		return nil
	}
	var folders []string
	for _, e := range cache.Entries {
		if e.Flags != Flags() || !isDriver(e.Name) || !path.IsAbs(e.Path) {
			continue
		}
		folder := path.Dir(path.Clean(e.Path))
		if slices.Contains(folders, folder) {
			continue
		}
		if len(folders) == maxFolders {
			f.err = fmt.Errorf("the loader's cache %s names more than %d folders of the driver's libraries; the others are not searched",
				f.root.Path(CachePath), maxFolders)
			break
		}
		folders = append(folders, folder)
	}
	return folders
}

// isDriver reports whether a library's name is one that only the driver has.
func isDriver(name string) bool {
	return strings.HasPrefix(name, "libcuda.so.") || strings.HasPrefix(name, "libnvidia-") || strings.Contains(name, "_nvidia.so.")
}

// isAbsent reports whether an error means that a path does not exist.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// Find returns the real path of the library that programs load by a name such as libcuda.so.1. Of several it
// prefers the one of the given version of the driver, and else takes the first. Files that programs of this machine
// cannot load do not count.
func (f *Finder) Find(name, version string) (real string, found bool) {
	for folder := range f.Folders() {
		p, err := f.root.Resolve(path.Join(folder.Path, name))
		if err != nil || !f.isLoadable(p) {
			continue
		}
		if version == "" || Version(p) == version {
			return p, true
		}
		if !found {
			real, found = p, true
		}
	}
	return real, found
}

// Holding returns the folders that hold libraries of a version of the driver, in the order of preference.
func (f *Finder) Holding(version string) []string {
	var holding []string
	for folder := range f.Folders() {
		names, err := Names(f.root, folder.Path)
		if err == nil && slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "lib") && Version(name) == version }) {
			holding = append(holding, folder.Path)
		}
	}
	return holding
}

func (f *Finder) isLoadable(p string) bool {
	file, err := f.root.OpenFile(p)
	if err != nil {
		return false
	}
	defer file.Close()
	return IsLoadable(file)
}

// Names lists a folder of a driver root. Its error wraps host.ErrTooLarge for one that has more names than any driver root.
func Names(root *host.Root, folder string) ([]string, error) {
	return root.NamesAtMost(folder, maxNames)
}

// Version returns the driver's version in the name of a library, such as libcuda.so.580.95.05; "" if there is none.
func Version(file string) string {
	_, version, _ := strings.Cut(path.Base(file), ".so.")
	if !isVersion(version) {
		return ""
	}
	return version
}

// isVersion reports whether a text has the form of a driver's version: two to four digits, and one to three more
// numbers of up to four.
func isVersion(text string) bool {
	parts := strings.Split(text, ".")
	if len(parts) < 2 || len(parts) > 4 || len(parts[0]) < 2 {
		return false
	}
	return !slices.ContainsFunc(parts, func(part string) bool {
		return part == "" || len(part) > 4 || strings.Trim(part, "0123456789") != ""
	})
}

// ModuleVersion returns the version of the loaded kernel module that its file /proc/driver/nvidia/version tells in its
// first line, "" if it tells none. The line is
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep …" or
// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release …".
func ModuleVersion(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(line, "NVRM version:") {
		return ""
	}
	for word := range strings.FieldsSeq(line) {
		if isVersion(word) {
			return word
		}
	}
	return ""
}

// LoadedVersion returns the version of the loaded kernel module, "" if none is. A simulated driver has its own account
// of it below its root; the kernel's is the same in every container.
func LoadedVersion(roots ...*host.Root) string {
	for _, root := range roots {
		if data, err := root.ReadFile(versionFile, maxVersion); err == nil {
			return ModuleVersion(string(data))
		}
	}
	return ""
}
