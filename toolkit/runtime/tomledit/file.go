package tomledit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/apply"
	"github.com/gpuready/gpuready/toolkit/runtime"
)

// File is a configuration file of a container runtime.
type File struct {
	Path string // on the host
	Doc  *Doc
}

// ParseFile reads a file. An error is a *runtime.Refusal.
func ParseFile(name string, data []byte) (File, error) {
	doc, err := Parse(data)
	if err != nil {
		return File{}, Refuse(name, err, "it is left as it is; correct it")
	}
	return File{name, doc}, nil
}

// Has reports whether the file sets a key.
func (f File) Has(key ...string) bool {
	_, ok := f.Doc.Get(key...)
	return ok
}

// Refuse returns a refusal at the position of a key.
func (f File) Refuse(message string, key ...string) error {
	line, column := f.Doc.Position(key...)
	return &runtime.Refusal{File: f.Path, Line: line, Column: column, Key: Key(key...), Message: message}
}

// Refuse converts an error of an edit to a refusal.
func Refuse(name string, err error, advice string) error {
	if at, ok := errors.AsType[*Error](err); ok {
		return &runtime.Refusal{File: name, Line: at.Line, Column: at.Column, Message: at.Message + "; " + advice}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// Items returns the items that write the files, in the order of their paths.
func Items(files []File) []apply.Item {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	var items []apply.Item
	for _, f := range files {
		items = append(items, runtime.ConfigItem(f.Path, f.Doc.Bytes()))
	}
	return items
}

// Diff returns the edits between two effective configurations. locate returns the file and
// the key under which a value is written.
func Diff(now, after map[string]any, locate func(path []string) (file string, key []string)) []runtime.Edit {
	var edits []runtime.Edit
	edit := func(path []string, before, after string) {
		file, key := locate(path)
		edits = append(edits, runtime.Edit{File: file, Key: Key(key...), Before: before, After: after})
	}
	for _, leaf := range Leaves(after) {
		switch before, ok := Lookup(now, leaf.Path...); {
		case !ok:
			edit(leaf.Path, "", text(leaf.Value))
		case !Equal(before, leaf.Value):
			edit(leaf.Path, text(before), text(leaf.Value))
		}
	}
	for _, leaf := range Leaves(now) {
		if _, ok := Lookup(after, leaf.Path...); !ok {
			edit(leaf.Path, text(leaf.Value), "")
		}
	}
	return edits
}

func text(value any) string {
	if s, err := Format(value); err == nil {
		return s
	}
	return fmt.Sprint(value)
}
