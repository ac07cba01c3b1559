// The chart of Node Feature Discovery (NFD), in the folder charts of gpuready's chart.

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"sigs.k8s.io/yaml"
)

// sourceAnnotation is the annotation in Chart.yaml with the Go module and version that NFD's chart is copied
// from. The module mirror has it even if the repository of NFD's charts cannot be reached.
const sourceAnnotation = "gpuready.io/node-feature-discovery"

// nfdSum is the hash of that module, as in go.sum.
const nfdSum = "h1:9CYm16vjSIbNO5Z1Y67rcrfy51YWmy3+6wjiWzJbrC4="

// nfdFolder is the folder of NFD's chart in ours.
const nfdFolder = "charts/node-feature-discovery"

// changed is the notice in each file of NFD's chart that differs from the original, which its licence requires.
const changed = "Changed for gpuready: the configuration may be a text."

// needed matches the files of NFD's chart that an installation needs.
var needed = regexp.MustCompile(`^(Chart\.yaml|values\.yaml|values\.schema\.json|(crds|templates)/.*)$`)

// writeNFD replaces the chart of Node Feature Discovery in the chart in folder dir with that of the Go module
// in Chart.yaml, after checking the module's hash.
func writeNFD(ctx context.Context, dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return err
	}
	var ours chart.Metadata
	if err := yaml.Unmarshal(text, &ours); err != nil || len(ours.Dependencies) != 1 {
		return fmt.Errorf("Chart.yaml: it has %d dependencies, not one: %w", len(ours.Dependencies), err)
	}
	module := ours.Annotations[sourceAnnotation]
	from, err := download(ctx, module)
	if err != nil {
		return err
	}
	files, err := readTree(filepath.Join(from, "deployment/helm/node-feature-discovery"))
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(files, func(f *archive.BufferedFile) bool { return !needed.MatchString(f.Name) })
	if err := requireVersion(files, ours.Dependencies[0].Version); err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	if err := acceptTexts(files); err != nil {
		return fmt.Errorf("%s: %w", module, err)
	}
	licence, err := os.ReadFile(filepath.Join(from, "LICENSE"))
	if err != nil {
		return err
	}
	files = append(files, &archive.BufferedFile{Name: "LICENSE", Data: licence})
	if err := os.RemoveAll(filepath.Join(dir, nfdFolder)); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeFile(filepath.Join(dir, nfdFolder), f.Name, f.Data); err != nil {
			return err
		}
	}
	return nil
}

// download downloads a Go module, checks its hash, and returns its folder in the module cache.
func download(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var m struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &m); err != nil || jsonErr != nil {
		return "", fmt.Errorf("go mod download %s: %s: %w", module, m.Error, errors.Join(err, jsonErr))
	}
	if m.Sum != nfdSum {
		return "", fmt.Errorf("%s has the sum %s, not %s; if it is another version, write its sum into nfdSum of .ci/helm/nfd.go",
			module, m.Sum, nfdSum)
	}
	return m.Dir, nil
}

// requireVersion reports an error unless Chart.yaml in files has the version of the dependency. Helm leaves out
// a dependency of another version.
func requireVersion(files []*archive.BufferedFile, version string) error {
	at := slices.IndexFunc(files, func(f *archive.BufferedFile) bool { return f.Name == "Chart.yaml" })
	if at < 0 {
		return errors.New("it has no Chart.yaml")
	}
	var theirs chart.Metadata
	if err := yaml.Unmarshal(files[at].Data, &theirs); err != nil {
		return err
	}
	if theirs.Version != version {
		return fmt.Errorf("its chart has version %s, and our Chart.yaml depends on %s: change the latter", theirs.Version, version)
	}
	return nil
}

// acceptTexts changes the chart of Node Feature Discovery so that worker.config and master.config may be
// strings, too. Values for NVIDIA's chart before its version 1.9, which had an older NFD, have strings.
func acceptTexts(files []*archive.BufferedFile) error {
	replaced := 0
	for _, name := range []string{"worker", "master"} {
		at := slices.IndexFunc(files, func(f *archive.BufferedFile) bool { return f.Name == "templates/nfd-"+name+"-conf.yaml" })
		value := ".Values." + name + ".config"
		old := "{{- " + value + " | toYaml | nindent 4 }}"
		text := "{{- kindIs \"string\" " + value + " | ternary " + value + " (toYaml " + value + ") | nindent 4 }}"
		if at >= 0 && bytes.Count(files[at].Data, []byte(old)) == 1 {
			data := bytes.Replace(files[at].Data, []byte(old), []byte(text), 1)
			files[at].Data = append([]byte("{{- /* "+changed+" */}}\n"), data...)
			replaced++
		}
	}
	at := slices.IndexFunc(files, func(f *archive.BufferedFile) bool { return f.Name == "values.schema.json" })
	if at < 0 {
		return errors.New("it has no values.schema.json: adapt acceptTexts")
	}
	var s map[string]any
	if err := json.Unmarshal(files[at].Data, &s); err != nil {
		return fmt.Errorf("values.schema.json: %w", err)
	}
	for _, name := range []string{"worker", "master"} {
		config, is := dig(s, "properties", name, "properties", "config")
		if types, ok := config["type"].([]any); is && ok {
			config["type"] = append(types, "string")
			replaced++
		}
	}
	s["$comment"] = changed
	data, err := marshal(s)
	files[at].Data = data
	if replaced != 4 {
		return errors.New("its configurations are not where they were: adapt acceptTexts")
	}
	return err
}

// dig returns the object at a path of names.
func dig(object map[string]any, path ...string) (map[string]any, bool) {
	for _, name := range path {
		next, is := object[name].(map[string]any)
		if !is {
			return nil, false
		}
		object = next
	}
	return object, true
}
