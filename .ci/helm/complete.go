// Completing the chart's folder: it holds generated files, so that `helm install` works from a clone.

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The CustomResourceDefinitions of ClusterPolicy and NVIDIADriver, in the chart and in controller-gen's folder.
const (
	policyFile = "crds/nvidia.com_clusterpolicies.yaml"
	driverFile = "crds/nvidia.com_nvidiadrivers.yaml"
)

// completeChart writes the generated files of the chart in folder dir: the CustomResourceDefinitions, which
// controller-gen has written into folder made, the schemas of the values, and Node Feature Discovery's chart.
func completeChart(ctx context.Context, made, dir string) error {
	for _, name := range []string{policyFile, driverFile} {
		crd, err := os.ReadFile(filepath.Join(made, name))
		if err != nil {
			return fmt.Errorf("%w: run make generate", err)
		}
		text, err := label(crd)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := writeFile(dir, name, text); err != nil {
			return err
		}
	}
	if err := writeSchemas(dir); err != nil {
		return err
	}
	return writeNFD(ctx, dir)
}

// label returns a CustomResourceDefinition with the label that marks it as installed by gpuready: definitions
// installed by others are left alone. Long lines stay whole, so that a message can be searched for.
func label(crd []byte) ([]byte, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(crd, &document); err != nil {
		return nil, err
	}
	var b strings.Builder
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	encoder.CompactSeqIndent()
	if err := encoder.Encode(&document); err != nil {
		return nil, err
	}
	text := named.ReplaceAllString(b.String(), "\n  labels:\n    app.kubernetes.io/part-of: gpuready$1")
	return []byte(strings.TrimSpace(blank.ReplaceAllString(text, "\n")) + "\n"), nil
}

// named matches the name of a definition.
var named = regexp.MustCompile(`(\n  name: [a-z]+\.nvidia\.com\n)`)

// writeSchemas writes the schemas of the values, made from files of the chart.
func writeSchemas(dir string) error {
	var from sources
	for name, into := range map[string]*[]byte{
		policyFile: &from.policy, "values.yaml": &from.values,
		"files/nvidia-values.yaml": &from.nvidiaValues, "files/ignored-fields.yaml": &from.ignoredFields,
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		*into = text
	}
	schemas, err := newSchemas(from)
	if err != nil {
		return err
	}
	validation, err := schemas.validation()
	if err != nil {
		return err
	}
	data, err := schemas.data()
	if err != nil {
		return err
	}
	if err := writeFile(dir, "values.schema.json", validation); err != nil {
		return err
	}
	return writeFile(dir, "files/values.json", data)
}

// writeFile writes a file below a folder, and creates the folders above it.
func writeFile(dir, name string, data []byte) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
