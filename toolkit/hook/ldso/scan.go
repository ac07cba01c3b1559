package ldso

import (
	"path"
	"runtime"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// Bounds on how much of an image is looked at where it has no cache.
const (
	maxFiles = 20_000 // libraries opened
	maxConf  = 64 << 10
	maxConfs = 64 // files of configuration
	maxDirs  = 64
)

// scan makes the cache that ldconfig would make for an image that has none.
func scan(root *host.Root) Cache {
	triplet := "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		triplet = "aarch64-linux-gnu"
	}
	dirs := confDirs(root)
	dirs = append(dirs, "/lib/"+triplet, "/usr/lib/"+triplet, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	var cache Cache
	seenDir, seen, opened := map[string]bool{}, map[string]bool{}, 0
	for _, dir := range dirs {
		real, err := root.Resolve(dir)
		if err != nil || seenDir[real] {
			continue
		}
		seenDir[real] = true
		scanDir(root, dir, &opened, func(e Entry) {
			if !seen[e.Name] { // as the loader: the first directory wins
				seen[e.Name] = true
				cache.Entries = append(cache.Entries, e)
			}
		})
	}
	return cache
}

// scanDir calls add for every name of every library in dir.
func scanDir(root *host.Root, dir string, opened *int, add func(Entry)) {
	entries, err := root.ReadDir(dir)
	if err != nil {
		return
	}
	flags, _ := kind()
	for _, e := range entries {
		if e.IsDir() || !isLibrary(e.Name()) {
			continue
		}
		if *opened++; *opened > maxFiles {
			return
		}
		file := path.Join(dir, e.Name())
		if e.Type().IsRegular() {
			for _, n := range names(root, file) {
				add(n)
			}
			continue
		}
		// A link by another name than the soname, as developers' packages have.
		if _, err := readSoname(root, file); err == nil {
			add(Entry{Name: e.Name(), Path: file, Flags: flags})
		}
	}
}

// confDirs are the directories that the image's ld.so.conf names.
func confDirs(root *host.Root) []string {
	var dirs []string
	todo, files := []string{confPath}, 0
	for ; len(todo) > 0 && files < maxConfs && len(dirs) < maxDirs; files++ {
		data, err := root.ReadFile(todo[0], maxConf)
		todo = todo[1:]
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			line, _, _ = strings.Cut(line, "#")
			fields := strings.Fields(line)
			switch {
			case len(fields) == 2 && fields[0] == "include":
				pattern := fields[1]
				if !path.IsAbs(pattern) {
					pattern = path.Join("/etc", pattern)
				}
				found, _ := root.Glob(path.Dir(pattern), path.Base(pattern))
				todo = append(todo, found...)
			case len(fields) == 1 && path.IsAbs(fields[0]):
				dirs = append(dirs, path.Clean(fields[0]))
			}
		}
	}
	return dirs
}
