package distro

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// osRelease reads the host's os-release(5). It is empty if there is none.
func osRelease(root *host.Root) (map[string]string, error) {
	values := map[string]string{}
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		data, err := root.ReadFile(name, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			if ok && !strings.HasPrefix(key, "#") {
				values[key] = unquote(value)
			}
		}
		break
	}
	return values, nil
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}
