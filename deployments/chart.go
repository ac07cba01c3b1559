// The parts of the chart that Go code reads or generates. .ci/helm packages the chart, with the
// CustomResourceDefinition and the schema of its values.

package deployments

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// chartTemplates holds the chart's templates that the static manifests use, too.
//
//go:embed helm/gpuready/templates/agents helm/gpuready/templates/_generated.tpl
var chartTemplates embed.FS

//go:embed helm/gpuready/files/rights.yaml
var rights []byte

// Right is a right of the operator, or of one of the chart's Jobs, to some resources.
type Right struct {
	Where     string            `json:"where"` // as in helm/gpuready/files/rights.yaml
	Group     string            `json:"group"`
	Resources []string          `json:"resources"`
	Names     []string          `json:"names"` // none: all
	Verbs     map[string]string `json:"verbs"` // by verb: the reason
}

// Rights returns all rights that are granted.
func Rights() ([]Right, error) {
	var all []Right
	if err := yaml.UnmarshalStrict(rights, &all); err != nil {
		return nil, fmt.Errorf("helm/gpuready/files/rights.yaml: %w", err)
	}
	return all, nil
}

// constants returns _generated.tpl: definitions by name.
func constants(all map[string]string) string {
	var b strings.Builder
	b.WriteString("{{- /* Made by `make generate`: what other parts of the product define. */}}\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "\n{{- define %q -}}\n%s\n{{- end }}\n", name, all[name])
	}
	return b.String()
}

// celList returns a list of strings in CEL syntax.
func celList(texts []string) string { return "['" + strings.Join(texts, "', '") + "']" }
