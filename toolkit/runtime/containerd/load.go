package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// file is a configuration file that containerd reads.
type file struct {
	tomledit.File
	version int // 0 if the file names none
}

// config is the configuration that containerd derives from all its files.
type config struct {
	release release
	files   []file // in the order in which they apply, the main one first
	version int    // the one that applies to the merged tables
	cri     map[string]any
	ours    map[string]any // the CRI table with our drop-in, if cri is without it
	covered bool           // the drop-in is imported, whether or not it exists
}

// maxFiles limits the number of files that are imported, directly or indirectly.
const maxFiles = 256

// loader reads files. The contents in overlay replace those on the host.
type loader struct {
	files   runtime.Files
	place   runtime.Place
	release release
	overlay map[string][]byte
	skip    string // a file that is not read
}

func (l loader) read(name string) ([]byte, error) {
	if data, ok := l.overlay[name]; ok {
		return data, nil
	}
	return l.files.ReadFile(name, runtime.MaxFile)
}

func parse(name string, data []byte) (file, error) {
	parsed, err := tomledit.ParseFile(name, data)
	if err != nil {
		return file{}, err
	}
	f := file{File: parsed}
	switch v := f.Doc.Root()["version"].(type) {
	case nil:
	case int64:
		f.version = int(v)
	default:
		return file{}, f.Refuse("this is no number; correct it", "version")
	}
	return f, nil
}

// load merges the given main file and the files it imports, breadth first as
// containerd does.
func (l loader) load(main file) (*config, error) {
	c := &config{release: l.release}
	loaded := map[string]bool{}
	pending := []string{main.Path}
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
		if loaded[name] || name == l.skip && name != main.Path {
			continue
		}
		loaded[name] = true
		f := main
		if name != main.Path {
			data, err := l.read(name)
			if errors.Is(err, fs.ErrNotExist) && name == l.place.DropIn {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read what %s imports: %w", main.Path, err)
			}
			if f, err = parse(name, data); err != nil {
				return nil, err
			}
		}
		if f.version > l.release.maxVersion() && l.release.isKnown() {
			return nil, f.Refuse(fmt.Sprintf("containerd %s does not read version %d; correct it", l.place.Version, f.version), "version")
		}
		if c.files = append(c.files, f); len(c.files) > maxFiles {
			return nil, &runtime.Refusal{File: main.Path, Key: "imports", Message: fmt.Sprintf("more than %d files are imported", maxFiles)}
		}
		imports, err := l.imports(f, c)
		if err != nil {
			return nil, err
		}
		pending = append(pending, imports...)
	}
	return c, c.merge()
}

// withOverlay adds name to the found files if the plan is about to create it.
func (l loader) withOverlay(found []string, name string) []string {
	if _, ok := l.overlay[name]; ok && !slices.Contains(found, name) {
		found = append(slices.Clone(found), name)
		slices.Sort(found)
	}
	return found
}

func (l loader) imports(f file, c *config) ([]string, error) {
	value, ok := f.Doc.Get("imports")
	if !ok {
		return nil, nil
	}
	list, ok := tomledit.Strings(value)
	if !ok {
		return nil, f.Refuse("this is no list of strings; correct it", "imports")
	}
	var out []string
	for _, name := range list {
		glob := strings.Contains(name, "*")
		name = path.Clean(name)
		switch {
		case path.IsAbs(name):
		case glob && l.release.isKnown() && !l.release.AtLeast(1, 7):
			name = path.Join("/", name) // 1.6: from the daemon's directory, the root for a service
		default:
			name = path.Join(path.Dir(f.Path), name)
		}
		if !glob {
			c.covered = c.covered || name == l.place.DropIn
			out = append(out, name)
			continue
		}
		dir, base := path.Split(name)
		dir = path.Clean(dir)
		if strings.ContainsAny(dir, `*?[\`) {
			return nil, f.Refuse("a pattern in the directory of "+name+" is not followed here; name the directory", "imports")
		}
		found, err := l.files.Glob(dir, base)
		if err != nil {
			return nil, f.Refuse(name+" cannot be looked up: "+err.Error(), "imports")
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

// readMain reads the main file. If there is none, or only a template, it uses the
// content that applies in its place.
func (p *plan) readMain() error {
	name := p.place.Config
	data, err := p.files.ReadFile(name, runtime.MaxFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.exists = err == nil
	if path.Ext(name) == ".tmpl" && (!p.exists || bytes.Contains(data, []byte("{{"))) {
		p.template = true
		version := templateVersion(name, data)
		name = path.Join(path.Dir(name), "config.toml") // what k3s and RKE2 make of it
		if data, err = p.files.ReadFile(name, runtime.MaxFile); errors.Is(err, fs.ErrNotExist) {
			data, err = fmt.Appendf(nil, "version = %d\n", version), nil
		}
		if err != nil {
			return err
		}
	} else if !p.exists {
		data = fmt.Appendf(nil, "version = %d\n", p.release.newVersion())
	}
	p.main, err = parse(name, data)
	return err
}

var versionPattern = regexp.MustCompile(`(?m)^\s*version\s*=\s*([1-9])\s*(#.*)?$`)

// templateVersion returns the version of the file that a template generates.
func templateVersion(name string, data []byte) int {
	if m := versionPattern.FindSubmatch(data); m != nil {
		return int(m[1][0] - '0')
	}
	if strings.Contains(path.Base(name), "-v3") {
		return 3
	}
	return 2
}

// inferRelease derives the oldest possible release, if it is not known, from the
// version of the configuration: 3 is read by 2.0 and later, 4 by 2.3 and later.
func (p *plan) inferRelease() error {
	if p.release.isKnown() {
		return nil
	}
	switch v := p.main.version; {
	case v >= 4:
		p.release = release{runtime.Release{Major: 2, Minor: 3}}
	case v == 3:
		p.release = release{runtime.Release{Major: 2, Minor: 0}}
	case v <= 1 && !bare(p.main):
		return p.main.Refuse("which containerd reads this is not known, and they differ in what they make of a file of version 1; say its version", "version")
	case p.want.CDI:
		return p.main.Refuse("which containerd reads this is not known, and 1.6 has no CDI; say its version", "version")
	}
	return nil
}

// bare reports whether a file has neither a version nor names of plugins, so that
// setting its version changes nothing else.
func bare(f file) bool {
	for _, key := range []string{"plugins", "disabled_plugins", "required_plugins"} {
		if _, ok := f.Doc.Get(key); ok {
			return false
		}
	}
	return f.version == 0
}

// readBase reads the configuration without our drop-in. It sets the main file's
// version if nothing else depends on that.
func (p *plan) readBase(now *config) (err error) {
	if p.useDrop {
		p.skip = p.place.DropIn
		p.base, err = p.load(p.main)
		p.skip = ""
		if err == nil {
			p.base.ours = now.cri
		}
		return err
	}
	free := bare(p.main) && (p.release.mergesByKey() || now.version <= 1 && !slices.ContainsFunc(now.files, func(f file) bool { return !bare(f) }))
	if free {
		doc, err := p.main.Doc.Set(int64(p.release.newVersion()), "version")
		if err != nil {
			return tomledit.Refuse(p.main.Path, err, "correct it")
		}
		p.main.Doc, p.main.version = doc, p.release.newVersion()
	}
	p.base, err = p.load(p.main)
	return err
}
