package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gpuready/gpuready/deviceplugin/config"
)

// Value is one setting in force.
type Value struct {
	Path string // in the configuration file: "flags.migStrategy"
	JSON string // the value as JSON
	From string // the file, or "default"
}

// Values returns the settings in force, sorted by path.
func (o *Options) Values() ([]Value, error) {
	inForce, err := leafValues(o.Config)
	if err != nil {
		return nil, err
	}
	fromFile, err := leafValues(o.file)
	if err != nil {
		return nil, err
	}
	var all []Value
	for _, path := range slices.Sorted(maps.Keys(inForce)) {
		from := "default"
		if _, set := fromFile[path]; set {
			from = o.ConfigFile
		}
		all = append(all, Value{path, inForce[path], from})
	}
	return all, nil
}

// listChanges returns one line for each setting that differs, with its new origin. Without
// previous settings it lists those that are not defaults.
func listChanges(previous, current *Options) []string {
	before := map[string]string{}
	if previous != nil {
		before, _ = leafValues(previous.Config) // it always encodes
	}
	after, _ := leafValues(current.Config)
	var all []string
	both := maps.Clone(before)
	maps.Copy(both, after)
	for _, path := range slices.Sorted(maps.Keys(both)) {
		if before[path] == after[path] || previous == nil && current.origins()[path] == "" {
			continue
		}
		line := path + ": "
		if previous != nil {
			line += orNone(before[path]) + " → "
		}
		line += orNone(after[path])
		if origin := current.origins()[path]; origin != "" {
			line += " (" + origin + ")"
		}
		all = append(all, line)
	}
	if len(all) == 0 {
		return []string{"none"}
	}
	return all
}

// orNone returns value, or "nothing" for a setting that is absent.
func orNone(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// origins returns the origin of each setting that differs from its default.
func (o *Options) origins() map[string]string {
	all := map[string]string{}
	fromFile, _ := leafValues(o.file)
	for path := range fromFile {
		all[path] = o.ConfigFile
	}
	for flag, path := range filePaths {
		if origin := o.origin[flag]; origin != "" {
			all[path] = origin
		}
	}
	return all
}

// leafValues returns each value of a configuration as JSON, by its path.
func leafValues(c *config.Config) (map[string]string, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var generic any
	if err := decoder.Decode(&generic); err != nil {
		return nil, err
	}
	all := map[string]string{}
	flattenInto(all, "", generic)
	return all, nil
}

// flattenInto adds each value of a decoded JSON document to all, by its path. A list of values
// is one value; a list of objects has paths such as resources.gpus[0].name.
func flattenInto(all map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			at := key
			if path != "" {
				at = path + "." + key
			}
			flattenInto(all, at, value)
		}
		return
	case []any:
		for i, item := range v {
			if _, keys := item.(map[string]any); keys {
				flattenInto(all, fmt.Sprintf("%s[%d]", path, i), item)
				continue
			}
			text, _ := json.Marshal(v) // it came from JSON
			all[path] = string(text)
			return
		}
		return
	}
	text, _ := json.Marshal(v)
	all[path] = string(text)
}
