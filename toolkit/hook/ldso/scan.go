package ldso

import (
	"path"
	"runtime"
	"strings"

	"github.com/gpuready/gpuready/internal/library"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// Limits on scanning an image that has no cache.
const (
	maxNames = 4 * maxFiles // in a directory; most are not libraries
	maxConf  = 64 << 10
	maxConfs = 64 // files of configuration
	maxDirs  = 64
)

// scan builds the cache that ldconfig would make for an image that has none.
func scan(root *rootfs.Root, left *budget) library.Cache {
	triplet := "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		triplet = "aarch64-linux-gnu"
	}
	dirs := confDirs(root, left)
	dirs = append(dirs, "/lib/"+triplet, "/usr/lib/"+triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	var cache library.Cache
	seenDir, seen := map[string]bool{}, map[string]bool{}
	for _, dir := range dirs {
		real, err := root.Resolve(dir)
		if err != nil || seenDir[real] {
			continue
		}
		seenDir[real] = true
		scanDir(root, dir, true, left, func(e library.Entry) {
			if !seen[e.Name] { // the first directory wins, as in the loader
				seen[e.Name] = true
				cache.Entries = append(cache.Entries, e)
			}
		})
	}
	return cache
}

// scanDir calls add for every name of every library in dir; own as in openFolder.
func scanDir(root *rootfs.Root, dir string, own bool, left *budget, add func(library.Entry)) {
	f, err := openFolder(root, dir, own)
	if err != nil {
		return
	}
	defer f.close()
	if f.entries, err = root.ReadDirAtMost(f.at, maxNames); err != nil {
		return
	}
	flags := library.Flags()
	for _, e := range f.entries {
		if e.IsDir() || !isLibrary(e.Name()) {
			continue
		}
		if left.spent() {
			return
		}
		left.files--
		if e.Type().IsRegular() {
			for _, n := range f.names(e.Name()) {
				add(n)
			}
			continue
		}
		// A link by another name than the soname, as developers' packages have.
		if _, _, err := f.soname(e.Name()); err == nil {
			add(library.Entry{Name: e.Name(), Path: path.Join(dir, e.Name()), Flags: flags})
		}
	}
}

// confDirs returns the directories that the image's ld.so.conf names.
func confDirs(root *rootfs.Root, left *budget) []string {
	var dirs []string
	todo, files := []string{confPath}, 0
	for ; len(todo) > 0 && files < maxConfs; files++ {
		data, err := root.ReadOwnFile(todo[0], maxConf)
		todo = todo[1:]
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			line, _, _ = strings.Cut(line, "#")
			fields := strings.Fields(line)
			switch {
			case len(dirs) >= maxDirs || left.spent():
				return dirs
			case len(fields) == 2 && fields[0] == "include" && len(todo) < maxConfs:
				todo = append(todo, included(root, fields[1])...)
			case len(fields) == 1 && path.IsAbs(fields[0]):
				dirs = append(dirs, path.Clean(fields[0]))
			}
		}
	}
	return dirs
}

// included returns the files that match a pattern of ld.so.conf, sorted.
func included(root *rootfs.Root, pattern string) []string {
	if !path.IsAbs(pattern) {
		pattern = path.Join("/etc", pattern)
	}
	dir, base := path.Dir(pattern), path.Base(pattern)
	dir, err := root.ResolveOwn(dir)
	if err != nil {
		return nil
	}
	entries, _ := root.ReadDirAtMost(dir, maxNames)
	var files []string
	for _, e := range entries {
		if ok, _ := path.Match(base, e.Name()); ok && len(files) < maxConfs {
			files = append(files, path.Join(dir, e.Name()))
		}
	}
	return files
}
