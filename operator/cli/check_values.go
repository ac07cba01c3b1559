package cli

import (
	"sigs.k8s.io/yaml"
)

// values checks values of NVIDIA's Helm chart, or of this product's.
func (c checker) values(source string, data []byte) Check {
	out := Check{File: source, Kind: "Values"}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		out.Refused = []string{err.Error()}
		return out
	}
	return out
}
