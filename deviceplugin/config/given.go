package config

import (
	"fmt"
	"reflect"
	"strings"
)

// FlagValues returns the settings of the file that also have a flag: the path of each field,
// and its value in the form that the flag accepts.
func (c *Config) FlagValues() map[string]string {
	values := map[string]string{}
	collectValues(values, "flags", reflect.ValueOf(c.Flags))
	collectValues(values, "imex", reflect.ValueOf(c.Imex))
	return values
}

// collectValues adds the values of a struct's fields, whose paths begin with at.
func collectValues(values map[string]string, at string, v reflect.Value) {
	for field, value := range v.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		path := at + "." + name
		switch {
		case field.Type == reflect.TypeFor[GFDFlags](): // gpu-feature-discovery's: no flags of this program
		case value.Kind() == reflect.Struct:
			collectValues(values, path, value)
		case value.IsNil():
		case value.Kind() == reflect.Slice:
			var items []string
			for i := range value.Len() {
				items = append(items, fmt.Sprint(value.Index(i)))
			}
			values[path] = strings.Join(items, ",")
		default:
			values[path] = fmt.Sprint(value.Elem())
		}
	}
}
