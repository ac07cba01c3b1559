package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

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
	p.overlay = map[string][]byte{p.place.DropIn: nil}
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
