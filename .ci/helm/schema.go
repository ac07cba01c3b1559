package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// schema is a JSON schema.
type schema map[string]any

// chartValues are the chart's own values, which a policy does not have. If a policy has
// a map of the same name, they are added to it.
var chartValues = []string{"global", "platform", "nfd", "crds", "takeOwnership", "operands", "clusterPolicy", "proxy", "trustedCA",
	"networkPolicy", "podMonitor", "cleanup", "operator", "extraObjects", "node-feature-discovery"}

// digests returns the schema of digests by the names of our images that the chart deploys, itself or by
// the operator.
func digests() schema {
	names := schema{}
	for _, name := range []string{"device-plugin", "dra-driver", "driver-simulator", "operator", "toolkit", "validator"} {
		names[name] = schema{"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
	}
	return schema{"type": "object", "properties": names, "additionalProperties": false}
}

// overrides are schemas that values.yaml cannot express, by the path of the value.
var overrides = map[string]schema{
	"global.imagePullSecrets": {"type": "array", "items": objectSchema(schema{"name": schema{"type": "string"}}, "name")},
	// It has a schema of its own.
	"node-feature-discovery":      {"type": "object"},
	"operands.namespace":          {"type": "string", "pattern": "^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$"},
	"clusterPolicy.name":          {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"},
	"global.registry":             {"type": "string", "pattern": "^([a-zA-Z0-9][a-zA-Z0-9._:/-]*)?$"},
	"operator.replicas":           {"type": "integer", "minimum": 0, "maximum": 5},
	"operator.logging.level":      {"type": "string", "pattern": "^([A-Za-z]+|[0-9]+)$"},
	"operator.imagePullPolicy":    {"type": "string", "enum": []any{"Always", "IfNotPresent", "Never"}},
	"operator.imagePullSecrets":   {"type": "array", "items": schema{"type": "string"}},
	"operator.insecureRegistries": {"type": "array", "items": schema{"type": "string"}},
	"operator.digests":            digests(),
	"operator.affinity":           {"type": "object"},
	"operator.resources":          {"type": "object"},
	"operator.labels":             texts(),
	"operator.annotations":        texts(),
	"operator.nodeSelector":       texts(),
	"operator.tolerations":        {"type": "array", "items": schema{"type": "object"}},
	"operator.env":                {"type": "array", "items": objectSchema(schema{"name": schema{"type": "string"}, "value": schema{"type": "string"}, "valueFrom": schema{}}, "name")},
	"networkPolicy.labels":        texts(),
	"networkPolicy.annotations":   texts(),
	"networkPolicy.metricsFrom":   {"type": "array", "items": schema{"type": "object"}},
	"networkPolicy.ingress.from":  {"type": "array", "items": schema{"type": "object"}},
	"podMonitor.additionalLabels": texts(),
	"cleanup.timeoutSeconds":      {"type": "integer", "minimum": 1, "maximum": 86400},
	"podMonitor.interval":         {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
	"extraObjects":                {"type": "array"},
}

// configs are the operands whose ConfigMap the chart can create: config.create and config.data are
// the chart's, the other fields of config are the policy's.
var configs = []string{"devicePlugin", "migManager", "dcgmExporter"}

// strict are the values that Helm reads itself, as they are.
var strict = []string{"nfd.enabled"}

func texts() schema {
	return schema{"type": "object", "additionalProperties": schema{"type": "string"}}
}

func objectSchema(properties schema, required ...string) schema {
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// chartSchemas are the schemas of the chart's values.
type chartSchemas struct {
	policy   schema         // of the policy's fields
	all      schema         // of all values
	ignored  []string       // paths of the policy's fields without an effect
	defaults map[string]any // of values.yaml
}

// foreignValue is an entry of files/nvidia-values.yaml, or of files/ignored-fields.yaml.
type foreignValue struct {
	Key string `json:"key"`
	As  string `json:"as"` // the value that it sets
}

// sources are the files that the schemas are made from.
type sources struct {
	policy                              []byte // the CustomResourceDefinition of ClusterPolicy
	values, nvidiaValues, ignoredFields []byte
}

// newSchemas returns the schemas. Values that the policy has by the same name have the policy's
// schema; the others have one derived from values.yaml.
func newSchemas(from sources) (*chartSchemas, error) {
	spec, err := policySpec(from.policy)
	if err != nil {
		return nil, err
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict(from.values, &given); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	var foreign, ignored []foreignValue
	if err := errors.Join(yaml.Unmarshal(from.nvidiaValues, &foreign), yaml.Unmarshal(from.ignoredFields, &ignored)); err != nil {
		return nil, err
	}
	c := &chartSchemas{policy: translate(spec), all: translate(spec), defaults: given}
	for _, f := range ignored {
		c.ignored = append(c.ignored, f.Key)
	}
	properties := at(c.all)
	for _, name := range chartValues {
		one := infer(name, given[name])
		if name == "operator" {
			maps.Copy(at(properties["operator"].(schema)), at(one))
			one = properties["operator"].(schema)
		}
		properties[name] = one
	}
	// Other charts have their own values there.
	properties["global"].(schema)["additionalProperties"] = true
	for _, name := range configs {
		config := at(c.all, name, "config")
		config["create"], config["data"] = schema{"type": "boolean"}, schema{}
	}
	// The name in the reference's chart.
	upgrade := at(c.all, "driver", "upgradePolicy")
	upgrade["gpuPodDeletion"] = upgrade["podDeletion"]
	for _, f := range foreign {
		if err := c.add(f); err != nil {
			return nil, fmt.Errorf("files/nvidia-values.yaml: %w", err)
		}
	}
	return c, nil
}

// add adds a value of NVIDIA's chart, unless there is one by that name.
func (c *chartSchemas) add(f foreignValue) error {
	one := schema{}
	if f.As != "" {
		names := strings.Split(f.As, ".")
		target, is := at(c.all, names[:len(names)-1]...)[names[len(names)-1]].(schema)
		if !is {
			return fmt.Errorf("%s: there is no value %s", f.Key, f.As)
		}
		one = target
	}
	names := strings.Split(f.Key, ".")
	properties, open := at(c.all), false
	for _, name := range names[:len(names)-1] {
		if _, is := properties[name]; !is {
			properties[name] = schema{}
			if !open {
				properties[name] = objectSchema(schema{})
			}
		}
		parent := properties[name].(schema)
		if parent["properties"] == nil { // an entry for all below it
			open, parent["properties"], parent["additionalProperties"] = true, schema{}, true
		}
		properties = at(parent)
	}
	if _, is := properties[names[len(names)-1]]; !is {
		properties[names[len(names)-1]] = one
	}
	return nil
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

// at returns the properties of the schema at a path, or nil.
func at(s schema, path ...string) schema {
	properties, _ := s["properties"].(schema)
	for _, name := range path {
		one, _ := properties[name].(schema)
		properties, _ = one["properties"].(schema)
	}
	return properties
}

// validation returns values.schema.json. It accepts what the chart converts (null, "true" for
// true, 570 for "570") and what it drops. The chart refuses unknown keys itself, with a
// suggestion.
func (c *chartSchemas) validation() ([]byte, error) {
	all := c.loosen("", c.all)
	all["$schema"] = "http://json-schema.org/draft-07/schema#"
	all["title"] = "Values of the chart gpuready"
	return marshal(all)
}

// data returns files/values.json, which the chart's templates read: the kinds of all values and
// of the policy's fields, and the defaults.
func (c *chartSchemas) data() ([]byte, error) {
	return marshal(map[string]any{"keys": kind(c.all), "policy": kind(c.policy), "defaults": c.defaults})
}

func marshal(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", " ")
	return append(text, '\n'), err
}

// kind returns the kinds of values in a schema: for an object the kind of each property, "*" being
// any other; for an array a list with the kind of its items; "string", "boolean", "integer",
// "switch" for a string that is on or off, or "any".
func kind(s schema) any {
	properties := at(s)
	rest, open := s["additionalProperties"].(schema)
	switch {
	case len(properties) > 0 || open:
		kinds := map[string]any{}
		for name, one := range properties {
			kinds[name] = kind(one.(schema))
		}
		if open {
			kinds["*"] = kind(rest)
		} else if s["additionalProperties"] == true {
			kinds["*"] = "any"
		}
		return kinds
	case s["type"] == "array" && s["items"] != nil:
		return []any{kind(s["items"].(schema))}
	case s["type"] == "string" && isSwitch(s):
		return "switch"
	case slices.Contains([]any{"string", "boolean", "integer"}, s["type"]):
		return s["type"]
	}
	return "any"
}

func isSwitch(s schema) bool {
	values, _ := s["enum"].([]any)
	return slices.Contains(values, any("on")) && slices.Contains(values, any("off"))
}

// loosen returns the schema of the values that the chart can convert to values of a schema.
func (c *chartSchemas) loosen(path string, s schema) schema {
	if slices.Contains(c.ignored, path) {
		return schema{}
	}
	if slices.Contains(strict, path) {
		return s
	}
	s = maps.Clone(s)
	switch s["type"] {
	case "boolean":
		s["type"], s["pattern"] = []any{"boolean", "string", "null"}, "^([Tt]rue|[Ff]alse|TRUE|FALSE)?$"
	case "integer":
		s["type"], s["pattern"] = []any{"integer", "string", "null"}, "^[0-9]*$"
	case "string":
		s["type"] = []any{"string", "number", "boolean", "null"}
		if values, is := s["enum"].([]any); is {
			s["enum"] = append(slices.Clone(values), nil)
			if isSwitch(s) {
				s["enum"] = append(slices.Clone(values), nil, true, false)
			}
		}
	case "array":
		s["type"] = []any{"array", "null"}
		if items, is := s["items"].(schema); is {
			s["items"] = c.loosen(path+"[]", items)
			if items["type"] == "string" {
				s["type"] = []any{"array", "string", "null"}
				loose := s["items"].(schema)
				loose["type"] = append(loose["type"].([]any), "object") // {name: …}
			}
		}
	case "object":
		s["type"] = []any{"object", "null"}
	}
	if properties := at(s); properties != nil {
		loose := schema{}
		for name, one := range properties {
			loose[name] = c.loosen(strings.TrimPrefix(path+"."+name, "."), one.(schema))
		}
		s["properties"] = loose
	}
	if rest, is := s["additionalProperties"].(schema); is {
		s["additionalProperties"] = c.loosen(path+".*", rest)
	} else {
		delete(s, "additionalProperties")
	}
	return s
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
		var values []any
		for _, one := range p.Enum {
			var value any
			if err := json.Unmarshal(one.Raw, &value); err == nil {
				values = append(values, value)
			}
		}
		s["enum"] = values
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
