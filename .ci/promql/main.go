// Promql parses every expression of the rules and the dashboard with Prometheus'
// own parser.
//
//	go run . ../../deployments/monitoring
//
// The tests beside them check the names. Exit code 1 means that an
// expression is wrong, 2 that it could not check anything.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(folders []string) int {
	checked, wrong := 0, 0
	for _, folder := range folders {
		for _, pattern := range []string{"*.yaml", "*.json"} {
			files, err := filepath.Glob(filepath.Join(folder, pattern))
			if err != nil {
				return fail(err)
			}
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					return fail(err)
				}
				var document any
				if err := yaml.Unmarshal(data, &document); err != nil {
					return fail(fmt.Errorf("%s: %w", file, err))
				}
				for _, expr := range expressions(document) {
					checked++
					if err := parse(expr); err != nil {
						wrong++
						fmt.Printf("%s: %s: %v\n", file, expr, err)
					}
				}
			}
		}
	}
	switch {
	case checked == 0:
		return fail(fmt.Errorf("no expressions at %s", strings.Join(folders, ", ")))
	case wrong > 0:
		return 1
	}
	fmt.Printf("promql: %d expressions\n", checked)
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "promql:", err)
	return 2
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

// parse parses an expression, with values for Grafana's variables.
func parse(expr string) error {
	_, err := parser.NewParser(parser.Options{}).ParseExpr(strings.NewReplacer("$__rate_interval", "5m", "$node", ".*").Replace(expr))
	return err
}
