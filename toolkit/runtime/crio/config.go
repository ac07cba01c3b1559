package crio

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// file is a configuration file that CRI-O reads.
type file struct{ tomledit.File }

// table is the path of the only table that is read here.
var table = []string{"crio", "runtime"}

func parse(name string, data []byte) (file, error) {
	f, err := tomledit.ParseFile(name, data)
	return file{f}, err
}

// key returns the full path of a key of the table.
func key(parts ...string) []string { return append(slices.Clone(table), parts...) }

func (f file) has(parts ...string) bool { return f.Has(key(parts...)...) }

// tableAt returns the table at a path, nil if there is none. It refuses any other value.
func (f file) tableAt(parts ...string) (map[string]any, error) {
	for n := range parts {
		value, ok := f.Doc.Get(parts[:n+1]...)
		if !ok {
			return nil, nil
		}
		if _, ok := value.(map[string]any); !ok {
			return nil, f.Refuse("this is no table; correct it", parts[:n+1]...)
		}
	}
	value, _ := f.Doc.Get(parts...)
	return value.(map[string]any), nil
}

// maxDepth limits the nesting of directories.
const maxDepth = 8

// readAll reads the files in the order in which they apply: the main one, then all
// below the directory of the drop-in in the order of their names, with any extension.
func readAll(files runtime.Files, p runtime.Place) ([]file, error) {
	var all []file
	if err := add(&all, files, p.Config, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if p.DropIn == "" {
		return all, nil
	}
	return all, addDir(&all, files, path.Dir(p.DropIn), 0)
}

func add(all *[]file, files runtime.Files, name string, depth int) error {
	data, err := files.ReadFile(name, runtime.MaxFile)
	if errors.Is(err, host.ErrNotRegular) && depth < maxDepth {
		return addDir(all, files, name, depth+1)
	}
	if err != nil {
		return err
	}
	f, err := parse(name, data)
	if err == nil {
		*all = append(*all, f)
	}
	return err
}

func addDir(all *[]file, files runtime.Files, dir string, depth int) error {
	names, err := files.Glob(dir, "*")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := add(all, files, name, depth); err != nil {
			return err
		}
	}
	return nil
}

// config is the configuration that CRI-O derives from the files.
type config struct {
	release release
	files   []file
	table   map[string]any // the keys of the table
	ours    map[string]any // the table with our drop-in, if table is without it
}

// merge merges files as CRI-O's UpdateFromDropInFile does: keys replace keys, and a
// list or a handler is replaced as a whole.
func merge(r release, files []file) (*config, error) {
	handlers := map[string]any{}
	c := &config{release: r, files: files, table: map[string]any{}}
	for _, f := range files {
		values, err := f.tableAt(table...)
		if err != nil {
			return nil, err
		}
		maps.Copy(c.table, values)
		runtimes, err := f.tableAt(key("runtimes")...)
		if err != nil {
			return nil, err
		}
		for name := range runtimes {
			if handlers[name], err = f.tableAt(key("runtimes", name)...); err != nil {
				return nil, err
			}
		}
	}
	c.table["runtimes"] = handlers
	return c, nil
}

func (c *config) get(parts []string) (any, bool) { return tomledit.Lookup(c.table, parts...) }

// handler returns the settings of a handler, nil if there is none.
func (c *config) handler(name string) map[string]any { return handlerIn(c.table, name) }

func handlerIn(table map[string]any, name string) map[string]any {
	value, _ := tomledit.Lookup(table, "runtimes", name)
	handler, _ := value.(map[string]any)
	return handler
}

// refuse names the last file that has the key.
func (c *config) refuse(message string, parts ...string) error {
	for _, f := range slices.Backward(c.files) {
		if f.has(parts...) {
			return f.Refuse(message, key(parts...)...)
		}
	}
	return fmt.Errorf("%s: %s", tomledit.Key(key(parts...)...), message)
}

func (c *config) text(parts ...string) (string, error) {
	value, ok := c.get(parts)
	s, isText := value.(string)
	if ok && !isText {
		return "", c.refuse("this is no string; correct it", parts...)
	}
	return s, nil
}
