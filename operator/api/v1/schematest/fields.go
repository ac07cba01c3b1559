package schematest

import (
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Fields lists the paths of the leaf fields of spec, sorted: "driver.image", "driver.env".
func (s *Schema) Fields() []string {
	var paths []string
	var walk func(s *schema.Structural, path string)
	walk = func(s *schema.Structural, path string) {
		if len(s.Properties) == 0 {
			paths = append(paths, path)
		}
		for name, child := range s.Properties {
			walk(&child, strings.TrimPrefix(path+"."+name, "."))
		}
	}
	spec := s.Structural.Properties["spec"]
	walk(&spec, "")
	slices.Sort(paths)
	return paths
}

// Served lists the paths of the leaf fields of spec that the operator follows: all but the ignored
// ones.
func (s *Schema) Served() []string {
	return slices.DeleteFunc(s.Fields(), func(path string) bool { return FindIgnored(path) != nil })
}

// FindIgnored returns why a field has no effect, or nil if the operator follows it.
func FindIgnored(path string) *v1.IgnoredField {
	for _, f := range v1.IgnoredFields() {
		if f.Without == "" && (path == f.Field || strings.HasPrefix(path, f.Field+".")) {
			return &f
		}
	}
	return nil
}

// HasField reports whether the schema has a field. Its path may contain "[]", for the items of a list,
// and end in "*", for any key of a map.
func (s *Schema) HasField(path string) bool {
	at := s.Structural.Properties["spec"]
	for name := range strings.SplitSeq(strings.ReplaceAll(path, "[]", ".[]"), ".") {
		if at.XPreserveUnknownFields {
			return true
		}
		switch property, ok := at.Properties[name]; {
		case ok:
			at = property
		case name == "[]" && at.Items != nil:
			at = *at.Items
		case name == "*" && at.AdditionalProperties != nil:
			return true
		default:
			return false
		}
	}
	return true
}
