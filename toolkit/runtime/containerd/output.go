package containerd

import (
	"slices"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

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
