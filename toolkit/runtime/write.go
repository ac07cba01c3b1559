package runtime

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuready/gpuready/toolkit/apply"
)

// MaxFile limits the size of a configuration file, in bytes. Real ones have a few
// kilobytes, or a few hundred for k3s with many registries.
const MaxFile = 4 << 20

// Write returns the item that writes data to a file of the host. If files can stat
// and resolve names, as a *host.Root can, an existing file keeps its mode, and the
// item names the target of a symbolic link. A new file is 0644.
func Write(files Files, name string, data []byte) (apply.Item, error) {
	item := apply.Item{Path: name, File: &apply.File{Data: data, Mode: 0o644}}
	if links, ok := files.(interface{ Resolve(string) (string, error) }); ok {
		real, err := links.Resolve(name)
		if err != nil {
			return item, fmt.Errorf("find what %s leads to: %w", name, err)
		}
		item.Path = real
	}
	if modes, ok := files.(interface {
		Stat(string) (fs.FileInfo, error)
	}); ok {
		info, err := modes.Stat(item.Path)
		switch {
		case err == nil:
			item.File.Mode = info.Mode().Perm()
		case !errors.Is(err, fs.ErrNotExist):
			return item, err
		}
	}
	return item, nil
}
