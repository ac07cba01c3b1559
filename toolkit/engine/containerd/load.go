package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/engine"
	"github.com/gpuready/gpuready/toolkit/engine/tomledit"
)

// file is one that containerd reads.
type file struct {
	path    string
	doc     *tomledit.Doc
	version int // 0: it names none
}

// config is what containerd makes of all its files.
type config struct {
	release release
	files   []file // in the order in which they count, the main one first
	version int    // as it counts for the merged tables
	cri     map[string]any
	covered bool // the drop-in is among what is imported, be it there or not
}

// maxFiles bounds imports that import.
const maxFiles = 256

// loader reads files; overlay has what they are to contain.
type loader struct {
	files   engine.Files
	place   engine.Place
	release release
	overlay map[string][]byte
	skip    string // is not read
}

func (l loader) read(name string) ([]byte, error) {
	if data, ok := l.overlay[name]; ok {
		return data, nil
	}
	return l.files.ReadFile(name, engine.MaxFile)
}

func parse(name string, data []byte) (file, error) {
	doc, err := tomledit.Parse(data)
	if err != nil {
		return file{}, refusal(name, err, "it is left as it is; correct it")
	}
	f := file{path: name, doc: doc}
	switch v := doc.Root()["version"].(type) {
	case nil:
	case int64:
		f.version = int(v)
	default:
		return file{}, f.refuse("this is no number; correct it", "version")
	}
	return f, nil
}

