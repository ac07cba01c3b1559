package ldso

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

const (
	cachePath  = "/etc/ld.so.cache"
	confPath   = "/etc/ld.so.conf"
	confDir    = "/etc/ld.so.conf.d"
	dropInPath = confDir + "/00-gpuready.conf"

	maxCache = 8 << 20 // a full desktop's has 300 KiB
)

// Update makes the libraries in folders loadable by name in the container whose
// file system is root. mounts are the destinations of the container's mounts:
// those in folders are the libraries; a folder in which nothing is mounted is
// scanned.
//
// An image without glibc's loader is left alone. If the cache cannot be written
// (a read-only file system) that is an error only if the loader would not find
// one of the libraries without it; otherwise it is the returned warning.
func Update(root *host.Root, folders, mounts []string) (warning string, err error) {
	if !hasLoader(root) {
		return "", nil
	}
	ours := injected(root, folders, mounts)
	if len(ours) == 0 {
		return "", nil
	}
	var cache Cache
	old, err := root.ReadFile(cachePath, maxCache)
	if err == nil {
		cache, err = Parse(old)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			warning = fmt.Sprintf("the image's %s is made anew: %v", cachePath, err)
		}
		cache = scan(root)
	}
	before := slices.Clone(cache.Entries)
	cache.Add(ours...)
	if data := cache.Bytes(); string(data) != string(old) {
		if _, err = root.MkdirAll(path.Dir(cachePath), 0o755); err == nil {
			err = root.Replace(cachePath, data, 0o644)
		}
		if err != nil {
			if lost := unreachable(root, before, ours); len(lost) > 0 {
				return warning, fmt.Errorf("libraries would not be found by the container's loader (%s): %w; make the image's /etc writable while the container is created, or put %s into the image's %s",
					strings.Join(lost, ", "), err, strings.Join(folders, ", "), cachePath)
			}
			return fmt.Sprintf("the loader finds the libraries as it is, but its cache cannot be written: %v", err), nil
		}
	}
	configure(root, folders)
	return warning, nil
}

func hasLoader(root *host.Root) bool {
	loader := "/lib64/ld-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		loader = "/lib/ld-linux-aarch64.so.1"
	}
	info, err := root.Stat(loader)
	return err == nil && info.Mode().IsRegular()
}

// injected returns the entries for the libraries that were mounted into the folders.
func injected(root *host.Root, folders, mounts []string) []Entry {
	var entries []Entry
	for _, folder := range folders {
		folder = path.Clean("/" + folder)
		found := false
		for _, m := range mounts {
			if path.Dir(m) == folder && isLibrary(path.Base(m)) {
				found = true
				entries = append(entries, names(root, m)...)
			}
		}
		if !found {
			scanDir(root, folder, new(int), func(e Entry) { entries = append(entries, e) })
		}
	}
	return entries
}

// names returns an entry for each name of a library: its soname, and the
// plain ".so" where the driver or a hook made one.
func names(root *host.Root, file string) []Entry {
	name, err := readSoname(root, file)
	if err != nil {
		return nil
	}
	dir, base := path.Split(file)
	if name == "" {
		name = base
	}
	flags, _ := kind()
	real, err := root.Resolve(file)
	if err != nil {
		return nil
	}
	entry := func(name string) (Entry, bool) {
		e := Entry{Name: name, Path: path.Join(dir, name), Flags: flags}
		leads, err := root.Resolve(e.Path)
		return e, err == nil && leads == real
	}
	e, linked := entry(name)
	if !linked { // the file itself does as well, and cannot lead elsewhere
		e.Path = file
	}
	entries := []Entry{e}
	if stem, _, ok := strings.Cut(base, ".so"); ok && stem+".so" != name {
		if e, linked := entry(stem + ".so"); linked {
			entries = append(entries, e)
		}
	}
	return entries
}

func readSoname(root *host.Root, file string) (string, error) {
	f, err := root.OpenFile(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return soname(f)
}

// isLibrary matches lib*.so and lib*.so.*, and the loader's own ld-*.so.*.
func isLibrary(name string) bool {
	if !strings.HasPrefix(name, "lib") && !strings.HasPrefix(name, "ld-") {
		return false
	}
	_, rest, ok := strings.Cut(name, ".so")
	return ok && (rest == "" || rest[0] == '.')
}

// unreachable names the libraries that the loader finds neither in the image's
// cache nor in a directory that it searches anyway.
func unreachable(root *host.Root, before, ours []Entry) []string {
	var lost []string
	for _, e := range ours {
		known := slices.ContainsFunc(before, func(b Entry) bool {
			return b.Name == e.Name && b.Flags == e.Flags && path.Dir(b.Path) == path.Dir(e.Path)
		})
		if !known && (path.Base(e.Path) != e.Name || !searched(root, path.Dir(e.Path))) {
			lost = append(lost, e.Name)
		}
	}
	return lost
}

// searched says whether the loader looks into a directory without being told to:
// glibc's own, and where the image has its C library.
func searched(root *host.Root, dir string) bool {
	if _, err := root.Stat(path.Join(dir, "libc.so.6")); err == nil {
		return true
	}
	return slices.Contains([]string{"/lib64", "/usr/lib64"}, dir)
}

// configure leaves a note for an ldconfig that is run in the container later.
// Without it the libraries would be lost then; but nothing hangs on it now, so
// it may fail.
func configure(root *host.Root, folders []string) {
	if _, err := root.MkdirAll(confDir, 0o755); err != nil {
		return
	}
	var lines strings.Builder
	for _, f := range folders {
		if f = path.Clean("/" + f); !strings.ContainsAny(f, "\n\x00") {
			lines.WriteString(f + "\n")
		}
	}
	_ = root.Replace(dropInPath, []byte(lines.String()), 0o644)
	if _, err := root.Lstat(confPath); errors.Is(err, fs.ErrNotExist) {
		_ = root.Replace(confPath, []byte("include "+confDir+"/*.conf\n"), 0o644)
	}
}
