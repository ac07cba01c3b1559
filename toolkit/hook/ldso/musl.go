package ldso

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// updateMusl adds the directories to those that musl's loader searches, since it has no
// cache. The loader reads them from /etc/ld-musl-ARCH.path, or uses the default below
// (ldso/dynlink.c). Ours come last, so that libraries for glibc do not replace the image's
// own. The driver's libraries need glibc, and only load in an image with a layer like
// gcompat. So a failure is only a warning.
func updateMusl(root *rootfs.Root, folders []string) (warning string) {
	const usual = "/lib:/usr/local/lib:/usr/lib"
	arch := "x86_64"
	if runtime.GOARCH == "arm64" {
		arch = "aarch64"
	}
	if _, err := root.Stat("/lib/ld-musl-" + arch + ".so.1"); err != nil {
		return ""
	}
	file := "/etc/ld-musl-" + arch + ".path"
	data, err := root.ReadOwnFile(file, maxConf)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte(usual), nil
	}
	if err != nil {
		return fmt.Sprintf("musl's loader will not search %s: %v", strings.Join(folders, ", "), err)
	}
	text := strings.TrimRight(string(data), "\n")
	known := strings.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '\n' })
	for _, f := range folders {
		if !slices.Contains(known, f) {
			known = append(known, f)
			text += "\n" + f
		}
	}
	if text = strings.TrimLeft(text, "\n") + "\n"; text == string(data) || text == string(data)+"\n" {
		return ""
	}
	if err = root.MkdirAll("/etc", 0o755); err == nil {
		err = root.Replace(file, []byte(text), 0o644)
	}
	if err != nil {
		return fmt.Sprintf("musl's loader will not search %s: %v", strings.Join(folders, ", "), err)
	}
	return ""
}