// refusal makes one of an editor's error.
func refusal(name string, err error, advice string) error {
	if at, ok := errors.AsType[*tomledit.Error](err); ok {
		return &engine.Refusal{File: name, Line: at.Line, Column: at.Column, Message: at.Message + "; " + advice}
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (f file) refuse(message string, key ...string) error {
	line, column := f.doc.Position(key...)
	return &engine.Refusal{File: f.path, Line: line, Column: column, Key: tomledit.Key(key...), Message: message}
}

// load reads the main file, given, and what it imports, breadth first as containerd does.
func (l loader) load(main file) (*config, error) {
	c := &config{release: l.release}
	loaded := map[string]bool{}
	pending := []string{main.path}
	for len(pending) > 0 || l.place.Always && !c.covered {
		if len(pending) == 0 {
			c.covered = true
			more, err := l.files.Glob(path.Dir(l.place.DropIn), "*.toml")
			if err != nil {
				return nil, err
			}
			pending = l.withOverlay(more, l.place.DropIn)
			continue
		}
		name := pending[0]
		pending = pending[1:]
		if loaded[name] || name == l.skip && name != main.path {
			continue
		}
		loaded[name] = true
		f := main
		if name != main.path {
			data, err := l.read(name)
			if errors.Is(err, fs.ErrNotExist) && name == l.place.DropIn {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read what %s imports: %w", main.path, err)
			}
			if f, err = parse(name, data); err != nil {
				return nil, err
			}
		}
		if f.version > l.release.most() && l.release.known() {
			return nil, f.refuse(fmt.Sprintf("containerd %s does not read version %d; correct it", l.place.Version, f.version), "version")
		}
		if c.files = append(c.files, f); len(c.files) > maxFiles {
			return nil, &engine.Refusal{File: main.path, Key: "imports", Message: fmt.Sprintf("more than %d files are imported", maxFiles)}
		}
		imports, err := l.imports(f, c)
		if err != nil {
			return nil, err
		}
		pending = append(pending, imports...)
	}
	return c, c.merge()
}

// withOverlay adds a file that a plan is about to make.
func (l loader) withOverlay(found []string, name string) []string {
	if _, ok := l.overlay[name]; ok && !slices.Contains(found, name) {
		found = append(slices.Clone(found), name)
		slices.Sort(found)
	}
	return found
}

func (l loader) imports(f file, c *config) ([]string, error) {
	value, ok := f.doc.Get("imports")
	if !ok {
		return nil, nil
	}
	list, ok := stringList(value)
	if !ok {
		return nil, f.refuse("this is no list of strings; correct it", "imports")
	}
	var out []string
	for _, name := range list {
		glob := strings.Contains(name, "*")
		name = path.Clean(name)
		switch {
		case path.IsAbs(name):
		case glob && l.release.known() && !l.release.atLeast(1, 7):
			name = path.Join("/", name) // 1.6: from the daemon's directory, the root for a service
		default:
			name = path.Join(path.Dir(f.path), name)
		}
		if !glob {
			c.covered = c.covered || name == l.place.DropIn
			out = append(out, name)
			continue
		}
		dir, base := path.Split(name)
		dir = path.Clean(dir)
		if strings.ContainsAny(dir, `*?[\`) {
			return nil, f.refuse("a pattern in the directory of "+name+" is not followed here; name the directory", "imports")
		}
		found, err := l.files.Glob(dir, base)
		if err != nil {
			return nil, f.refuse(name+" cannot be looked up: "+err.Error(), "imports")
		}
		if path.Dir(l.place.DropIn) == dir {
			if ours, _ := path.Match(base, path.Base(l.place.DropIn)); ours {
				c.covered = true
				found = l.withOverlay(found, l.place.DropIn)
			}
		}
		out = append(out, found...)
	}
	return out, nil
}

// merge computes the version and the CRI plugin's table.
func (c *config) merge() error {
	c.version = 1
	if c.release.deep() {
		c.version = c.release.most()
	}
	merged := map[string]any{}
	for _, f := range c.files {
		plugins, err := f.plugins()
		if err != nil {
			return err
		}
		version := f.version
		if c.release.deep() && version <= 1 {
			plugins = renameV1(plugins)
			version = c.version
		}
		if c.release.eachFile() {
			c.cri = override(c.cri, migrate(plugins, f.version))
			continue
		}
		if version != 0 {
			c.version = version
		}
		for name, table := range plugins {
			if inner, ok := table.(map[string]any); ok && c.release.deep() {
				have, _ := merged[name].(map[string]any)
				table = override(have, inner)
			}
			merged[name] = table
		}
	}
	switch {
	case c.release.eachFile():
	case c.release.deep():
		c.cri = migrate(merged, c.version)
	default:
		c.cri, _ = merged[criTable(min(c.version, 2))].(map[string]any)
	}
	return nil
}

// plugins is a file's table of plugins; what is no table is refused.
func (f file) plugins() (map[string]any, error) {
	value, ok := f.doc.Get("plugins")
	if !ok {
		return nil, nil
	}
	plugins, ok := value.(map[string]any)
	if !ok {
		return nil, f.refuse("this is no table; correct it", "plugins")
	}
	for _, name := range []string{criV1, criV2, criV3} {
		if table, ok := plugins[name]; ok {
			if _, ok := table.(map[string]any); !ok {
				return nil, f.refuse("this is no table; correct it", "plugins", name)
			}
		}
	}
	return plugins, nil
}

func renameV1(plugins map[string]any) map[string]any {
	table, ok := plugins[criV1]
	if !ok {
		return plugins
	}
	plugins = maps.Clone(plugins)
	delete(plugins, criV1)
	plugins[criV2] = table
	return plugins
}

// migrate is the CRI table as version 3 has it: of an older file, its table for
// version 2 as far as that for version 3 does not have the keys.
func migrate(plugins map[string]any, version int) map[string]any {
	now, _ := plugins[criV3].(map[string]any)
	if version >= 3 {
		return now
	}
	old, _ := plugins[criV2].(map[string]any)
	out := maps.Clone(old)
	if out == nil {
		out = map[string]any{}
	}
	maps.Copy(out, now)
	inner, _ := now["containerd"].(map[string]any)
	if before, ok := old["containerd"].(map[string]any); ok {
		inner, before = maps.Clone(before), inner
		maps.Copy(inner, before)
		out["containerd"] = inner
	}
	return out
}

// override merges as containerd 2 does: tables key by key, all else is replaced.
func override(to, from map[string]any) map[string]any {
	out := maps.Clone(to)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range from {
		inner, ok := value.(map[string]any)
		have, both := out[key].(map[string]any)
		if ok && both {
			value = override(have, inner)
		}
		out[key] = value
	}
	return out
}

func stringList(value any) ([]string, bool) {
	list, ok := value.([]any)
	out := make([]string, len(list))
	for i, item := range list {
		s, isString := item.(string)
		out[i], ok = s, ok && isString
	}
	return out, ok
}
