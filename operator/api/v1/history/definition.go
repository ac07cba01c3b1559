package history

import (
	"errors"
	"slices"

	"sigs.k8s.io/yaml"
)

// Paths returns the paths of the fields of spec in a CustomResourceDefinition of ClusterPolicy, of
// apiextensions.k8s.io/v1 or, as of early releases, v1beta1.
func Paths(definition []byte) ([]string, error) {
	var crd struct {
		Spec struct {
			Validation schema
			Versions   []struct {
				Storage bool
				Schema  schema
			}
		}
	}
	if err := yaml.Unmarshal(definition, &crd); err != nil {
		return nil, err
	}
	all := crd.Spec.Validation.OpenAPIV3Schema
	for _, v := range crd.Spec.Versions {
		if v.Storage && v.Schema.OpenAPIV3Schema != nil {
			all = v.Schema.OpenAPIV3Schema
		}
	}
	if all == nil || len(all.Properties["spec"].Properties) == 0 {
		return nil, errors.New("it is no definition of a resource whose spec has a schema")
	}
	var paths []string
	for name, child := range all.Properties["spec"].Properties {
		paths = append(paths, child.paths(name)...)
	}
	slices.Sort(paths)
	return slices.Compact(paths), nil
}

type schema struct{ OpenAPIV3Schema *property }

// property is the part of an OpenAPI schema that names fields.
type property struct {
	Properties           map[string]property
	Items                *property
	AdditionalProperties any
}

func (p property) paths(at string) []string {
	var all []string
	switch {
	case p.Items != nil:
		all = []string{at + "[]"}
		for name, child := range p.Items.Properties {
			all = append(all, child.paths(at+"[]."+name)...)
		}
	case len(p.Properties) == 0 && p.AdditionalProperties != nil && p.AdditionalProperties != false:
		all = []string{at + ".*"}
	default:
		all = []string{at}
		for name, child := range p.Properties {
			all = append(all, child.paths(at+"."+name)...)
		}
	}
	return all
}
