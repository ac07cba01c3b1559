package config_test

import (
	"reflect"
	"strconv"
	"strings"

	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/test/lab/golden"
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

func TestPublishedSchemaIsCurrent(t *testing.T) {
	want, err := schema()
	require.NoError(t, err)
	golden.Require(t, "../../docs/config.schema.json", want)
}

// valid reports whether a file is valid by the schema.
func valid(t *testing.T, data []byte) bool {
	text, err := schema()
	require.NoError(t, err)
	var s spec.Schema
	require.NoError(t, json.Unmarshal(text, &s))
	var file any
	if yaml.Unmarshal(data, &file) != nil {
		return false
	}
	return validate.NewSchemaValidator(&s, nil, "", strfmt.Default).Validate(file).IsValid()
}

func TestEveryKeyIsDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	text, err := schema()
	require.NoError(t, err)
	var root any
	require.NoError(t, json.Unmarshal(text, &root))
	for key := range keys(root) {
		require.Contains(t, string(docs), key)
	}
}

func TestDocumentationExamplesAreAccepted(t *testing.T) {
	var docs []byte
	for _, page := range []string{"configuration.md", "device-plugin.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		docs = append(docs, text...)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(version: v1\n.*?)```").FindAllSubmatch(docs, -1)
	require.Greater(t, len(examples), 4)
	for _, example := range examples {
		_, _, err := config.Parse(example[1], "docs", config.Options{})
		require.NoError(t, err, "%s", example[1])
		require.True(t, valid(t, example[1]))
	}
}

// keys returns the names of all properties of a schema.
func keys(v any) map[string]bool {
	all := map[string]bool{}
	switch v := v.(type) {
	case map[string]any:
		properties, _ := v["properties"].(map[string]any)
		for key := range properties {
			all[key] = true
		}
		for _, below := range v {
			maps.Copy(all, keys(below))
		}
	case []any:
		for _, below := range v {
			maps.Copy(all, keys(below))
		}
	}
	return all
}

// The schema cannot express everything that the plugin checks, but it must accept every
// file that the plugin accepts.
func TestAcceptedFilesAreValid(t *testing.T) {
	files, err := filepath.Glob("testdata/corpus/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	taken := 0
	for _, path := range files {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		if _, _, err := config.Parse(data, path, config.Options{}); err == nil {
			taken++
			require.True(t, valid(t, data), path)
		} else {
			require.False(t, valid(t, data), path)
		}
	}
	require.Greater(t, taken, 50)
}

func TestMisspeltOrOutOfRangeKeysAreInvalid(t *testing.T) {
	for text, want := range map[string]bool{
		"version: v1": true, "flags: null": true, "flags: {plugin: {deviceListStrategy: 'envvar,cdi-cri'}}": true,
		"flags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}": true, "devices: {include: [0, '0:1', '*A100*']}": true,
		"health: {quietPeriod: 5m, xids: [{xid: 79, action: ignore}]}":                                true,
		"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0, '1:0', GPU-a]}]}}": true,
		"version: v2": false, "flag: {}": false, "flags: {migStrategy: all}": false, "flags: {plugin: {deviceListStrategy: [cdi]}}": false,
		"flags: {nvidiaDriverRoot: here}": false, "resources: {gpus: [{name: a}]}": false, "resources: []": false,
		"sharing: {timeSlicing: {resources: [{name: gpu}]}}": false, "sharing: {mps: {resources: [{name: gpu, replicas: 1}]}}": false,
		"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: some}]}}": false, "health: {xids: [{xid: 0}]}": false,
		"devices: {include: [-1]}": false, "imex: {required: maybe}": false,
	} {
		require.Equal(t, want, valid(t, []byte(text)), text)
	}
}
