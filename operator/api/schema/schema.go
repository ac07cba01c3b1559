// Package schema treats a ClusterPolicy or an NVIDIADriver as an API server does when one is applied with strict
// validation, but without a server: it refuses unknown fields, fills in defaults and validates
// types, bounds, lists and CEL rules.
package schema

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
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

// Schema is the schema of ClusterPolicy or NVIDIADriver, as an API server uses it.
type Schema struct {
	Structural *structural.Structural
	types      schemavalidation.SchemaValidator
	rules      *cel.Validator
}

// Load loads the deployed definition of ClusterPolicy. It returns an error if an API server would
// refuse the definition itself: for CEL rules that do not compile or are too expensive, or for
// invalid defaults.
func Load() (*Schema, error) { return load(deployments.ClusterPolicyCRD(), v1.Version) }

// LoadDriver loads the deployed definition of NVIDIADriver.
func LoadDriver() (*Schema, error) { return load(deployments.NVIDIADriverCRD(), v1alpha1.Version) }

func load(definition []byte, version string) (*Schema, error) {
	var outer apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(definition, &outer); err != nil {
		return nil, err
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&outer)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&outer.Spec)
	outer.Status.StoredVersions = []string{version}
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&outer, &crd, nil); err != nil {
		return nil, err
	}
	if errs := validation.ValidateCustomResourceDefinition(context.Background(), &crd); len(errs) != 0 {
		return nil, errs.ToAggregate()
	}
	props, err := apiextensions.GetSchemaForVersion(&crd, version)
	if err != nil {
		return nil, err
	}
	shape, err := structural.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	types, _, err := schemavalidation.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	return &Schema{shape, types, cel.NewValidator(shape, true, celconfig.PerCallLimit)}, nil
}

// Default fills in the defaults of object.
func (s *Schema) Default(object map[string]any) {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.Structural)
	defaulting.Default(object, s.Structural)
}

// Validate lists the errors in an object with defaults.
func (s *Schema) Validate(ctx context.Context, object map[string]any) field.ErrorList {
	errs := schemavalidation.ValidateCustomResource(nil, object, s.types)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.Structural, object)...)
	if slices.ContainsFunc(errs, blocks) {
		return errs
	}
	more, _ := s.rules.Validate(ctx, nil, s.Structural, object, nil, celconfig.RuntimeCELCostBudget)
	return append(errs, more...)
}

// blocks reports whether an API server evaluates no CEL rules after an error.
func blocks(err *field.Error) bool {
	switch err.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

// Admit decodes a policy from YAML or JSON as the API server would store it, or returns the
// refusal.
func (s *Schema) Admit(ctx context.Context, text []byte) (*v1.ClusterPolicy, error) {
	object, err := s.admit(ctx, text)
	if err != nil {
		return nil, err
	}
	return Decode(object)
}

// AdmitDriver does the same with an NVIDIADriver.
func (s *Schema) AdmitDriver(ctx context.Context, text []byte) (*v1alpha1.NVIDIADriver, error) {
	object, err := s.admit(ctx, text)
	if err != nil {
		return nil, err
	}
	d := &v1alpha1.NVIDIADriver{}
	return d, decode(object, d)
}

func (s *Schema) admit(ctx context.Context, text []byte) (map[string]any, error) {
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
	return object, nil
}

// Check returns the API server's refusal of a policy that the operator writes: its status has
// bounds, too.
func (s *Schema) Check(ctx context.Context, p *v1.ClusterPolicy) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	_, err = s.Admit(ctx, text)
	return err
}

// Unknown removes the fields that are not in the schema, and lists them.
func (s *Schema) Unknown(object map[string]any) []string {
	return pruning.PruneWithOptions(object, s.Structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
}

// Decode decodes an object as the operator's cache does. If it fails for an object that the schema
// accepts, the operator could no longer read its policies.
func Decode(object map[string]any) (*v1.ClusterPolicy, error) {
	p := &v1.ClusterPolicy{}
	return p, decode(object, p)
}

func decode(object map[string]any, into any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the schema accepts what the Go types cannot hold: %w", err)
	}
	return nil
}
