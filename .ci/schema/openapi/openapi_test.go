package openapi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// api is a small API in the form of Kubernetes'.
const api = `{"components": {"schemas": {
	"meta": {"type": "object", "properties": {"name": {"type": "string"}, "labels": {"type": "object", "additionalProperties": {"type": "string"}}}},
	"port": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
	"container": {"type": "object", "required": ["name"], "properties": {
		"name": {"type": "string"},
		"privileged": {"type": "boolean"},
		"port": {"$ref": "#/components/schemas/port"},
		"env": {"type": "array", "items": {"$ref": "#/components/schemas/meta"}, "x-kubernetes-list-map-keys": ["name"]}
	}},
	"pod": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}], "properties": {
		"apiVersion": {"type": "string"}, "kind": {"type": "string"},
		"metadata": {"allOf": [{"$ref": "#/components/schemas/meta"}], "default": {}},
		"containers": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/container"}]}}
	}}
}}}`

func load(t *testing.T) *Schemas {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "api.json"), []byte(api), 0o644))
	s, err := Load(dir)
	require.NoError(t, err)
	return s
}

func TestValidDocumentPasses(t *testing.T) {
	n, wrong := load(t).Check([]byte(`# only a comment
---
apiVersion: v1
kind: Pod
metadata: { name: a, labels: { x: "yes" } }
containers:
  - { name: c, privileged: true, port: http, env: [{ name: A }, { name: B }] }
  - { name: d, port: 80 }
---
apiVersion: v1
kind: Pod
`))
	require.Empty(t, wrong)
	require.Equal(t, 2, n)
}

func TestErrorsHaveTheirLine(t *testing.T) {
	for document, want := range map[string]Wrong{
		"metadata: { nam: a }":                                   {3, "metadata.nam: there is no such field"},
		"containers:\n  - privileged: true":                      {4, "containers[0].name: missing"},
		"containers: { name: a }":                                {3, "containers: a list is wanted, this is an object"},
		"containers: [{ name: a, privileged: \"true\" }]":        {3, `containers[0].privileged: a boolean is wanted, this is "true" (str)`},
		"containers: [{ name: 1 }]":                              {3, `containers[0].name: a string is wanted, this is "1" (int)`},
		"containers: [{ name: a, port: true }]":                  {3, `containers[0].port: integer or string is wanted, this is "true" (bool)`},
		"containers: [{ name: a, name: a }]":                     {3, "containers[0].name: given twice"},
		"containers: [{ name: a, env: [{name: A}, {name: A}] }]": {3, "containers[0].env[1]: another item has the same name"},
		"metadata: { labels: { x: yes } }":                       {3, "metadata.labels.x: yes is a boolean in YAML 1.1; quote it"},
		"metadata: { labels: { x: true } }":                      {3, `metadata.labels.x: a string is wanted, this is "true" (bool)`},
		"metadata: &m { name: a }":                               {3, "metadata: anchors and aliases are not for manifests"},
		"metadata: name":                                         {3, `metadata: an object is wanted, this is "name" (str)`},
	} {
		_, wrong := load(t).Check([]byte("apiVersion: v1\nkind: Pod\n" + document + "\n"))
		require.Equal(t, []Wrong{want}, wrong, document)
	}
}

func TestUnknownKindAndBrokenYAMLAreErrors(t *testing.T) {
	_, wrong := load(t).Check([]byte("apiVersion: apps/v1\nkind: Pod\n"))
	require.Equal(t, []Wrong{{1, `Pod: there is no "Pod" of apiVersion "apps/v1" in this Kubernetes`}}, wrong)
	_, wrong = load(t).Check([]byte("a: [\n"))
	require.Len(t, wrong, 1)
	require.True(t, strings.HasPrefix(wrong[0].Text, "yaml:"), wrong[0].Text)
}

func TestFolderWithoutSchemasIsAnError(t *testing.T) {
	_, err := Load(t.TempDir())
	require.ErrorContains(t, err, "no OpenAPI files")
}
