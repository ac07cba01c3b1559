package main

import (
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
)

func TestPublishedSchemaIsCurrent(t *testing.T) {
	want, err := schema()
	require.NoError(t, err)
	have, err := os.ReadFile("../../../docs/config.schema.json")
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "go generate ./deviceplugin/config writes it anew")
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
	docs, err := os.ReadFile("../../../docs/device-plugin-configuration.md")
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
	docs, err := os.ReadFile("../../../docs/device-plugin-configuration.md")
	require.NoError(t, err)
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
	files, err := filepath.Glob("../testdata/corpus/*.yaml")
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
