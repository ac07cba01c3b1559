// Package ldso adds libraries that were mounted into a container to the cache of the
// container's dynamic loader. It reads and writes glibc's /etc/ld.so.cache itself, without
// running any program of the container.
package ldso

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

const (
	cachePath  = "/etc/ld.so.cache"
	confPath   = "/etc/ld.so.conf"
	confDir    = "/etc/ld.so.conf.d"
	dropInPath = confDir + "/00-gpuready.conf"

	// CompatConf names, in the container, the directory of libraries that take precedence
	// over the driver's. NVIDIA's hook uses the prefix "00-compat-" as well, so that its
	// update-ldcache follows it too. The file sorts before our own.
	CompatConf = confDir + "/00-compat-gpuready.conf"

	maxCache = 8 << 20 // a full desktop's has 300 KiB
)

// Limits on the work for an image; see budget.
const (
	maxFiles = 20_000          // libraries opened
	maxTime  = 2 * time.Second // 5,000 libraries take 40 ms
	maxNamed = 10              // libraries named in a message
)

// budget is the remaining budget for reading files of the image. Files beyond it are not in
// the cache: the loader then searches its own directories for them, as before.
type budget struct {
	files int
	until time.Time
}

func (b *budget) spent() bool { return b.files <= 0 || !time.Now().Before(b.until) }

// Update makes the libraries in folders loadable by name in the container whose file system
// is root. mounts are the destinations of the container's mounts: those in folders are the
// libraries; a directory without mounts is scanned. Libraries of the directory in CompatConf
// take precedence.
//
// An image without glibc's loader gets no cache; for musl's, see updateMusl. If the cache
// cannot be written, as on a read-only file system, this is an error only if the loader
// would not find one of the libraries without it. Otherwise it is the returned warning.
func Update(root *rootfs.Root, folders, mounts []string) (warning string, err error) {
	left := &budget{files: maxFiles, until: time.Now().Add(maxTime)}
	folders = clean(folders)
	if warning = updateMusl(root, folders); !hasLoader(root) {
		return warning, nil
	}
	ours := append(compat(root, left), injected(root, folders, mounts, left)...)
	if len(ours) == 0 {
		return warning, nil
	}
	cache, old, err := current(root, left)
	if err != nil {
		warning = join(warning, fmt.Sprintf("the image's %s is rebuilt: %v", cachePath, err))
	}
	if left.spent() {
		warning = join(warning, fmt.Sprintf("the image has more libraries than %d, or they take longer to read than %v: the loader has to search for the rest", maxFiles, maxTime))
	}
	cache.Add(ours...)
	if data := cache.Bytes(); string(data) != string(old) {
		if err = root.MkdirAll(path.Dir(cachePath), 0o755); err == nil {
			err = root.Replace(cachePath, data, 0o644)
		}
		if err != nil {
			if lost := unreachable(root, ours); len(lost) > 0 {
				more := ""
				if n := len(lost) - maxNamed; n > 0 {
					lost, more = lost[:maxNamed], fmt.Sprintf(" and %d more", n)
				}
				return warning, fmt.Errorf("libraries would not be found by the container's loader (%s%s): %w; make the image's /etc writable while the container is created, or put %s into the image's %s",
					strings.Join(lost, ", "), more, err, strings.Join(folders, ", "), cachePath)
			}
			return join(warning, fmt.Sprintf("the loader finds the libraries as it is, but its cache cannot be written: %v", err)), nil
		}
	}
	configure(root, folders)
	return warning, nil
}

