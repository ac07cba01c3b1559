package containerd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// edits returns the differences between the effective values now and after.
func (p *plan) edits(now, after *config) []runtime.Edit {
	var edits []runtime.Edit
	for _, s := range tomledit.Leaves(after.cri) {
		before, ok := now.get(s.Path...)
		if ok && tomledit.Equal(before, s.Value) {
			continue
		}
		e := p.edit(s)
		e.After = text(s.Value)
		if ok {
			e.Before = text(before)
		}
		edits = append(edits, e)
	}
	for _, s := range tomledit.Leaves(now.cri) {
		if _, ok := after.get(s.Path...); !ok {
			e := p.edit(s)
			e.Before = text(s.Value)
			edits = append(edits, e)
		}
	}
	return edits
}

func (p *plan) edit(s set) runtime.Edit {
	for _, f := range p.written {
		if at := p.key(f, s); holds(f, at) {
			return runtime.Edit{File: f.path, Key: tomledit.Key(at...)}
		}
	}
	return runtime.Edit{File: p.place.DropIn, Key: tomledit.Key(p.key(p.main, s)...)}
}

// holds reports whether the file sets the key.
func holds(f file, key []string) bool {
	_, ok := f.doc.Get(key...)
	return ok
}

func text(value any) string {
	if s, err := tomledit.Format(value); err == nil {
		return s
	}
	return fmt.Sprint(value)
}

// items returns the written files and those that already contain the wanted keys.
func (p *plan) items() ([]apply.Item, error) {
	files := slices.Clone(p.written)
	for _, f := range p.base.files {
		samePath := func(w file) bool { return w.path == f.path }
		generated := f.path == p.main.path && (p.template || !p.exists)
		if !generated && !slices.ContainsFunc(files, samePath) && p.contributes(f) {
			files = append(files, f)
		}
	}
	slices.SortStableFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	var items []apply.Item
	for _, f := range files {
		item, err := runtime.Write(p.files, f.path, f.doc.Bytes())
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	if p.skip != "" {
		if _, err := p.files.ReadFile(p.skip, runtime.MaxFile); err == nil {
			items = append(items, apply.Item{Path: p.skip, Absent: true})
		}
	}
	return items, nil
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
	return slices.ContainsFunc(keys, func(key []string) bool { return holds(f, p.key(f, set{Path: key})) })
}
