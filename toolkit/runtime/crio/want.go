package crio

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// release is a version of CRI-O. The zero value is unknown and treated as a maintained
// one.
type release struct{ runtime.Release }

// builtin returns the handler that exists, and is the default, if no file names one:
// crun since 1.31, runc before. It returns "" if the release is unknown.
func (r release) builtin() string {
	switch {
	case r.Major == 0:
		return ""
	case r.Major > 1 || r.Minor >= 31:
		return "crun"
	}
	return "runc"
}

// need is a required change to a key of the table or to a whole handler.
type need struct {
	key    []string        // below the table
	leaves []tomledit.Leaf // its complete new content
	change []tomledit.Leaf // the part of the content that has to change
}

func one(value any, parts ...string) need {
	leaves := []tomledit.Leaf{{Path: parts, Value: value}}
	return need{key: parts, leaves: leaves, change: leaves}
}

func (c *config) missing(w runtime.Want) ([]need, error) {
	var needs []need
	if w.CDI {
		dirs, err := c.dirs()
		if err != nil {
			return nil, err
		}
		if missing := runtime.MissingDirs(dirs, w.CDIDirs); len(missing) > 0 {
			needs = append(needs, one(slices.Concat(dirs, missing), "cdi_spec_dirs"))
		}
	}
	fallback, err := c.text("default_runtime")
	if err != nil {
		return nil, err
	}
	for _, h := range w.Handlers {
		n, err := c.missingHandler(h, fallback)
		if err != nil {
			return nil, err
		}
		if len(n.change) > 0 {
			needs = append(needs, n)
		}
	}
	if w.Default != "" && w.Default != fallback && (fallback != "" || w.Default != c.release.builtin()) {
		needs = append(needs, one(w.Default, "default_runtime"))
	}
	return needs, nil
}

func (c *config) dirs() ([]string, error) {
	value, ok := c.table["cdi_spec_dirs"]
	if !ok {
		return runtime.DefaultCDIDirs, nil
	}
	dirs, ok := tomledit.Strings(value)
	if !ok {
		return nil, c.refuse("this is no list of strings; correct it", "cdi_spec_dirs")
	}
	return dirs, nil
}

// overrides are keys of a handler that make CRI-O run another program than runtime_path.
var overrides = []string{"platform_runtime_paths", "inherit_default_runtime"}

func (c *config) missingHandler(h runtime.Handler, fallback string) (need, error) {
	n := need{key: []string{"runtimes", h.Name}}
	entry := maps.Clone(c.handler(h.Name))
	if entry == nil {
		var err error
		if entry, err = c.model(fallback); err != nil {
			return n, err
		}
	}
	set := func(name, value string) {
		n.change = append(n.change, tomledit.Leaf{Path: append(slices.Clone(n.key), name), Value: value})
		entry[name] = value
	}
	program, err := c.text("runtimes", h.Name, "runtime_path")
	if err != nil {
		return n, err
	}
	kind, err := c.text("runtimes", h.Name, "runtime_type")
	if err != nil {
		return n, err
	}
	overridden := slices.ContainsFunc(overrides, func(name string) bool { _, ok := entry[name]; return ok && entry[name] != false })
	if program != h.Program || overridden {
		set("runtime_path", h.Program)
	}
	if kind != "oci" && (kind != "" || c.handler(h.Name) == nil) {
		set("runtime_type", "oci")
	}
	for _, name := range overrides {
		delete(entry, name)
	}
	n.leaves = tomledit.Leaves(entry, n.key...)
	return n, nil
}

// model returns the settings that a new handler copies from the default one. The
// monitor is the reason: conmon is often not on the path, and its cgroup has to be
// that of the others.
func (c *config) model(fallback string) (map[string]any, error) {
	if fallback == "" {
		fallback = c.release.builtin()
	}
	if fallback == "" && (c.handler("crun") == nil) != (c.handler("runc") == nil) {
		if fallback = "crun"; c.handler(fallback) == nil {
			fallback = "runc"
		}
	}
	if entry := handlerIn(c.ours, fallback); c.handler(fallback) == nil && entry != nil {
		// The default is already ours, set by a file that is read after our drop-in.
		// It was made from the default of that time, so it stays.
		return withoutIdentity(entry), nil
	}
	kind, err := c.text("runtimes", fallback, "runtime_type")
	if err != nil {
		return nil, err
	}
	if kind != "" && kind != "oci" {
		return map[string]any{}, nil // a virtual machine's settings are not a process'
	}
	return withoutIdentity(c.handler(fallback)), nil
}

// withoutIdentity returns a handler's settings without those that identify it.
func withoutIdentity(entry map[string]any) map[string]any {
	model := map[string]any{}
	maps.Copy(model, entry)
	for _, own := range append([]string{"runtime_path", "runtime_type", "runtime_config_path"}, overrides...) {
		delete(model, own)
	}
	return model
}

func (c *config) checkDefault(p runtime.Place, w runtime.Want) error {
	name := w.Default
	if name == "" || name == c.release.builtin() || c.handler(name) != nil ||
		slices.ContainsFunc(w.Handlers, func(h runtime.Handler) bool { return h.Name == name }) {
		return nil
	}
	return &runtime.Refusal{File: p.Config, Key: "crio.runtime.default_runtime", Message: fmt.Sprintf("there is no handler %q that could be the default", name)}
}
