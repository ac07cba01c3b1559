package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// valuesDir has a file for each shape of values that users of NVIDIA's chart write, NAME.yaml,
// beside what is expected, NAME.want.yaml, in which APPVERSION stands for that of the chart.
const valuesDir = "../../deployments/testdata/values"

// expected lists the expectations of one file.
type expected struct {
	Policy  object   `json:"policy"`  // part of the policy's spec
	Without []string `json:"without"` // paths that the spec does not have
	Objects []object `json:"objects"` // parts of objects
	Missing []string `json:"missing"` // "Kind name" of objects that are not made
	Notes   []string `json:"notes"`   // all notes but those of the policy's fields
	Refused []string `json:"refused"` // the error's lines
}

func TestValuesOfNVIDIAsChartAreTaken(t *testing.T) {
	files, err := filepath.Glob(valuesDir + "/*.yaml")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, ".want.yaml") })
	require.GreaterOrEqual(t, len(files), 30)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var values object
			var want expected
			readYAML(t, file, &values)
			readYAML(t, filepath.Join(valuesDir, name+".want.yaml"), &want)
			files, err := renderAll(load(t), renderOptions{Namespace: "somewhere", Values: values, Kube: "v1.34.0"})
			if len(want.Refused) > 0 {
				require.ErrorContains(t, err, "\n"+strings.Join(want.Refused, "\n"))
				return
			}
			require.NoError(t, err)
			require.Equal(t, want.Notes, notes(t, files[notesFile]), "notes")
			delete(files, notesFile)
			all := split(t, files)
			policy := object{}
			for _, o := range all {
				require.NotContains(t, want.Missing, fmt.Sprint(o["kind"], " ", o["metadata"].(object)["name"]))
				if o["kind"] == "ClusterPolicy" {
					policy = o["spec"].(object)
				}
			}
			requirePart(t, want.Policy, policy, "spec")
			for _, path := range want.Without {
				require.False(t, hasPath(policy, strings.Split(path, ".")), "spec.%s", path)
			}
			for _, part := range want.Objects {
				at := slices.IndexFunc(all, func(o object) bool {
					return o["kind"] == part["kind"] && o["metadata"].(object)["name"] == part["metadata"].(object)["name"]
				})
				require.GreaterOrEqual(t, at, 0, "%v is not made", part["metadata"])
				requirePart(t, part, all[at], fmt.Sprint(part["kind"]))
			}
		})
	}
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("APPVERSION"), []byte(load(t).AppVersion()))
	require.NoError(t, yaml.UnmarshalStrict(text, into), file)
}

// notes returns the notes about values, without those about fields of the policy: the operator
// has tests of them.
func notes(t *testing.T, text string) []string {
	t.Helper()
	var ignored []struct{ Why string }
	text1, err := os.ReadFile(filepath.Join(dir, "files/ignored-fields.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text1, &ignored))
	_, text, _ = strings.Cut(text, "in NVIDIA's chart:\n\n")
	var all []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !slices.ContainsFunc(ignored, func(f struct{ Why string }) bool { return strings.HasSuffix(line, ": "+f.Why) }) {
			all = append(all, line)
		}
	}
	return all
}

// requirePart requires that a value has at least what part has. An item of a list may be anywhere.
func requirePart(t *testing.T, part, whole any, path string) {
	t.Helper()
	if !isPart(part, whole) {
		have, err := yaml.Marshal(whole)
		require.NoError(t, err)
		want, err := yaml.Marshal(part)
		require.NoError(t, err)
		require.Failf(t, path, "want\n%s\nhave\n%s", want, have)
	}
}

func isPart(part, whole any) bool {
	switch p := part.(type) {
	case map[string]any:
		w, is := whole.(map[string]any)
		for name, one := range p {
			is = is && isPart(one, w[name])
		}
		return is
	case []any:
		w, is := whole.([]any)
		for _, one := range p {
			is = is && slices.ContainsFunc(w, func(item any) bool { return isPart(one, item) })
		}
		return is
	}
	return part == whole
}

func hasPath(o object, path []string) bool {
	value, is := o[path[0]]
	if len(path) == 1 || !is {
		return is
	}
	child, is := value.(object)
	return is && hasPath(child, path[1:])
}

func TestFieldsWithoutAnEffectAreNoted(t *testing.T) {
	files, err := renderAll(load(t), renderOptions{Namespace: "somewhere", Kube: "v1.34.0", Values: object{
		"operator": object{"defaultRuntime": "docker"}, "driver": object{"manager": object{"version": "v0.8.0"}},
		"kataManager": object{"enabled": "true"}, "sandboxWorkloads": object{"enabled": "true"},
	}})
	require.NoError(t, err)
	require.Contains(t, files[notesFile], "\n  driver.manager: ")
	require.Contains(t, files[notesFile], "kataManager: ")
	require.NotContains(t, files[notesFile], "operator.defaultRuntime")
}

// Helm itself refuses what cannot be converted, before it renders anything.
func TestWrongTypesAreRefused(t *testing.T) {
	for _, values := range []object{
		{"driver": object{"usePrecompiled": "yes"}}, {"driver": "on"}, {"driver": object{"env": object{"A": "b"}}}, {"operands": object{"namespace": "Not A Name"}},
		{"mig": object{"strategy": "some"}}, {"operator": object{"replicas": "many"}}, {"operator": object{"logging": object{"level": "-1"}}}, {"nfd": object{"enabled": "true"}},
	} {
		_, err := renderChart(load(t), renderOptions{Namespace: "somewhere", Values: values})
		require.ErrorContains(t, err, "values don't meet the specifications", "%v", values)
	}
}

// A template that did not read the values first would see them as they are given.
func TestTemplatesReadTheValuesFirst(t *testing.T) {
	files, err := readTree(filepath.Join(dir, "templates"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		text := string(f.Data)
		if filepath.Ext(f.Name) == ".tpl" || !strings.Contains(text, ".Values") {
			continue
		}
		first := strings.Index(text, `{{- include "gpuready.readValues" . }}`)
		require.True(t, first >= 0 && first < strings.Index(text, ".Values"), f.Name)
	}
}
