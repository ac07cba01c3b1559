package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/engine"
	"github.com/gpuready/gpuready/toolkit/engine/tomledit"
)

// readBase is the configuration without what a drop-in of ours says, and with a
// version where one can be said freely.
func (p *plan) readBase(now *config) (err error) {
	if p.drop {
		p.skip = p.place.DropIn
		p.base, err = p.load(p.main)
		p.skip = ""
		if err == nil {
			p.base.ours = now.cri
		}
		return err
	}
	free := bare(p.main) && (p.release.deep() || now.version <= 1 && !slices.ContainsFunc(now.files, func(f file) bool { return !bare(f) }))
	if free {
		doc, err := p.main.doc.Set(int64(p.release.newest()), "version")
		if err != nil {
			return refusal(p.main.path, err, "correct it")
		}
		p.main.doc, p.main.version = doc, p.release.newest()
	}
	p.base, err = p.load(p.main)
	return err
}

// write makes the files that are written.
func (p *plan) write(sets []set) error {
	if len(sets) == 0 {
		return nil
	}
	if p.template && !p.drop {
		return p.refuseTemplate(sets)
	}
	late, err := p.late()
	if err != nil {
		return err
	}
	var ours []set
	for _, s := range sets {
		f := p.holder(s)
		if p.drop && !late[f.path] {
			ours = append(ours, s)
			continue
		}
		doc, err := f.doc.Set(s.Value, p.key(f, s)...)
		if err != nil {
			return refusal(f.path, err, "it is left as it is")
		}
		f.doc = doc
		p.written = append(slices.DeleteFunc(p.written, func(w file) bool { return w.path == f.path }), f)
	}
	if len(ours) == 0 {
		return nil
	}
	return p.writeDropIn(ours)
}

// late are the files that count more than the drop-in: a key that is in one of
// them, as the reference toolkit's 99-nvidia.toml is, has to change there.
func (p *plan) late() (map[string]bool, error) {
	if !p.drop {
		return nil, nil
	}
	p.overlay = map[string][]byte{p.place.DropIn: nil}
	c, err := p.load(p.main)
	p.overlay = nil
	if err != nil {
		return nil, err
	}
	late := map[string]bool{}
	after := false
	for _, f := range c.files {
		late[f.path] = after
		after = after || f.path == p.place.DropIn
	}
	return late, nil
}

func (p *plan) writeDropIn(sets []set) error {
	version := p.base.version
	if p.release.eachFile() {
		if version = p.main.version; version <= 1 {
			version = p.release.newest()
		}
	}
	f, err := parse(p.place.DropIn, fmt.Appendf(nil, "# Written by gpuready, which will overwrite changes.\nversion = %d\n", version))
	if err != nil {
		return err
	}
	for _, s := range sets {
		if f.doc, err = f.doc.Set(s.Value, p.key(f, s)...); err != nil {
			return refusal(f.path, err, "it is not written")
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
	if p.release.deep() || !p.release.known() {
		why = "no drop-in is known to be read beside it"
	}
	return &engine.Refusal{File: p.place.Config, Message: "this is a template, which is not edited, and " + why + "; add to it by hand: " + strings.Join(keys, "; ")}
}

// key is what a key of the CRI table is called in a file.
func (p *plan) key(f file, s set) []string {
	version := p.base.version
	switch {
	case p.release.eachFile():
		version = f.version
	case !p.release.deep():
		version = min(version, 2)
	}
	return append([]string{"plugins", criTable(version)}, s.Path...)
}

// holder is the file in which a key counts: the last that has it, or, where tables
// are replaced as a whole, the last that has the table.
func (p *plan) holder(s set) file {
	found := p.main
	for _, f := range p.base.files {
		at := p.key(f, s)
		if !p.release.deep() {
			at = at[:2]
		}
		if _, ok := f.doc.Get(at...); ok {
			found = f
		}
	}
	for _, f := range p.written {
		if f.path == found.path {
			return f
		}
	}
	return found
}
