// Package openapi checks YAML documents against the OpenAPI v3 files of
// Kubernetes, as strictly as the API server with field validation "Strict", and
// somewhat more.
package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schema is the used part of an OpenAPI v3 schema.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	Additional *schema           `json:"additionalProperties"`
	Required   []string          `json:"required"`
	AllOf      []schema          `json:"allOf"`
	OneOf      []schema          `json:"oneOf"`
	MapKeys    []string          `json:"x-kubernetes-list-map-keys"`
	Kinds      []groupVersion    `json:"x-kubernetes-group-version-kind"`
	Open       bool              `json:"x-kubernetes-preserve-unknown-fields"`
}

type groupVersion struct{ Group, Version, Kind string }

// Schemas are the schemas of an API.
type Schemas struct {
	byName map[string]schema
	byKind map[groupVersion]string
}

// Wrong is an error in a file.
type Wrong struct {
	Line int
	Text string
}

// Load reads all files of a folder such as api/openapi-spec/v3.
func Load(dir string) (*Schemas, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no OpenAPI files in %s", dir)
	}
	s := &Schemas{byName: map[string]schema{}, byKind: map[groupVersion]string{}}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var document struct {
			Components struct{ Schemas map[string]schema }
		}
		if err := json.Unmarshal(data, &document); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for name, one := range document.Components.Schemas {
			s.byName[name] = one
			// Some, such as DeleteOptions, belong to every group.
			if len(one.Kinds) == 1 {
				s.byKind[one.Kinds[0]] = name
			}
		}
	}
	return s, nil
}

// Define adds the kinds of the CustomResourceDefinitions in a file.
func (s *Schemas) Define(crd []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(crd))
	for {
		var d definition
		switch err := decoder.Decode(&d); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		for _, v := range d.Spec.Versions {
			text, err := json.Marshal(v.Schema["openAPIV3Schema"])
			if err != nil {
				return err
			}
			var one schema
			if err := json.Unmarshal(text, &one); err != nil {
				return err
			}
			one.Properties["metadata"] = schema{Ref: "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
			kind := groupVersion{Group: d.Spec.Group, Version: v.Name, Kind: d.Spec.Names.Kind}
			name := d.Spec.Group + "/" + v.Name + "." + kind.Kind
			s.byName[name], s.byKind[kind] = one, name
		}
	}
}

// definition is the used part of a CustomResourceDefinition.
type definition struct {
	Spec struct {
		Group    string
		Names    struct{ Kind string }
		Versions []struct {
			Name   string
			Schema map[string]any
		}
	}
}

// Check checks each document of a file and returns their number.
func (s *Schemas) Check(data []byte) (documents int, wrong []Wrong) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return documents, wrong
		case err != nil:
			return documents, append(wrong, Wrong{1, err.Error()})
		}
		if isEmpty(document) {
			continue
		}
		documents++
		c := &checker{schemas: s}
		c.document(document.Content[0])
		wrong = append(wrong, c.wrong...)
	}
}

// isEmpty reports whether a document has only comments.
func isEmpty(document yaml.Node) bool {
	return len(document.Content) == 0 || document.Content[0].Tag == "!!null"
}

type checker struct {
	schemas *Schemas
	wrong   []Wrong
}

func (c *checker) report(n *yaml.Node, path, format string, args ...any) {
	c.wrong = append(c.wrong, Wrong{n.Line, strings.TrimPrefix(path, ".") + ": " + fmt.Sprintf(format, args...)})
}

func (c *checker) document(n *yaml.Node) {
	text := func(name string) string {
		for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				return n.Content[i+1].Value
			}
		}
		return ""
	}
	kind := groupVersion{Version: text("apiVersion"), Kind: text("kind")}
	if group, version, is := strings.Cut(kind.Version, "/"); is {
		kind.Group, kind.Version = group, version
	}
	name, known := c.schemas.byKind[kind]
	if !known {
		c.report(n, kind.Kind, "there is no %q of apiVersion %q in this Kubernetes", kind.Kind, text("apiVersion"))
		return
	}
	c.value(n, "", schema{Ref: name})
}

