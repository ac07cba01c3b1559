package main

import (
	"maps"
	"slices"
)

// changes returns the settings that differ, each with its origin now.
func changes(was, now *options) []string {
	before := map[string]string{}
	if was != nil {
		before, _ = leafValues(was.config) // it always encodes
	}
	after, _ := leafValues(now.config)
	var all []string
	both := maps.Clone(before)
	maps.Copy(both, after)
	for _, path := range slices.Sorted(maps.Keys(both)) {
		if before[path] == after[path] || was == nil && now.origins()[path] == "" {
			continue
		}
		line := path + ": "
		if was != nil {
			line += orNone(before[path]) + " → "
		}
		line += orNone(after[path])
		if origin := now.origins()[path]; origin != "" {
			line += " (" + origin + ")"
		}
		all = append(all, line)
	}
	if len(all) == 0 {
		return []string{"none"}
	}
	return all
}

func orNone(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// origins returns the origin of each setting that differs from its default.
func (o *options) origins() map[string]string {
	all := map[string]string{}
	fromFile, _ := leafValues(o.file)
	for path := range fromFile {
		all[path] = o.configFile
	}
	for flag, path := range inFile {
		if origin := o.origin[flag]; origin != "" {
			all[path] = origin
		}
	}
	return all
}
