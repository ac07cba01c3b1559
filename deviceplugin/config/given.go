package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Given returns what the file sets of that which has a flag too: the path of the
// field, and its value as the flag takes it.
func (c *Config) Given() map[string]string {
	given := map[string]string{}
	collect(given, "flags", reflect.ValueOf(c.Flags))
	collect(given, "imex", reflect.ValueOf(c.Imex))
	return given
}

func collect(given map[string]string, at string, v reflect.Value) {
	for field, value := range v.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		path := at + "." + name
		switch {
		case field.Type == reflect.TypeFor[GFDFlags](): // another program's
		case value.Kind() == reflect.Struct:
			collect(given, path, value)
		case value.IsNil():
		case value.Kind() == reflect.Slice:
			var items []string
			for i := range value.Len() {
				items = append(items, fmt.Sprint(value.Index(i)))
			}
			given[path] = strings.Join(items, ",")
		default:
			given[path] = fmt.Sprint(value.Elem())
		}
	}
}
