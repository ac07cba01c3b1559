package cdi

import (
	"bytes"
	"path"

	"github.com/gpuready/gpuready/internal/host"
)

// LoadKinds is Load, but reads only files that can define one of the kinds; parsing
// is what takes the time. Of the files that are left out nothing is known, not even
// that they are broken.
func LoadKinds(root *host.Root, kinds []string, dirs ...string) ([]File, error) {
	if len(dirs) == 0 {
		dirs = []string{StaticDir, DynamicDir}
	}
	var files []File
	for priority, dir := range dirs {
		paths, err := root.Glob(dir, "*")
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if ext := path.Ext(p); ext != ".json" && ext != ".yaml" {
				continue
			}
			if data, err := root.ReadFile(p, maxSpec); err == nil && !mentions(data, kinds) {
				continue
			}
			files = append(files, load(root, p, priority))
		}
	}
	return files, nil
}

// mentions says whether a file can define one of the kinds: it has it in so many
// letters, or writes some of them otherwise (escaped, or in UTF-16).
func mentions(data []byte, kinds []string) bool {
	if bytes.IndexByte(data, '\\') >= 0 || bytes.IndexByte(data, 0) >= 0 {
		return true
	}
	for _, kind := range kinds {
		if bytes.Contains(data, []byte(kind)) {
			return true
		}
	}
	return false
}
