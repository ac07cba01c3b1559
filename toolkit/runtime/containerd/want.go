package containerd

import (
	"maps"
	"slices"

	"github.com/gpuready/gpuready/toolkit/runtime"
	"github.com/gpuready/gpuready/toolkit/runtime/tomledit"
)

// set is a key below the CRI plugin's table and its required value.
type set = tomledit.Leaf

const runcV2 = "io.containerd.runc.v2"

// missing returns the keys that have to be set for the wanted abilities, in the order
// in which people would write them.
func (c *config) missing(w runtime.Want) ([]set, error) {
	sets, err := c.missingCDI(w)
	if err != nil {
		return nil, err
	}
	runtimes, err := c.table("containerd", "runtimes")
	if err != nil {
		return nil, err
	}
	fallback, err := c.text("containerd", "default_runtime_name")
	if err != nil {
		return nil, err
	}
	for i, h := range w.Handlers {
		if i == 0 && len(runtimes) == 0 && !c.release.keepsRunc() && h.Name != "runc" {
			// runc is built in only if no handler is named.
			sets = append(sets, set{Path: []string{"containerd", "runtimes", "runc", "runtime_type"}, Value: runcV2})
		}
		more, err := c.missingHandler(h, runtimes, fallback)
		if err != nil {
			return nil, err
		}
		sets = append(sets, more...)
	}
	if w.Default == "" || w.Default == fallback {
		return sets, nil
	}
	if w.Default == "runc" && fallback == "" {
		return sets, nil
	}
	if old, err := c.text("containerd", "default_runtime", "runtime_type"); err != nil || old != "" {
		return nil, c.refuse("this old table decides on the default, whatever default_runtime_name says; replace it by a handler in containerd.runtimes and default_runtime_name", "containerd", "default_runtime")
	}
	return append(sets, set{Path: []string{"containerd", "default_runtime_name"}, Value: w.Default}), nil
}

func (c *config) missingCDI(w runtime.Want) ([]set, error) {
	if !w.CDI {
		return nil, nil
	}
	var sets []set
	value, ok := c.get("enable_cdi")
	on, isBool := value.(bool)
	switch {
	case c.release.cdiAlways():
	case ok && !isBool:
		return nil, c.refuse("this is neither true nor false; correct it", "enable_cdi")
	case ok && !on || !ok && !c.release.cdiDefault():
		sets = append(sets, set{Path: []string{"enable_cdi"}, Value: true})
	}
	dirs := runtime.DefaultCDIDirs // if no file sets it
	if value, ok := c.get("cdi_spec_dirs"); ok {
		if dirs, ok = tomledit.Strings(value); !ok {
			return nil, c.refuse("this is no list of strings; correct it", "cdi_spec_dirs")
		}
	}
	if missing := runtime.MissingDirs(dirs, w.CDIDirs); len(missing) > 0 {
		sets = append(sets, set{Path: []string{"cdi_spec_dirs"}, Value: slices.Concat(dirs, missing)})
	}
	return sets, nil
}

func (c *config) missingHandler(h runtime.Handler, runtimes map[string]any, fallback string) ([]set, error) {
	at := []string{"containerd", "runtimes", h.Name}
	under := func(keys ...string) []string { return append(slices.Clone(at), keys...) }
	handler, err := c.table(at...)
	if err != nil {
		return nil, err
	}
	if _, err := c.table(under("options")...); err != nil {
		return nil, err
	}
	kind, err := c.text(under("runtime_type")...)
	if err != nil {
		return nil, err
	}
	program, err := c.text(under("options", "BinaryName")...)
	if err != nil {
		return nil, err
	}
	var sets []set
	builtin := h.Name == "runc" && kind == "" && c.release.keepsRunc()
	if kind != runcV2 && !builtin {
		sets = append(sets, set{Path: under("runtime_type"), Value: runcV2})
	}
	if len(handler) == 0 {
		model, err := c.model(runtimes, fallback)
		if err != nil {
			return nil, err
		}
		sets = append(sets, tomledit.Leaves(model, at...)...)
	}
	if program != h.Program {
		sets = append(sets, set{Path: under("options", "BinaryName"), Value: h.Program})
	}
	return sets, nil
}