// resolve follows a reference, which stands alone or in an allOf of one.
func (c *checker) resolve(s schema) schema {
	for {
		switch {
		case s.Ref != "":
			s = c.schemas.byName[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		case len(s.AllOf) == 1 && s.Type == "":
			s = s.AllOf[0]
		default:
			return s
		}
	}
}

func (c *checker) value(n *yaml.Node, path string, s schema) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		c.report(n, path, "anchors and aliases are not for manifests")
		return
	}
	s = c.resolve(s)
	switch {
	case len(s.OneOf) > 0:
		c.oneOf(n, path, s)
	case s.Type == "object" || len(s.Properties) > 0:
		c.object(n, path, s)
	case s.Type == "array":
		c.array(n, path, s)
	case s.Type != "":
		c.scalar(n, path, s.Type)
	}
}

func (c *checker) oneOf(n *yaml.Node, path string, s schema) {
	var types []string
	for _, one := range s.OneOf {
		if hasType(n, one.Type) {
			c.ambiguous(n, path)
			return
		}
		types = append(types, one.Type)
	}
	c.report(n, path, "%s is wanted, this is %s", strings.Join(types, " or "), describe(n))
}

func (c *checker) object(n *yaml.Node, path string, s schema) {
	if n.Kind != yaml.MappingNode {
		c.report(n, path, "an object is wanted, this is %s", describe(n))
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := path + "." + key.Value
		if seen[key.Value] {
			c.report(key, at, "given twice")
		}
		seen[key.Value] = true
		if property, known := s.Properties[key.Value]; known {
			c.value(value, at, property)
			continue
		}
		switch {
		case s.Additional != nil:
			c.ambiguous(key, at)
			c.value(value, at, *s.Additional)
		case len(s.Properties) > 0 && !s.Open:
			c.report(key, at, "there is no such field")
		}
	}
	for _, name := range s.Required {
		if !seen[name] {
			c.report(n, path+"."+name, "missing")
		}
	}
}

func (c *checker) array(n *yaml.Node, path string, s schema) {
	if n.Kind != yaml.SequenceNode {
		c.report(n, path, "a list is wanted, this is %s", describe(n))
		return
	}
	seen := map[string]bool{}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		if s.Items != nil {
			c.value(item, at, *s.Items)
		}
		if len(s.MapKeys) == 0 {
			continue
		}
		if id := identity(item, s.MapKeys); seen[id] {
			c.report(item, at, "another item has the same %s", strings.Join(s.MapKeys, ", "))
		} else {
			seen[id] = true
		}
	}
}

// identity returns the values of the fields that identify an item of a list.
func identity(n *yaml.Node, keys []string) string {
	var parts []string
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if slices.Contains(keys, n.Content[i].Value) {
			parts = append(parts, n.Content[i].Value+"="+n.Content[i+1].Value)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func (c *checker) scalar(n *yaml.Node, path, want string) {
	if !hasType(n, want) {
		c.report(n, path, "a %s is wanted, this is %s", want, describe(n))
		return
	}
	c.ambiguous(n, path)
}

// ambiguous reports words that are a string here but a boolean for kubectl, whose
// YAML is version 1.1.
func (c *checker) ambiguous(n *yaml.Node, path string) {
	if n.Kind != yaml.ScalarNode || n.Style != 0 || n.Tag != "!!str" {
		return
	}
	switch strings.ToLower(n.Value) {
	case "y", "n", "yes", "no", "on", "off":
		c.report(n, path, "%s is a boolean in YAML 1.1; quote it", n.Value)
	}
}

func hasType(n *yaml.Node, want string) bool {
	if n.Kind != yaml.ScalarNode {
		return false
	}
	switch want {
	case "string":
		return n.Tag == "!!str" || n.Tag == "!!timestamp"
	case "integer":
		return n.Tag == "!!int"
	case "number":
		return n.Tag == "!!int" || n.Tag == "!!float"
	case "boolean":
		return n.Tag == "!!bool"
	}
	return false
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "an object"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q (%s)", n.Value, strings.TrimPrefix(n.Tag, "!!"))
}
