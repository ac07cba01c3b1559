package schematest

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	definition "github.com/gpuready/gpuready/operator/api/schema"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"
)

// Random draws a policy of arbitrary content that s accepts, with defaults.
func (s *Schema) Random(t *rapid.T) *v1.ClusterPolicy {
	d := drawer{t, rapid.IntRange(0, 9).Draw(t, "density")}
	spec := s.Structural.Properties["spec"]
	object := map[string]any{
		"apiVersion": v1.GroupVersion().String(),
		"kind":       v1.Kind,
		"metadata":   map[string]any{"name": "random"},
		"spec":       d.object(&spec, "spec"),
	}
	s.Default(object)
	for errs := s.Validate(context.Background(), object); len(errs) != 0; errs = s.Validate(context.Background(), object) {
		for _, err := range errs {
			d.removeFrom(object, err)
		}
		s.Default(object)
	}
	p, err := definition.Decode(object)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// matches finds the expression of a rule that consists of one matches call.
var matches = regexp.MustCompile(`^self\.matches\(r'(.*)'\)$`)

// drawer draws values of schemas.
type drawer struct {
	t *rapid.T
	// density is the number of optional properties that are set, of ten.
	density int
}

func (d drawer) value(s *schema.Structural, name string) any {
	switch {
	case s.ValueValidation != nil && len(s.ValueValidation.Enum) != 0:
		return rapid.SampledFrom(s.ValueValidation.Enum).Draw(d.t, name).Object
	case s.XIntOrString:
		if rapid.Bool().Draw(d.t, name+" is a number") {
			return rapid.Int64Range(0, 1<<40).Draw(d.t, name)
		}
		return d.text(s, name)
	}
	switch s.Type {
	case "object":
		if s.XPreserveUnknownFields {
			return d.kubernetes(name)
		}
		return d.object(s, name)
	case "array":
		return d.array(s, name)
	case "string":
		return d.text(s, name)
	case "boolean":
		return rapid.Bool().Draw(d.t, name)
	}
	return d.integer(s, name)
}

// kubernetes draws an object of Kubernetes' schema, or one that is not.
func (d drawer) kubernetes(name string) map[string]any {
	text := rapid.SampledFrom([]string{
		`{}`, `{"unknown": 1}`, `{"runAsNonRoot": true, "fsGroup": -1}`, `{"fsGroup": 7, "sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}`,
		`{"privileged": false, "runAsUser": 0, "capabilities": {"add": ["SYS_ADMIN"]}}`, `{"privileged": true, "allowPrivilegeEscalation": false}`,
		`{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}`,
		`{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a b", "operator": "In"}]}]}}}`,
		`{"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": {"topologyKey": "zone"}}]}}`,
		`{"fieldRef": {"fieldPath": "spec.nodeName"}}`, `{"secretKeyRef": {"name": "s", "key": "k"}, "fieldRef": {"fieldPath": "spec"}}`, `{"configMapKeyRef": []}`,
	}).Draw(d.t, name)
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		d.t.Fatal(err)
	}
	return object
}

func (d drawer) object(s *schema.Structural, name string) map[string]any {
	object := map[string]any{}
	if s.AdditionalProperties != nil {
		key := rapid.StringMatching(`[a-z]{1,8}(\.[a-z]{1,4}/[a-z-]{1,8}[a-z])?`)
		for _, k := range rapid.SliceOfNDistinct(key, 0, 3, rapid.ID).Draw(d.t, name) {
			object[k] = d.value(s.AdditionalProperties.Structural, name+"."+k)
		}
		return object
	}
	for _, k := range slices.Sorted(maps.Keys(s.Properties)) {
		required := s.ValueValidation != nil && slices.Contains(s.ValueValidation.Required, k)
		if required || rapid.IntRange(0, 9).Draw(d.t, name+" has "+k) < d.density {
			property := s.Properties[k]
			object[k] = d.value(&property, name+"."+k)
		}
	}
	return object
}

func (d drawer) array(s *schema.Structural, name string) []any {
	list := []any{}
	for range rapid.IntRange(0, 3).Draw(d.t, "length of "+name) {
		list = append(list, d.value(s.Items, name+"[]"))
	}
	return list
}

func (d drawer) text(s *schema.Structural, name string) string {
	pattern, longest := "", 64
	if v := s.ValueValidation; v != nil {
		pattern = v.Pattern
		for _, also := range v.AllOf {
			pattern = also.Pattern // the last one is the narrowest
		}
		if v.MaxLength != nil {
			longest = min(longest, int(*v.MaxLength))
		}
	}
	for _, rule := range s.XValidations {
		if m := matches.FindStringSubmatch(rule.Rule); m != nil {
			pattern = m[1]
		}
	}
	if pattern == "" {
		return rapid.StringN(0, longest, longest).Draw(d.t, name)
	}
	return rapid.StringMatching(pattern).Draw(d.t, name)
}

func (d drawer) integer(s *schema.Structural, name string) int64 {
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	if v := s.ValueValidation; v != nil {
		if v.Format == "int32" {
			low, high = math.MinInt32, math.MaxInt32
		}
		if v.Minimum != nil {
			low = int64(*v.Minimum)
		}
		if v.Maximum != nil {
			high = int64(*v.Maximum)
		}
	}
	return rapid.Int64Range(low, high).Draw(d.t, name)
}

// removeFrom removes an invalid field, at most two levels deep in spec. If fields contradict each
// other, it removes one of them.
func (d drawer) removeFrom(object map[string]any, wrong *field.Error) {
	path, _, _ := strings.Cut(wrong.Field, "[")
	fields := strings.Split(path, ".")
	for depth, f := range fields {
		child, ok := object[f].(map[string]any)
		if !ok || depth == 2 {
			delete(object, f)
			return
		}
		object = child
	}
	var named []string
	for _, k := range slices.Sorted(maps.Keys(object)) {
		if strings.Contains(wrong.Detail, k) {
			named = append(named, k)
		}
	}
	delete(object, rapid.SampledFrom(named).Draw(d.t, "what is removed"))
}
