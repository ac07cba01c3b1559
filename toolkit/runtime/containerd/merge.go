package containerd

import "maps"

// merge computes the version and the CRI plugin's table as the release at hand does.
func (c *config) merge() error {
	c.version = 1
	if c.release.mergesByKey() {
		c.version = c.release.maxVersion()
	}
	merged := map[string]any{}
	for _, f := range c.files {
		plugins, err := f.plugins()
		if err != nil {
			return err
		}
		version := f.version
		if c.release.mergesByKey() && version <= 1 {
			plugins = renameV1(plugins)
			version = c.version
		}
		if c.release.convertsEachFile() {
			c.cri = override(c.cri, migrate(plugins, f.version))
			continue
		}
		if version != 0 {
			c.version = version
		}
		for name, table := range plugins {
			if inner, ok := table.(map[string]any); ok && c.release.mergesByKey() {
				earlier, _ := merged[name].(map[string]any)
				table = override(earlier, inner)
			}
			merged[name] = table
		}
	}
	switch {
	case c.release.convertsEachFile():
	case c.release.mergesByKey():
		c.cri = migrate(merged, c.version)
	default:
		c.cri, _ = merged[criTable(min(c.version, 2))].(map[string]any)
	}
	return nil
}

// plugins returns a file's table of plugins. It refuses a value that is not a table.
func (f file) plugins() (map[string]any, error) {
	value, ok := f.Doc.Get("plugins")
	if !ok {
		return nil, nil
	}
	plugins, ok := value.(map[string]any)
	if !ok {
		return nil, f.Refuse("this is no table; correct it", "plugins")
	}
	for _, name := range []string{criV1, criV2, criV3} {
		if table, ok := plugins[name]; ok {
			if _, ok := table.(map[string]any); !ok {
				return nil, f.Refuse("this is no table; correct it", "plugins", name)
			}
		}
	}
	return plugins, nil
}

// renameV1 returns the plugins with the CRI table of version 1 under its name in
// version 2.
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

// migrate returns the CRI table in the form of version 3. In an older file, the keys
// of its version 3 table take precedence over those of its version 2 table.
func migrate(plugins map[string]any, version int) map[string]any {
	v3, _ := plugins[criV3].(map[string]any)
	if version >= 3 {
		return v3
	}
	v2, _ := plugins[criV2].(map[string]any)
	out := maps.Clone(v2)
	if out == nil {
		out = map[string]any{}
	}
	maps.Copy(out, v3)
	// The inner table "containerd" is merged key by key as well.
	innerV3, _ := v3["containerd"].(map[string]any)
	if innerV2, ok := v2["containerd"].(map[string]any); ok {
		inner := maps.Clone(innerV2)
		maps.Copy(inner, innerV3)
		out["containerd"] = inner
	}
	return out
}

// override merges as containerd 2 does: it merges tables key by key and replaces any
// other value.
func override(to, from map[string]any) map[string]any {
	out := maps.Clone(to)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range from {
		inner, ok := value.(map[string]any)
		existing, both := out[key].(map[string]any)
		if ok && both {
			value = override(existing, inner)
		}
		out[key] = value
	}
	return out
}
