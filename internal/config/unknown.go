package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/suggest"
)

// removeUnknownKeys removes from v the keys without a field in t, and returns them in the order
// of their paths.
func removeUnknownKeys(v any, t reflect.Type, path string) []*Error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if decodesItself(t) {
		return nil
	}
	var found []*Error
	switch v := v.(type) {
	case map[string]any:
		return removeFromMap(v, t, path)
	case []any:
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return nil
		}
		for i, item := range v {
			found = append(found, removeUnknownKeys(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return found
}

// removeFromMap does that for the keys of a map.
func removeFromMap(m map[string]any, t reflect.Type, path string) []*Error {
	var fields map[string]reflect.Type
	switch t.Kind() {
	case reflect.Struct:
		fields = fieldsOf(t)
	case reflect.Map:
	default:
		return nil // a wrong type, which the decoder reports
	}
	var found []*Error
	for _, key := range slices.Sorted(maps.Keys(m)) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		next, known := fields[key]
		switch {
		case fields == nil:
			next = t.Elem()
		case !known:
			found = append(found, &Error{Path: at, Err: errors.New("unknown key" + suggest.Hint(key, slices.Sorted(maps.Keys(fields))))})
			delete(m, key)
			continue
		}
		found = append(found, removeUnknownKeys(m[key], next, at)...)
	}
	return found
}

// findKey returns the paths at which t has the key: somebody may have indented it
// wrong.
func findKey(t reflect.Type, key, path string, depth int) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || decodesItself(t) || depth > 8 {
		return nil
	}
	var places []string
	fields := fieldsOf(t)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		if name == key {
			places = append(places, at)
		}
		places = append(places, findKey(fields[name], key, at, depth+1)...)
	}
	return places
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func decodesItself(t reflect.Type) bool {
	return t.Kind() == reflect.Interface || reflect.PointerTo(t).Implements(unmarshaler)
}

// fieldsOf returns the json names of t's fields, those of embedded structs included.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for field := range visible(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			name = field.Name
		}
		fields[name] = field.Type
	}
	return fields
}

func visible(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for _, field := range reflect.VisibleFields(t) {
			tag := field.Tag.Get("json")
			named := tag != "" && !strings.HasPrefix(tag, ",")
			if tag == "-" || !field.IsExported() || (field.Anonymous && !named) {
				continue
			}
			if !yield(field) {
				return
			}
		}
	}
}
