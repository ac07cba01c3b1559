package engine

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpuready/gpuready/toolkit/change"
)

// MaxFile is how much of a configuration file is read, in bytes. Real ones have
// some kilobytes; k3s with many registries, some hundred.
const MaxFile = 4 << 20

// Write is the item that puts data into a file of the host. Where files can tell
// (a *host.Root can), an existing file keeps its mode, and a symbolic link stays
// one: the item then names the file that it leads to. A new file is 0644.
func Write(files Files, name string, data []byte) (change.Item, error) {
	item := change.Item{Path: name, File: &change.File{Data: data, Mode: 0o644}}
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
