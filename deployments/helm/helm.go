// Package helm has the chart, gpuready/, and makes what of it is generated: the schema
// of its values, the README's table, and the constants of its templates.
package helm

import (
	"embed"
	"fmt"

	"sigs.k8s.io/yaml"
)

//go:generate go test -tags grpcnotrace -run ^TestWhatIsGenerated$ . -update

// Templates are the chart's that other manifests are made of, too.
//
//go:embed gpuready/templates/agents gpuready/templates/_generated.tpl
var Templates embed.FS

//go:embed gpuready/files/rights.yaml
var rights []byte

// Right is what the operator, or one of the Jobs of the chart, may do with some resources.
type Right struct {
	Where     string            `json:"where"` // as gpuready/files/rights.yaml says
	Group     string            `json:"group"`
	Resources []string          `json:"resources"`
	Names     []string          `json:"names"` // none: all
	Verbs     map[string]string `json:"verbs"` // and why
}

// Rights are all that are given.
func Rights() ([]Right, error) {
	var all []Right
	if err := yaml.UnmarshalStrict(rights, &all); err != nil {
		return nil, fmt.Errorf("gpuready/files/rights.yaml: %w", err)
	}
	return all, nil
}
