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

// chartTemplates holds the chart's templates that the static manifests use, too: those
// manifests, in static/, are plain files for kubectl apply (static.go).
//
//go:embed helm/gpuready/templates/agents helm/gpuready/templates/_generated.tpl
var chartTemplates embed.FS

//go:embed helm/gpuready/files/rights.yaml
var rights []byte

// Right is an RBAC rule for the operator, or for one of the chart's Jobs. Where selects the
// Role or ClusterRole that it becomes a part of: cluster, operands, default, lease, openshift,
// crds or cleanup. The head of helm/gpuready/files/rights.yaml describes each.
type Right struct {
	Where     string            `json:"where"`
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

// renderDefinitions returns the text of _generated.tpl: one Helm define for each entry, by
// its name.
func renderDefinitions(all map[string]string) string {
	var b strings.Builder
	b.WriteString("{{- /* Made by `make generate`: what other parts of the product define. */}}\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "\n{{- define %q -}}\n%s\n{{- end }}\n", name, all[name])
	}
	return b.String()
}

// celList returns a list of strings in CEL syntax. The texts must contain no quote or
// backslash.
func celList(texts []string) string { return "['" + strings.Join(texts, "', '") + "']" }
