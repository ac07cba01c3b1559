// Package containerd plans changes to containerd's configuration files. It writes a
// drop-in of ours if the main file imports it and this containerd merges tables key
// by key. Otherwise it edits the existing files in place.
//
// A plan computes the effective configuration before and after, by the rules of the
// version at hand. It is refused if anything else would change, or if a wanted
// setting would not take effect.
package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// plan is a plan under construction.
type plan struct {
	loader
	want     runtime.Want
	main     file
	exists   bool // the main file exists
	template bool // the main file is a template (K3s's config.toml.tmpl): its output is read, and nothing is written
	useDrop  bool // the drop-in is written
	// base is the effective configuration without our drop-in. What it lacks is written anew each
	// time, so the drop-in holds exactly what is needed, and is removed if that is nothing.
	base    *config
	written []file // with their new contents
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

// build reads the configuration, sets the keys that are missing without our drop-in, reads the
// result, and compares both. The rules differ by version (release.go):
//
//	until 1.7   a file's table of a plugin replaces that of earlier files; files have version 1 or 2
//	2.0 to 2.2  tables merge key by key; the last version that a file names applies to all files
//	from 2.3    tables merge key by key; each file is converted from its own version
//
// The version of a file decides the name of its CRI table.
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
	// runc is built in. Some releases keep it beside configured handlers.
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

// write sets the keys in the files that have to hold them.
func (p *plan) write(sets []set) error {
	if len(sets) == 0 {
		return nil
	}
	if p.template && !p.useDrop {
		return p.refuseTemplate(sets)
	}
	late, err := p.lateFiles()
	if err != nil {
		return err
	}
	var ours []set
	for _, s := range sets {
		f := p.targetFile(s)
		if p.useDrop && !late[f.Path] {
			ours = append(ours, s)
			continue
		}
		doc, err := f.Doc.Set(s.Value, p.key(f, s)...)
		if err != nil {
			return tomledit.Refuse(f.Path, err, "it is left as it is")
		}
		f.Doc = doc
		p.written = append(slices.DeleteFunc(p.written, func(w file) bool { return w.Path == f.Path }), f)
	}
	if len(ours) == 0 {
		return nil
	}
	return p.writeDropIn(ours)
}

// lateFiles returns the files that are read after the drop-in. A key in one of them,
// such as the reference toolkit's 99-nvidia.toml, has to change there.
func (p *plan) lateFiles() (map[string]bool, error) {
	if !p.useDrop {
		return nil, nil
	}
	p.overlay = map[string][]byte{p.place.DropIn: nil} // as if it existed, to learn its place in the order
	c, err := p.load(p.main)
	p.overlay = nil
	if err != nil {
		return nil, err
	}
	late := map[string]bool{}
	after := false
	for _, f := range c.files {
		late[f.Path] = after
		after = after || f.Path == p.place.DropIn
	}
	return late, nil
}

func (p *plan) writeDropIn(sets []set) error {
	version := p.base.version
	if p.release.convertsEachFile() {
		if version = p.main.version; version <= 1 {
			version = p.release.newVersion()
		}
	}
	f, err := parse(p.place.DropIn, fmt.Appendf(nil, "# Written by gpuready, which will overwrite changes.\nversion = %d\n", version))
	if err != nil {
		return err
	}
	for _, s := range sets {
		if f.Doc, err = f.Doc.Set(s.Value, p.key(f, s)...); err != nil {
			return tomledit.Refuse(f.Path, err, "it is not written")
		}
	}
	p.written = append(p.written, f)
	return nil
}

func (p *plan) refuseTemplate(sets []set) error {
	var keys []string
	for _, s := range sets {
		text, err := tomledit.Format(s.Value)
		if err != nil {
			return err
		}
		keys = append(keys, tomledit.Key(p.key(p.main, s)...)+" = "+text)
	}
	why := "containerd before 2.0 would take a drop-in's table of the CRI plugin in place of the whole one"
	if p.release.mergesByKey() || !p.release.isKnown() {
		why = "no drop-in is known to be read beside it"
	}
	return &runtime.Refusal{File: p.place.Config, Message: "this is a template, which is not edited, and " + why + "; add to it by hand: " + strings.Join(keys, "; ")}
}

// key returns the path of a key of the CRI table in a file.
func (p *plan) key(f file, s set) []string {
	version := p.base.version
	switch {
	case p.release.convertsEachFile():
		version = f.version
	case !p.release.mergesByKey():
		version = min(version, 2)
	}
	return append([]string{"plugins", criTable(version)}, s.Path...)
}

// targetFile returns the file in which a key takes effect: the last that has it, or,
// if tables are replaced as a whole, the last that has the table.
func (p *plan) targetFile(s set) file {
	found := p.main
	for _, f := range p.base.files {
		at := p.key(f, s)
		if !p.release.mergesByKey() {
			at = at[:2]
		}
		if _, ok := f.Doc.Get(at...); ok {
			found = f
		}
	}
	for _, f := range p.written {
		if f.Path == found.Path {
			return f
		}
	}
	return found
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

// locate returns the file that a key of the CRI table is written to, and its path there.
func (p *plan) locate(key []string) (string, []string) {
	for _, f := range p.written {
		if at := p.key(f, set{Path: key}); f.Has(at...) {
			return f.Path, at
		}
	}
	return p.place.DropIn, p.key(p.main, set{Path: key})
}

// items returns the written files and those that already contain the wanted keys.
func (p *plan) items() []apply.Item {
	var files []tomledit.File
	for _, f := range p.written {
		files = append(files, f.File)
	}
	for _, f := range p.base.files {
		samePath := func(w tomledit.File) bool { return w.Path == f.Path }
		generated := f.Path == p.main.Path && (p.template || !p.exists)
		if !generated && !slices.ContainsFunc(files, samePath) && p.contributes(f) {
			files = append(files, f.File)
		}
	}
	items := tomledit.Items(files)
	if p.skip != "" {
		if _, err := p.files.ReadFile(p.skip, runtime.MaxFile); err == nil {
			items = append(items, apply.Item{Path: p.skip, Absent: true})
		}
	}
	return items
}

// contributes reports whether a file sets one of the wanted keys.
func (p *plan) contributes(f file) bool {
	var keys [][]string
	if p.want.CDI {
		keys = append(keys, []string{"enable_cdi"}, []string{"cdi_spec_dirs"})
	}
	for _, h := range p.want.Handlers {
		keys = append(keys, []string{"containerd", "runtimes", h.Name})
	}
	if p.want.Default != "" {
		keys = append(keys, []string{"containerd", "default_runtime_name"})
	}
	return slices.ContainsFunc(keys, func(key []string) bool { return f.Has(p.key(f, set{Path: key})...) })
}
