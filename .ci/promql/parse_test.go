// Package promql checks the rules and the dashboard in deployments/monitoring with
// Prometheus' own parser and engine. The tests beside them check the names.
package promql

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const monitoring = "../../deployments/monitoring"

func TestEveryExpressionParses(t *testing.T) {
	// Grafana replaces its variables.
	variables := strings.NewReplacer("$__rate_interval", "5m", "$node", ".*")
	for _, pattern := range []string{"*.yaml", "*.json"} {
		files, err := filepath.Glob(filepath.Join(monitoring, pattern))
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var document any
			if err := yaml.Unmarshal(data, &document); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, expr := range expressions(document) {
				checked++
				if _, err := parser.NewParser(parser.Options{}).ParseExpr(variables.Replace(expr)); err != nil {
					t.Errorf("%s: %s: %v", file, expr, err)
				}
			}
		}
		if checked == 0 {
			t.Errorf("no expressions in %s/%s", monitoring, pattern)
		}
	}
}

// expressions returns the values of every "expr" in a document.
func expressions(v any) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if expr, is := value.(string); is && key == "expr" {
				all = append(all, expr)
			}
			all = append(all, expressions(value)...)
		}
	case []any:
		for _, item := range v {
			all = append(all, expressions(item)...)
		}
	}
	return all
}