// current returns the image's cache and its bytes. If its own cache cannot be used, it builds
// one from the image's libraries, and returns the reason as an error.
func current(root *rootfs.Root, left *budget) (library.Cache, []byte, error) {
	old, err := root.ReadOwnFile(cachePath, maxCache)
	if err == nil {
		var cache library.Cache
		if cache, err = library.ParseCache(old); err == nil {
			return cache, old, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return scan(root, left), old, err
}

// compat returns the entries for the libraries of the directory in CompatConf.
func compat(root *rootfs.Root, left *budget) []library.Entry {
	data, err := root.ReadOwnFile(CompatConf, maxConf)
	dir := strings.TrimSuffix(string(data), "\n")
	if err != nil || !path.IsAbs(dir) || strings.ContainsAny(dir, "\n\x00") {
		return nil
	}
	var entries []library.Entry
	scanDir(root, path.Clean(dir), true, left, func(e library.Entry) { entries = append(entries, e) })
	return entries
}

// clean returns the directories as absolute paths, without those that a configuration file
// cannot name.
func clean(folders []string) []string {
	var list []string
	for _, f := range folders {
		if f = path.Clean("/" + f); !strings.ContainsAny(f, "\n\x00:") {
			list = append(list, f)
		}
	}
	return list
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func hasLoader(root *rootfs.Root) bool {
	loader := "/lib64/ld-linux-x86-64.so.2"
	if runtime.GOARCH == "arm64" {
		loader = "/lib/ld-linux-aarch64.so.1"
	}
	info, err := root.Stat(loader)
	return err == nil && info.Mode().IsRegular()
}

// injected returns the entries for the libraries that were mounted into the directories.
func injected(root *rootfs.Root, folders, mounts []string, left *budget) []library.Entry {
	var entries []library.Entry
	for _, name := range folders {
		f, err := openFolder(root, name, false)
		if err != nil {
			continue
		}
		found := false
		for _, m := range mounts {
			if path.Dir(m) == name && isLibrary(path.Base(m)) && !left.spent() {
				found = true
				left.files--
				entries = append(entries, f.names(path.Base(m))...)
			}
		}
		f.close()
		if !found {
			scanDir(root, name, false, left, func(e library.Entry) { entries = append(entries, e) })
		}
	}
	return entries
}

// isLibrary matches lib*.so and lib*.so.*, and the loader's own ld-*.so.*.
func isLibrary(name string) bool {
	if !strings.HasPrefix(name, "lib") && !strings.HasPrefix(name, "ld-") {
		return false
	}
	_, rest, ok := strings.Cut(name, ".so")
	return ok && (rest == "" || rest[0] == '.')
}

// unreachable returns the libraries that the loader finds neither in the current cache, on
// any mount, nor in a directory that it always searches.
func unreachable(root *rootfs.Root, ours []library.Entry) []string {
	var now library.Cache
	if data, err := root.ReadFile(cachePath, maxCache); err == nil {
		now, _ = library.ParseCache(data)
	}
	var lost []string
	for _, e := range ours {
		known := slices.ContainsFunc(now.Entries, func(b library.Entry) bool {
			return b.Name == e.Name && b.Flags == e.Flags && path.Dir(b.Path) == path.Dir(e.Path)
		})
		if !known && (path.Base(e.Path) != e.Name || !searched(root, path.Dir(e.Path))) {
			lost = append(lost, e.Name)
		}
	}
	return lost
}

// searched reports whether the loader searches a directory by default: glibc's own ones, and
// that of the image's C library.
func searched(root *rootfs.Root, dir string) bool {
	if _, err := root.Stat(path.Join(dir, "libc.so.6")); err == nil {
		return true
	}
	return slices.Contains([]string{"/lib64", "/usr/lib64"}, dir)
}

// configure writes the configuration for a later ldconfig in the container, which would
// otherwise drop the libraries. It is not needed now, so errors are ignored.
func configure(root *rootfs.Root, folders []string) {
	if err := root.MkdirAll(confDir, 0o755); err != nil {
		return
	}
	_ = root.Replace(dropInPath, []byte(strings.Join(folders, "\n")+"\n"), 0o644)
	if _, err := root.Lstat(confPath); errors.Is(err, fs.ErrNotExist) {
		_ = root.Replace(confPath, []byte("include "+confDir+"/*.conf\n"), 0o644)
	}
}
