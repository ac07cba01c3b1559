// Package crio plans changes to CRI-O's configuration. It writes a drop-in of ours,
// which CRI-O always reads. A key in a later drop-in, such as the reference toolkit's
// 99-nvidia.conf, is changed there instead.
//
// CDI is always on from CRI-O 1.24 on; only its directories can be configured. The
// rules for merging files are in pkg/config/config.go of CRI-O, UpdateFromPath.
package crio

import (
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// header is the first line of our drop-in.
const header = "# Written by gpuready, which will overwrite changes.\n"

// plan is a plan under construction.
type plan struct {
	place   runtime.Place
	want    runtime.Want
	base    *config // without our drop-in
	written []file
}

// Plan returns the files that the host needs for the wanted abilities. It returns an
// *runtime.Refusal for a configuration that it does not fully understand, or that
// cannot have those abilities. Without a place for a drop-in it edits the main file.
func Plan(files runtime.Files, p runtime.Place, w runtime.Want) (runtime.Plan, error) {
	known, err := p.Release("CRI-O", runtime.Release{Major: 1, Minor: 24})
	if err != nil {
		return runtime.Plan{}, err
	}
	r := release{known}
	all, err := readAll(files, p)
	if err != nil {
		return runtime.Plan{}, err
	}
	now, err := merge(r, all)
	if err != nil {
		return runtime.Plan{}, err
	}
	base, err := merge(r, slices.DeleteFunc(slices.Clone(all), func(f file) bool { return f.Path == p.DropIn }))
	if err != nil {
		return runtime.Plan{}, err
	}
	base.ours = now.table
	todo := &plan{place: p, want: w, base: base}
	return todo.build(now)
}

func (p *plan) build(now *config) (runtime.Plan, error) {
	if err := p.base.checkDefault(p.place, p.want); err != nil {
		return runtime.Plan{}, err
	}
	needs, err := p.base.missing(p.want)
	if err != nil {
		return runtime.Plan{}, err
	}
	if err := p.write(needs); err != nil {
		return runtime.Plan{}, err
	}
	after, err := p.verify(needs)
	if err != nil {
		return runtime.Plan{}, err
	}
	return runtime.Plan{Items: p.items(now), Edits: tomledit.Diff(now.table, after.table, p.locate)}, nil
}

// write sets the keys in the files that have to hold them.
func (p *plan) write(needs []need) error {
	for _, n := range needs {
		f, found := p.targetFile(n)
		leaves := n.leaves
		if found {
			leaves = n.change
			for _, name := range overrides {
				if value, ok := f.Doc.Get(append(key(n.key...), name)...); ok && value != false {
					return f.Refuse("by this another program runs than runtime_path; take it out", append(key(n.key...), name)...)
				}
			}
		}
		for _, leaf := range leaves {
			doc, err := f.Doc.Set(leaf.Value, key(leaf.Path...)...)
			if err != nil {
				return &runtime.Refusal{File: f.Path, Message: err.Error()}
			}
			f.Doc = doc
		}
		p.written = append(slices.DeleteFunc(p.written, func(w file) bool { return w.Path == f.Path }), f)
	}
	return nil
}

// targetFile returns the file to write a key to and reports whether that file already
// has it. This is the last file with the key if it is read after the drop-in, and the
// drop-in otherwise.
func (p *plan) targetFile(n need) (file, bool) {
	target := p.place.DropIn
	if target == "" {
		target = p.place.Config
	}
	f, found := file{tomledit.File{Path: target}}, false
	for _, other := range p.base.files {
		if other.Path == target && f.Doc == nil {
			f = other
		}
		if other.has(n.key...) && (p.place.DropIn == "" || p.isLate(other)) {
			f, found = other, true
		}
	}
	for _, w := range p.written {
		if w.Path == f.Path {
			return w, found
		}
	}
	if f.Doc == nil {
		f, _ = parse(target, []byte(header)) // a comment, which is always valid
	}
	return f, found
}

// isLate reports whether a file is read after the drop-in.
func (p *plan) isLate(f file) bool {
	return f.Path != p.place.Config && slices.Compare(strings.Split(f.Path, "/"), strings.Split(p.place.DropIn, "/")) > 0
}

// verify returns the effective configuration of the planned files, and refuses the
// plan if a wanted setting is missing or another one changes.
func (p *plan) verify(needs []need) (*config, error) {
	files := slices.Clone(p.base.files)
	for _, w := range p.written {
		at := slices.IndexFunc(files, func(f file) bool { return f.Path == w.Path })
		if at >= 0 {
			files[at] = w
			continue
		}
		if at = slices.IndexFunc(files, p.isLate); at < 0 || w.Path == p.place.Config {
			at = len(files)
		}
		files = slices.Insert(files, at, w)
	}
	after, err := merge(p.base.release, files)
	if err != nil {
		return nil, err
	}
	rest, err := after.missing(p.want)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 {
		return nil, &runtime.Refusal{File: p.place.Config, Key: tomledit.Key(key(rest[0].key...)...), Message: "this cannot be had beside what the files say; set it by hand"}
	}
	for _, old := range tomledit.Leaves(p.base.table) {
		changed := func(n need) bool {
			return len(n.key) <= len(old.Path) && slices.Equal(n.key, old.Path[:len(n.key)])
		}
		if value, ok := after.get(old.Path); !slices.ContainsFunc(needs, changed) && (!ok || !tomledit.Equal(value, old.Value)) {
			return nil, p.base.refuse("this would change together with what is wanted; nothing is written", old.Path...)
		}
	}
	return after, nil
}

// locate returns the file that a key is written to, and its full path.
func (p *plan) locate(parts []string) (string, []string) {
	for _, f := range p.written {
		if f.has(parts...) {
			return f.Path, key(parts...)
		}
	}
	return p.place.DropIn, key(parts...)
}

// items returns the written files and those that already contain the wanted keys. A
// drop-in that is no longer needed is removed.
func (p *plan) items(now *config) []apply.Item {
	var files []tomledit.File
	for _, f := range p.written {
		files = append(files, f.File)
	}
	is := func(name string) func(file) bool { return func(f file) bool { return f.Path == name } }
	for _, f := range p.base.files {
		if !slices.ContainsFunc(p.written, is(f.Path)) && p.contributes(f) {
			files = append(files, f.File)
		}
	}
	items := tomledit.Items(files)
	ours := is(p.place.DropIn)
	if slices.ContainsFunc(now.files, ours) && !slices.ContainsFunc(p.written, ours) {
		items = append(items, apply.Item{Path: p.place.DropIn, Absent: true})
	}
	return items
}

func (p *plan) contributes(f file) bool {
	if p.want.CDI && f.has("cdi_spec_dirs") || p.want.Default != "" && f.has("default_runtime") {
		return true
	}
	return slices.ContainsFunc(p.want.Handlers, func(h runtime.Handler) bool { return f.has("runtimes", h.Name) })
}
