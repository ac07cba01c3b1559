package cdi

import (
	"bytes"

	"github.com/gpuready/gpuready/internal/host"
)

// LoadKinds is Load, but parses only files that can define one of the kinds; parsing
// is what takes the time. Of the files that are left out nothing is known, not even
// that they are broken.
func LoadKinds(root *host.Root, kinds []string, dirs ...string) ([]File, error) {
	return load(root, func(data []byte) bool { return mentions(data, kinds) }, dirs)
}

// mentions reports whether a file can define one of the kinds: it has it in so many
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
