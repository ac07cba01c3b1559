// Package schematest does to a ClusterPolicy, in the test's own process, what an API
// server does when one is applied with strict validation: it refuses unknown fields,
// fills in defaults and validates types, bounds, lists and CEL rules.
package schematest

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/deployments/crds"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// Schema is ClusterPolicy's, as an API server holds it.
type Schema struct {
	Structural *schema.Structural
	types      schemavalidation.SchemaValidator
	rules      *cel.Validator
}

// Load makes one of the definition that is deployed. What an API server would refuse
// about the definition itself is an error: CEL rules that do not compile or may cost too
// much, defaults that are not valid.
func Load() (*Schema, error) {
	var outer apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crds.ClusterPolicies(), &outer); err != nil {
		return nil, err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&outer)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&outer.Spec)
	outer.Status.StoredVersions = []string{v1.Version}
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&outer, &crd, nil); err != nil {
		return nil, err
	}
	if errs := validation.ValidateCustomResourceDefinition(context.Background(), &crd); len(errs) != 0 {
		return nil, errs.ToAggregate()
	}
	props, err := apiextensions.GetSchemaForVersion(&crd, v1.Version)
	if err != nil {
		return nil, err
	}
	structural, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	types, _, err := schemavalidation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	return &Schema{structural, types, cel.NewValidator(structural, true, celconfig.PerCallLimit)}, nil
}

// Default fills in what object leaves out.
func (s *Schema) Default(object map[string]any) {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.Structural)
	defaulting.Default(object, s.Structural)
}

// Validate lists what is wrong with an object that was defaulted.
func (s *Schema) Validate(ctx context.Context, object map[string]any) field.ErrorList {
	errs := schemavalidation.ValidateCustomResource(nil, object, s.types)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.Structural, object)...)
	if slices.ContainsFunc(errs, blocks) {
		return errs
	}
	more, _ := s.rules.Validate(ctx, nil, s.Structural, object, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, more...)
}

// blocks tells of an error after which an API server does not ask CEL rules.
func blocks(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

// Admit is a policy of this YAML or JSON as the API server would keep it, or why it would
// refuse it.
func (s *Schema) Admit(ctx context.Context, text []byte) (*v1.ClusterPolicy, error) {
	var object map[string]any
	if err := utilyaml.UnmarshalStrict(text, &object); err != nil {
		return nil, err
	}
	if unknown := s.Unknown(object); len(unknown) != 0 {
		return nil, fmt.Errorf("unknown field %q", unknown)
	}
	s.Default(object)
	if errs := s.Validate(ctx, object); len(errs) != 0 {
		return nil, errs.ToAggregate()
	}
	return Decode(object)
}

// Check says why the API server would refuse a policy that the operator writes: its status
// has bounds, too.
func (s *Schema) Check(ctx context.Context, p *v1.ClusterPolicy) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = s.Admit(ctx, text)
	return err
}

// Unknown removes the fields that the schema does not have, and lists them.
func (s *Schema) Unknown(object map[string]any) []string {
	return pruning.PruneWithOptions(object, s.Structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
}

// Decode is the object as the operator's cache has it. An error here, of an object that
// the schema accepts, is an operator that cannot read its policies any more.
func Decode(object map[string]any) (*v1.ClusterPolicy, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	p := &v1.ClusterPolicy{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("the schema accepts what the Go types cannot hold: %w", err)
	}
	return p, nil
}