// model returns the settings that a new handler copies from the default one, without
// those that identify it. SystemdCgroup is the reason: without it a container lands in
// another cgroup than its pod.
func (c *config) model(runtimes map[string]any, fallback string) (map[string]any, error) {
	if _, ok := runtimes[fallback]; !ok && fallback != "" && c.ours != nil {
		// The default is already ours, set by a file that is read after our drop-in.
		// It was made from the default of that time, so it stays.
		before := &config{release: c.release, files: c.files, cri: c.ours}
		if entry, err := before.table("containerd", "runtimes", fallback); err == nil && entry != nil {
			options, _ := entry["options"].(map[string]any)
			return withoutIdentity(entry, options), nil
		}
	}
	candidates := [][]string{{"containerd", "runtimes", "runc"}}
	if _, ok := runtimes[fallback]; ok {
		candidates = slices.Insert(candidates, 0, []string{"containerd", "runtimes", fallback})
	}
	if old, err := c.text("containerd", "default_runtime", "runtime_type"); err != nil {
		return nil, err
	} else if old != "" {
		candidates = slices.Insert(candidates, 0, []string{"containerd", "default_runtime"})
	}
	for _, at := range candidates {
		from, err := c.table(at...)
		if err != nil {
			return nil, err
		}
		kind, err := c.text(append(slices.Clone(at), "runtime_type")...)
		if err != nil {
			return nil, err
		}
		if kind != runcV2 && (kind != "" || at[len(at)-1] != "runc") {
			continue // kata, gvisor: their options are not runc's
		}
		options, err := c.table(append(slices.Clone(at), "options")...)
		if err != nil {
			return nil, err
		}
		return withoutIdentity(from, options), nil
	}
	return nil, nil
}

// withoutIdentity returns a handler's settings without those that identify it.
func withoutIdentity(handler, options map[string]any) map[string]any {
	model := maps.Clone(handler)
	if model == nil {
		model = map[string]any{}
	}
	for _, own := range []string{"runtime_type", "runtime_path", "runtime_engine", "runtime_root", "options"} {
		delete(model, own)
	}
	options = maps.Clone(options)
	delete(options, "BinaryName")
	if len(options) > 0 {
		model["options"] = options
	}
	return model
}

func (c *config) get(key ...string) (any, bool) { return tomledit.Lookup(c.cri, key...) }

// table returns the table at a key, nil if there is none. It refuses the key if a
// value on the path is not a table.
func (c *config) table(key ...string) (map[string]any, error) {
	at := c.cri
	for n := range key {
		value, ok := at[key[n]]
		if !ok {
			return nil, nil
		}
		if at, ok = value.(map[string]any); !ok {
			return nil, c.refuse("this is no table; correct it", key[:n+1]...)
		}
	}
	return at, nil
}

func (c *config) text(key ...string) (string, error) {
	value, ok := c.get(key...)
	if !ok {
		return "", nil
	}
	s, ok := value.(string)
	if !ok {
		return "", c.refuse("this is no string; correct it", key...)
	}
	return s, nil
}

// refuse names the last file that has the key of the CRI table.
func (c *config) refuse(message string, key ...string) error {
	if f, at, ok := c.find(key); ok {
		return f.Refuse(message, at...)
	}
	return &runtime.Refusal{File: c.files[0].Path, Message: message}
}

// find returns the last file that sets a key of the CRI table, and the key's path in
// that file.
func (c *config) find(key []string) (file, []string, bool) {
	for _, f := range slices.Backward(c.files) {
		for _, name := range []string{criV3, criV2, criV1} {
			at := append([]string{"plugins", name}, key...)
			if _, ok := f.Doc.Get(at...); ok {
				return f, at, true
			}
		}
	}
	return file{}, nil, false
}
