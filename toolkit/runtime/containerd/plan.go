// Package containerd plans changes to containerd's configuration files. It writes a
// drop-in of ours if the main file imports it and this containerd merges tables key
// by key. Otherwise it edits the existing files in place.
//
// A plan computes the effective configuration before and after, by the rules of the
// version at hand. It is refused if anything else would change, or if a wanted
// setting would not take effect.
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

// plan is a plan under construction.
type plan struct {
	loader
	want     runtime.Want
	main     file
	exists   bool // the main file exists
	template bool // the main file is a template: its output is read, and nothing is written
	useDrop  bool // the drop-in is written
	base     *config
	written  []file // with their new contents
}

// Plan returns the files that the host needs for the wanted abilities. It returns an
// *runtime.Refusal for a configuration that it does not fully understand, or that
// cannot have those abilities. A symbolic link is kept: its target is written.
func Plan(files runtime.Files, p runtime.Place, w runtime.Want) (runtime.Plan, error) {
	r, err := p.Release("containerd", runtime.Release{Major: 1, Minor: 6})
	if err != nil {
		return runtime.Plan{}, err
	}
	todo := &plan{loader: loader{files: files, place: p, release: release{r}}, want: w}
	if err := todo.readMain(); err != nil {
		return runtime.Plan{}, err
	}
	if err := todo.inferRelease(); err != nil {
		return runtime.Plan{}, err
	}
	return todo.build()
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

func (p *plan) build() (runtime.Plan, error) {
	now, err := p.load(p.main)
	if err != nil {
		return runtime.Plan{}, err
	}
	p.useDrop = p.release.mergesByKey() && p.place.DropIn != "" && now.covered
	if err := p.check(now); err != nil {
		return runtime.Plan{}, err
	}
	if err := p.readBase(now); err != nil {
		return runtime.Plan{}, err
	}
	sets, err := p.base.missing(p.want)
	if err != nil {
		return runtime.Plan{}, err
	}
	if err := p.write(sets); err != nil {
		return runtime.Plan{}, err
	}
	after, err := p.verify(sets)
	if err != nil {
		return runtime.Plan{}, err
	}
	return runtime.Plan{Items: p.items(), Edits: tomledit.Diff(now.cri, after.cri, p.locate)}, nil
}

// check refuses configurations in which no key can give the wanted abilities.
func (p *plan) check(c *config) error {
	for _, f := range c.files {
		value, _ := f.Doc.Get("disabled_plugins")
		list, ok := tomledit.Strings(value)
		if value != nil && !ok {
			return f.Refuse("this is no list of strings; correct it", "disabled_plugins")
		}
		for _, name := range []string{criV1, criV2, criV3} {
			if slices.Contains(list, name) {
				return f.Refuse(fmt.Sprintf("the CRI plugin is disabled (%q), so Kubernetes cannot use this containerd; take it out of the list if it is to", name), "disabled_plugins")
			}
		}
	}
	if p.want.CDI && p.release.isKnown() && !p.release.hasCDI() {
		return &runtime.Refusal{File: p.place.Config, Key: "enable_cdi", Message: "containerd " + p.place.Version + " has no CDI; upgrade it to 1.7 or later, or ask for a handler only"}
	}
	if p.place.Version == "" && slices.ContainsFunc(c.files[1:], func(f file) bool { return f.Path != p.place.DropIn && hasCRI(f) }) {
		return p.main.Refuse("what it imports configures the CRI plugin, which versions of containerd merge differently; say its version", "imports")
	}
	if p.release.mergesByKey() && !p.release.convertsEachFile() {
		for _, f := range c.files {
			if _, ok := f.Doc.Get("plugins", criV1); ok && f.version <= 1 && c.version >= 3 {
				return f.Refuse("containerd 2.0 to 2.2 does not read this table of a file of version 1; run containerd config migrate", "plugins", criV1)
			}
		}
	}
	return p.checkDefault(c)
}

func (p *plan) checkDefault(c *config) error {
	name := p.want.Default
	if name == "" || slices.ContainsFunc(p.want.Handlers, func(h runtime.Handler) bool { return h.Name == name }) {
		return nil
	}
	runtimes, err := c.table("containerd", "runtimes")
	if err != nil {
		return err
	}
	if _, ok := runtimes[name]; ok || name == "runc" && (len(runtimes) == 0 || c.release.keepsRunc()) {
		return nil
	}
	return &runtime.Refusal{File: p.main.Path, Key: "default_runtime_name", Message: fmt.Sprintf("there is no handler %q that could be the default", name)}
}

func hasCRI(f file) bool {
	return slices.ContainsFunc([]string{criV1, criV2, criV3}, func(name string) bool {
		_, ok := f.Doc.Get("plugins", name)
		return ok
	})
}

// verify returns the effective configuration of the planned files, and refuses the
// plan if a wanted setting is missing or another one changes.
func (p *plan) verify(sets []set) (*config, error) {
	p.overlay = map[string][]byte{}
	main := p.main
	for _, f := range p.written {
		p.overlay[f.Path] = f.Doc.Bytes()
		if f.Path == main.Path {
			main = f
		}
	}
	if p.useDrop && p.overlay[p.place.DropIn] == nil {
		p.skip = p.place.DropIn // it is removed
	}
	after, err := p.load(main)
	if err != nil {
		return nil, err
	}
	rest, err := after.missing(p.want)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, after.refuse("this is read later, and would win over what is wanted; take it out", rest[0].Path...)
	}
	for _, old := range tomledit.Leaves(p.base.cri) {
		if slices.ContainsFunc(sets, func(s set) bool { return slices.Equal(s.Path, old.Path) }) {
			continue
		}
		if value, ok := after.get(old.Path...); !ok || !tomledit.Equal(value, old.Value) {
			return nil, p.base.refuse("this would change together with what is wanted; nothing is written", old.Path...)
		}
	}
	return after, nil
}
