package main

import (
	"maps"
	"slices"
)

// changes says which settings differ, each with where it comes from now.
func changes(was, now *options) []string {
	before := map[string]string{}
	if was != nil {
		before, _ = leaves(was.config) // it is JSON by its making
	}
	after, _ := leaves(now.config)
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

// origins says where each setting that is not as by default comes from.
func (o *options) origins() map[string]string {
	all := map[string]string{}
	fromFile, _ := leaves(o.file)
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
