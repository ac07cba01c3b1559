// The files of the bundle: a ClusterServiceVersion with the operator's Deployment, rights and
// example policy. They come from the static manifests, which are rendered from the chart.

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// object is a document or a part of it.
type object = map[string]any

const name = "gpuready"

// operatorManifest is the manifest, below deployments, that the bundle is made of.
const operatorManifest = "static/operator.yaml"

// write writes the bundle's files to a folder. operator is the path of operatorManifest, or of one with
// the images of a release.
func write(deployments, operator, dir string) error {
	files, err := makeFiles(deployments, operator)
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeFiles returns the bundle's files by name.
func makeFiles(deployments, operator string) (map[string][]byte, error) {
	documents, err := read(operator)
	if err != nil {
		return nil, err
	}
	examples, err := read(filepath.Join(deployments, "static/examples/clusterpolicy.yaml"))
	if err != nil {
		return nil, err
	}
	rights, err := readRights(filepath.Join(deployments, "helm/gpuready/files/rights.yaml"))
	if err != nil {
		return nil, err
	}
	release, err := os.ReadFile(filepath.Join(deployments, "../internal/version/VERSION"))
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(strings.TrimSpace(string(release)), "v")
	csv, err := serviceVersion(version, documents, examples, rights)
	if err != nil {
		return nil, err
	}
	files := map[string]any{
		"manifests/" + name + ".clusterserviceversion.yaml": csv,
		"manifests/nvidia.com_clusterpolicies.yaml":         find(documents, "CustomResourceDefinition", "clusterpolicies.nvidia.com"),
		"manifests/nvidia.com_nvidiadrivers.yaml":           find(documents, "CustomResourceDefinition", "nvidiadrivers.nvidia.com"),
		"manifests/priorityclass.yaml":                      find(documents, "PriorityClass", ""),
		"metadata/annotations.yaml":                         object{"annotations": annotations()},
	}
	all := map[string][]byte{"Containerfile": containerfile()}
	for path, content := range files {
		text, err := yaml.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all[path] = append([]byte("# Made of deployments/static/operator.yaml by `make bundle`.\n"), text...)
	}
	return all, nil
}

// read returns the documents of a file.
func read(path string) ([]object, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []object
	for _, text := range bytes.Split(data, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(text, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if o != nil {
			all = append(all, o)
		}
	}
	return all, nil
}

// find returns the document of a kind with a name ("" for the first), or nil.
func find(documents []object, kind, objectName string) object {
	for _, o := range documents {
		if o["kind"] == kind && (objectName == "" || at(o, "metadata")["name"] == objectName) {
			return o
		}
	}
	return nil
}

// at returns the object at a path, or an empty one.
func at(o object, path ...string) object {
	for _, key := range path {
		next, is := o[key].(object)
		if !is {
			return object{}
		}
		o = next
	}
	return o
}

// annotations returns the bundle's annotations for catalogs.
func annotations() map[string]string {
	return map[string]string{
		"operators.operatorframework.io.bundle.mediatype.v1":       "registry+v1",
		"operators.operatorframework.io.bundle.manifests.v1":       "manifests/",
		"operators.operatorframework.io.bundle.metadata.v1":        "metadata/",
		"operators.operatorframework.io.bundle.package.v1":         name,
		"operators.operatorframework.io.bundle.channels.v1":        "stable",
		"operators.operatorframework.io.bundle.channel.default.v1": "stable",
		"com.redhat.openshift.versions":                            "v4.12",
	}
}

// containerfile returns the Containerfile of the bundle's image.
func containerfile() []byte {
	var b strings.Builder
	b.WriteString("# The bundle's image; made by `make bundle`. Build it in this folder.\nFROM scratch\n")
	text, _ := yaml.Marshal(annotations()) // strings always encode
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		fmt.Fprintf(&b, "LABEL %s=%s\n", key, value)
	}
	b.WriteString("COPY manifests /manifests/\nCOPY metadata /metadata/\n")
	return []byte(b.String())
}

// compact returns JSON indented by two blanks, as consoles show it.
func compact(v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return string(text), err
}
