package containerd

import "maps"

// merge computes the version and the CRI plugin's table.
func (c *config) merge() error {
	c.version = 1
	if c.release.deep() {
		c.version = c.release.most()
	}
	merged := map[string]any{}
	for _, f := range c.files {
		plugins, err := f.plugins()
		if err != nil {
			return err
		}
		version := f.version
		if c.release.deep() && version <= 1 {
			plugins = renameV1(plugins)
			version = c.version
		}
		if c.release.eachFile() {
			c.cri = override(c.cri, migrate(plugins, f.version))
			continue
		}
		if version != 0 {
			c.version = version
		}
		for name, table := range plugins {
			if inner, ok := table.(map[string]any); ok && c.release.deep() {
				have, _ := merged[name].(map[string]any)
				table = override(have, inner)
			}
			merged[name] = table
		}
	}
	switch {
	case c.release.eachFile():
	case c.release.deep():
		c.cri = migrate(merged, c.version)
	default:
		c.cri, _ = merged[criTable(min(c.version, 2))].(map[string]any)
	}
	return nil
}

// plugins is a file's table of plugins; what is no table is refused.
func (f file) plugins() (map[string]any, error) {
	value, ok := f.doc.Get("plugins")
	if !ok {
		return nil, nil
	}
	plugins, ok := value.(map[string]any)
	if !ok {
		return nil, f.refuse("this is no table; correct it", "plugins")
	}
	for _, name := range []string{criV1, criV2, criV3} {
		if table, ok := plugins[name]; ok {
			if _, ok := table.(map[string]any); !ok {
				return nil, f.refuse("this is no table; correct it", "plugins", name)
			}
		}
	}
	return plugins, nil
}

func renameV1(plugins map[string]any) map[string]any {
	table, ok := plugins[criV1]
	if !ok {
		return plugins
	}
	plugins = maps.Clone(plugins)
	delete(plugins, criV1)
	plugins[criV2] = table
	return plugins
}

// migrate is the CRI table as version 3 has it: of an older file, its table for
// version 2 as far as that for version 3 does not have the keys.
func migrate(plugins map[string]any, version int) map[string]any {
	now, _ := plugins[criV3].(map[string]any)
	if version >= 3 {
		return now
	}
	old, _ := plugins[criV2].(map[string]any)
	out := maps.Clone(old)
	if out == nil {
		out = map[string]any{}
	}
	maps.Copy(out, now)
	inner, _ := now["containerd"].(map[string]any)
	if before, ok := old["containerd"].(map[string]any); ok {
		inner, before = maps.Clone(before), inner
		maps.Copy(inner, before)
		out["containerd"] = inner
	}
	return out
}

// override merges as containerd 2 does: tables key by key, all else is replaced.
func override(to, from map[string]any) map[string]any {
	out := maps.Clone(to)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range from {
		inner, ok := value.(map[string]any)
		have, both := out[key].(map[string]any)
		if ok && both {
			value = override(have, inner)
		}
		out[key] = value
	}
	return out
}

func stringList(value any) ([]string, bool) {
	list, ok := value.([]any)
	out := make([]string, len(list))
	for i, item := range list {
		s, isString := item.(string)
		out[i], ok = s, ok && isString
	}
	return out, ok
}
