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
type file struct {
	path string
	doc  *tomledit.Doc
}

// table is the path of the only table that is read here.
var table = []string{"crio", "runtime"}

func parse(name string, data []byte) (file, error) {
	doc, err := tomledit.Parse(data)
	if at, ok := errors.AsType[*tomledit.Error](err); ok {
		return file{}, &runtime.Refusal{File: name, Line: at.Line, Column: at.Column, Message: at.Message + "; it is left as it is; correct it"}
	}
	return file{path: name, doc: doc}, err
}

// key returns the full path of a key of the table.
func key(parts ...string) []string { return append(slices.Clone(table), parts...) }

func (f file) has(parts ...string) bool {
	_, ok := f.doc.Get(key(parts...)...)
	return ok
}

func (f file) refuse(message string, parts ...string) error {
	line, column := f.doc.Position(parts...)
	return &runtime.Refusal{File: f.path, Line: line, Column: column, Key: tomledit.Key(parts...), Message: message}
}

// tableAt returns the table at a path, nil if there is none. It refuses any other value.
func (f file) tableAt(parts ...string) (map[string]any, error) {
	for n := range parts {
		value, ok := f.doc.Get(parts[:n+1]...)
		if !ok {
			return nil, nil
		}
		if _, ok := value.(map[string]any); !ok {
			return nil, f.refuse("this is no table; correct it", parts[:n+1]...)
		}
	}
	value, _ := f.doc.Get(parts...)
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
	runtime map[string]any            // the keys of the table except runtimes
	entries map[string]map[string]any // its handlers
	ours    map[string]map[string]any // the handlers with our drop-in, if entries is without it
}

// merge merges files as CRI-O's UpdateFromDropInFile does: keys replace keys, and a
// list or a handler is replaced as a whole.
func merge(r release, files []file) (*config, error) {
	c := &config{release: r, files: files, runtime: map[string]any{}, entries: map[string]map[string]any{}}
	for _, f := range files {
		runtime, err := f.tableAt(table...)
		if err != nil {
			return nil, err
		}
		for name, value := range runtime {
			if name != "runtimes" {
				c.runtime[name] = value
			}
		}
		runtimes, err := f.tableAt(key("runtimes")...)
		if err != nil {
			return nil, err
		}
		for name := range runtimes {
			if c.entries[name], err = f.tableAt(key("runtimes", name)...); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// leaves returns all values with their keys below the table.
func (c *config) leaves() []tomledit.Leaf {
	all := tomledit.Leaves(c.runtime)
	for _, name := range slices.Sorted(maps.Keys(c.entries)) {
		all = append(all, tomledit.Leaves(c.entries[name], "runtimes", name)...)
	}
	return all
}

func (c *config) get(parts []string) (any, bool) {
	var at any = c.runtime
	if len(parts) > 2 && parts[0] == "runtimes" {
		at, parts = c.entries[parts[1]], parts[2:]
	}
	for _, part := range parts {
		inner, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = inner[part]; !ok {
			return nil, false
		}
	}
	return at, true
}

// refuse names the last file that has the key.
func (c *config) refuse(message string, parts ...string) error {
	for _, f := range slices.Backward(c.files) {
		if f.has(parts...) {
			return f.refuse(message, key(parts...)...)
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
