package static

import (
	"maps"
	"os"
	"strings"
	"testing"
	"text/template"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/label"
)

// featureRule is the used part of NodeFeatureRule, nfd.k8s-sigs.io/v1alpha1.
type featureRule struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Rules []struct {
			Name           string `json:"name"`
			LabelsTemplate string `json:"labelsTemplate"`
			MatchFeatures  []struct {
				Feature          string `json:"feature"`
				MatchExpressions map[string]struct {
					Op string `json:"op"`
				} `json:"matchExpressions"`
			} `json:"matchFeatures"`
		} `json:"rules"`
	} `json:"spec"`
}

// element is an attribute that matched, as NFD passes it to a template.
type element struct{ Name, Value string }

// applyRule applies the rule as NFD does (pkg/apis/nfd/nodefeaturerule), as far as the
// rule needs it: the template receives the existing attributes, and its lines are
// labels.
func applyRule(t *testing.T, rule featureRule, release map[string]string) map[string]string {
	t.Helper()
	labels := map[string]string{}
	for _, r := range rule.Spec.Rules {
		require.Len(t, r.MatchFeatures, 1)
		require.Equal(t, "system.osrelease", r.MatchFeatures[0].Feature)
		var matched []element
		for name, e := range r.MatchFeatures[0].MatchExpressions {
			require.Equal(t, "Exists", e.Op)
			value, ok := release[name]
			if !ok {
				return nil
			}
			matched = append(matched, element{name, value})
		}
		var out strings.Builder
		require.NoError(t, template.Must(template.New("").Option("missingkey=error").Parse(r.LabelsTemplate)).
			Execute(&out, map[string]any{"system": map[string]any{"osrelease": matched}}))
		for line := range strings.Lines(out.String()) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
				labels[key] = value
			}
		}
	}
	return labels
}

func TestFeatureRuleLabelsRHCOSWithItsVersion(t *testing.T) {
	data, err := os.ReadFile(strings.TrimPrefix(driver.RuleFile, "deployments/static/"))
	require.NoError(t, err)
	var rule featureRule
	require.NoError(t, yaml.UnmarshalStrict(data, &rule))
	require.Equal(t, "NodeFeatureRule nfd.k8s-sigs.io/v1alpha1", rule.Kind+" "+rule.APIVersion)
	release := map[string]string{"ID": "rhel", "VERSION_ID": "9.6"}
	require.Empty(t, applyRule(t, rule, release))
	rhcos := maps.Clone(release)
	rhcos["OSTREE_VERSION"] = "9.6.20250530-0"
	require.Equal(t, map[string]string{label.OSTree: "9.6.20250530-0"}, applyRule(t, rule, rhcos))
}
