package cdi

import (
	"bytes"

	"github.com/gpuready/gpuready/internal/host"
)

// LoadKinds is like Load, but parses only files that can define one of the kinds, as
// parsing takes most of the time. It omits the other files, even if they are broken.
func LoadKinds(root *host.Root, kinds []string, dirs ...string) ([]File, error) {
	return load(root, func(data []byte) bool { return mentions(data, kinds) }, dirs)
}

// mentions reports whether a file can define one of the kinds: it contains the kind
// literally, or may contain it encoded (escaped, or in UTF-16).
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
