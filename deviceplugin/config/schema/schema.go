package main

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
)

// node is a JSON schema; it is a map, so that its keys are in alphabetical order.
type node = map[string]any

// schema returns the schema of a whole file.
func schema() ([]byte, error) {
	root := schemaOf(reflect.TypeFor[config.Config](), "")
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Configuration of gpu-device-plugin"
	root["description"] = "The configuration file of the NVIDIA device plugin, version v1, with the sections devices and health added."
	root["type"] = "object"
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

// schemaOf returns the schema of a type, with the tags of its field.
func schemaOf(t reflect.Type, tag reflect.StructTag) node {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n := node{}
	switch t {
	case reflect.TypeFor[config.StringList]():
		one := stringSchema("", tag)
		n["anyOf"] = []node{one, {"type": "string", "pattern": ","}, {"type": "array", "items": one, "minItems": 1}}
	case reflect.TypeFor[config.Duration]():
		n["type"] = []string{"string", "integer"}
	case reflect.TypeFor[config.Replicable]():
		device := node{"anyOf": []node{{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^([0-9]+(:[0-9]+)?|(GPU|MIG)-.+)$"}}}
		n["anyOf"] = []node{{"type": "string", "enum": []string{"all"}}, {"type": "integer", "minimum": 1}, {"type": "array", "items": device, "minItems": 1, "uniqueItems": true}}
	case reflect.TypeFor[config.Selector]():
		n["anyOf"] = []node{{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}}
	default:
		n = plainSchema(t, tag)
	}
	if doc := tag.Get("doc"); doc != "" {
		n["description"] = doc
	}
	return n
}

func plainSchema(t reflect.Type, tag reflect.StructTag) node {
	switch t.Kind() {
	case reflect.Bool:
		return node{"type": "boolean"}
	case reflect.String:
		return stringSchema(t.Name(), tag)
	case reflect.Slice:
		// The field's tags apply to the list, not to its values.
		return node{"type": []string{"array", "null"}, "items": schemaOf(t.Elem(), "")}
	case reflect.Struct:
		return objectSchema(t)
	case reflect.Int, reflect.Uint64:
		n := node{"type": "integer"}
		for key, name := range map[string]string{"minimum": "min", "maximum": "max"} {
			if bound, err := strconv.Atoi(tag.Get(name)); err == nil {
				n[key] = bound
			}
		}
		return n
	}
	panic("schema: a field of type " + t.String() + " has no schema; give it one")
}

func stringSchema(name string, tag reflect.StructTag) node {
	n := node{"type": "string"}
	if values := strings.Fields(tag.Get("enum")); len(values) > 0 {
		n["enum"] = values
	}
	if tag.Get("format") == "path" {
		n["pattern"] = "^(/.*)?$"
	}
	if name == reflect.TypeFor[config.Pattern]().Name() {
		n["minLength"] = 1
	}
	return n
}

// objectSchema returns the schema of a section, which may be empty.
func objectSchema(t reflect.Type) node {
	properties, required := node{}, []string{}
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		properties[name] = schemaOf(field.Type, field.Tag)
		if field.Tag.Get("required") != "" {
			required = append(required, name)
		}
	}
	n := node{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		n["type"], n["required"] = "object", required
	}
	return n
}
