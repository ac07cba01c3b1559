package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/.ci/schema/openapi"
)

// podAPI has one kind, and definition adds another.
const (
	podAPI = `{"components": {"schemas": {"pod": {"type": "object",
		"x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Pod"}],
		"properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}}}}}`
	definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
spec:
  group: example.com
  names: {kind: Kite}
  versions:
  - name: v1
    schema: {openAPIV3Schema: {type: object, properties: {apiVersion: {type: string}, kind: {type: string}, colour: {type: string}}}}
`
)

// folder creates a folder with the files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

func schemas(t *testing.T) *openapi.Schemas {
	t.Helper()
	s, err := openapi.Load(folder(t, map[string]string{"api.json": podAPI}))
	require.NoError(t, err)
	return s
}

func TestFiles(t *testing.T) {
	dir := folder(t, map[string]string{"b.yaml": "", "a/c.yaml": "", "readme.md": ""})
	files, err := findManifests(dir)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "a/c.yaml"), filepath.Join(dir, "b.yaml")}, files)
	files, err = findManifests(filepath.Join(dir, "b.yaml"))
	require.NoError(t, err)
	require.Len(t, files, 1)

	_, err = findManifests(folder(t, map[string]string{"readme.md": ""}))
	require.ErrorContains(t, err, "no .yaml files at")
	_, err = findManifests(filepath.Join(dir, "nothing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestErrorsHaveFileAndLine(t *testing.T) {
	dir := folder(t, map[string]string{
		"good.yaml": "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\n",
		"bad.yaml":  "apiVersion: v1\nkind: Pod\ncolour: red\n",
	})
	bad := filepath.Join(dir, "bad.yaml")
	r, err := checkManifests(schemas(t), []string{bad, filepath.Join(dir, "good.yaml")})
	require.NoError(t, err)
	require.Equal(t, 3, r.documents)
	require.Len(t, r.wrong, 1)
	require.Contains(t, r.wrong[0], bad+":3: ")

	_, err = checkManifests(schemas(t), []string{filepath.Join(dir, "nothing.yaml")})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestDefineAddsAKind(t *testing.T) {
	dir := folder(t, map[string]string{"crd.yaml": definition, "kite.yaml": "apiVersion: example.com/v1\nkind: Kite\ncolour: red\n"})
	s, kite := schemas(t), []string{filepath.Join(dir, "kite.yaml")}
	r, err := checkManifests(s, kite)
	require.NoError(t, err)
	require.Len(t, r.wrong, 1)
	require.NoError(t, define(s, []string{filepath.Join(dir, "crd.yaml")}))
	r, err = checkManifests(s, kite)
	require.NoError(t, err)
	require.Empty(t, r.wrong)

	err = define(s, []string{filepath.Join(folder(t, map[string]string{"list.yaml": "- a\n"}), "list.yaml")})
	require.ErrorContains(t, err, "list.yaml: ")
}
