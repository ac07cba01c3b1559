package main

import (
	"encoding/json"
	"fmt"
	"maps"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// schema is a JSON schema.
type schema map[string]any

// chartValues are the chart's own values, which a policy does not have. If a policy has
// a map of the same name, they are added to it.
var chartValues = []string{"global", "platform", "nfd", "crds", "operands", "clusterPolicy", "proxy", "trustedCA",
	"networkPolicy", "podMonitor", "cleanup", "operator", "node-feature-discovery"}

// overrides are schemas that values.yaml cannot express, by the path of the value.
var overrides = map[string]schema{
	// Other charts have their own values there.
	"global":                      {"type": "object", "additionalProperties": true},
	"global.imagePullSecrets":     {"type": "array", "items": objectSchema(schema{"name": schema{"type": "string"}}, "name")},
	"node-feature-discovery":      {"type": "object", "additionalProperties": true},
	"operands.namespace":          {"type": "string", "pattern": "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"},
	"clusterPolicy.name":          {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"},
	"global.registry":             {"type": "string", "pattern": "^([a-zA-Z0-9][a-zA-Z0-9._:/-]*)?$"},
	"operator.replicas":           {"type": "integer", "minimum": 0, "maximum": 5},
	"operator.logging.level":      {"enum": []string{"debug", "info", "warn", "error"}},
	"operator.imagePullPolicy":    {"enum": []string{"Always", "IfNotPresent", "Never"}},
	"operator.imagePullSecrets":   {"type": "array", "items": schema{"type": "string"}},
	"operator.insecureRegistries": {"type": "array", "items": schema{"type": "string"}},
	"operator.affinity":           {"type": "object"},
	"operator.resources":          {"type": "object"},
	"operator.annotations":        texts(),
	"operator.nodeSelector":       texts(),
	"networkPolicy.metricsFrom":   {"type": "array", "items": schema{"type": "object"}},
	"podMonitor.additionalLabels": texts(),
	"cleanup.timeoutSeconds":      {"type": "integer", "minimum": 1, "maximum": 86400},
	"podMonitor.interval":         {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
	"devicePlugin.config.create":  {"type": "boolean"},
	"devicePlugin.config.data":    texts(),
	"operator.tolerations":        {"type": "array", "items": schema{"type": "object"}},
}

func texts() schema {
	return schema{"type": "object", "additionalProperties": schema{"type": "string"}}
}

func objectSchema(properties schema, required ...string) schema {
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// policySpec returns the schema of a ClusterPolicy's spec from its CustomResourceDefinition.
func policySpec(crd []byte) (*apiextensions.JSONSchemaProps, error) {
	var definition apiextensions.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(crd, &definition); err != nil {
		return nil, err
	}
	for _, v := range definition.Spec.Versions {
		if v.Storage {
			spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
			return &spec, nil
		}
	}
	return nil, fmt.Errorf("CustomResourceDefinition %s: no version is stored", definition.Name)
}

// valuesSchema returns values.schema.json. Values that the policy has by the same name
// have the policy's schema; the others have one derived from values.yaml.
func valuesSchema(crd, values []byte) ([]byte, error) {
	spec, err := policySpec(crd)
	if err != nil {
		return nil, err
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict(values, &given); err != nil {
		return nil, err
	}
	properties := schema{}
	for name, field := range spec.Properties {
		properties[name] = translate(&field)
	}
	operator := properties["operator"].(schema)
	for _, name := range chartValues {
		one := infer(name, given[name])
		if name == "operator" {
			maps.Copy(operator["properties"].(schema), one["properties"].(schema))
			one = operator
		}
		properties[name] = one
	}
	plugin := at(properties, "devicePlugin", "config")
	for _, name := range []string{"create", "data"} {
		plugin[name] = overrides["devicePlugin.config."+name]
	}
	// The name in the reference's chart.
	upgrade := at(properties, "driver", "upgradePolicy")
	upgrade["gpuPodDeletion"] = upgrade["podDeletion"]
	all := objectSchema(properties)
	all["$schema"] = "http://json-schema.org/draft-07/schema#"
	all["title"] = "Values of the chart gpuready"
	text, err := json.MarshalIndent(all, "", " ")
	return append(text, '\n'), err
}

// at returns the properties of the schema at a path.
func at(properties schema, path ...string) schema {
	for _, name := range path {
		properties = properties[name].(schema)["properties"].(schema)
	}
	return properties
}

// infer returns a schema derived from a value.
func infer(path string, value any) schema {
	if s, is := overrides[path]; is {
		return s
	}
	switch v := value.(type) {
	case map[string]any:
		properties := schema{}
		for name, one := range v {
			properties[name] = infer(path+"."+name, one)
		}
		return objectSchema(properties)
	case []any:
		return schema{"type": "array"}
	case bool:
		return schema{"type": "boolean"}
	case float64:
		return schema{"type": "integer"}
	}
	return schema{"type": "string"}
}

// translate converts the API server's schema to a JSON schema, without its CEL rules.
func translate(p *apiextensions.JSONSchemaProps) schema {
	s := schema{}
	for key, value := range map[string]any{"type": p.Type, "pattern": p.Pattern} {
		if value != "" {
			s[key] = value
		}
	}
	for key, value := range map[string]*int64{"maxLength": p.MaxLength, "minLength": p.MinLength, "maxItems": p.MaxItems, "minItems": p.MinItems, "maxProperties": p.MaxProperties} {
		if value != nil {
			s[key] = *value
		}
	}
	for key, value := range map[string]*float64{"minimum": p.Minimum, "maximum": p.Maximum} {
		if value != nil {
			s[key] = *value
		}
	}
	if p.XIntOrString {
		return schema{"type": []string{"integer", "string"}}
	}
	if len(p.Enum) > 0 {
		s["enum"] = p.Enum
	}
	if len(p.Required) > 0 {
		s["required"] = p.Required
	}
	if p.Items != nil && p.Items.Schema != nil {
		s["items"] = translate(p.Items.Schema)
	}
	open := p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
	switch {
	case p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
		s["additionalProperties"] = translate(p.AdditionalProperties.Schema)
	case len(p.Properties) > 0 || p.Type == "object":
		properties := schema{}
		for name, one := range p.Properties {
			properties[name] = translate(&one)
		}
		s["properties"] = properties
		s["additionalProperties"] = open
	}
	return s
}
