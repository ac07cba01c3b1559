package docs

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var metric = regexp.MustCompile(`^gpuready_[a-z_]+$`)

// Metrics are found by their names in the code, because no registry has all of them.
func TestEveryMetricIsDocumented(t *testing.T) {
	written := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(gpuready_[a-z_]+)` \\|").FindAllStringSubmatch(read(t, "monitoring.md"), -1) {
		require.False(t, written[m[1]], "%s: twice", m[1])
		written[m[1]] = true
	}
	words := map[string]bool{}
	for _, folder := range []string{"../deviceplugin", "../dra", "../toolkit", "../validator", "../operator", "../internal"} {
		sources(t, folder, func(_ string, f *ast.File) {
			ast.Inspect(f, func(n ast.Node) bool {
				if e, is := n.(ast.Expr); is {
					if s, is := literal(e); is {
						words[s] = true
					}
				}
				return true
			})
		})
	}
	for word := range words {
		if metric.MatchString(word) && !strings.HasSuffix(word, "_") {
			require.True(t, written[word], "%s: a metric without a line in monitoring.md", word)
		}
	}
	for name := range written {
		// Some names are composed of the component's prefix and their own.
		own := strings.TrimPrefix(strings.TrimPrefix(name, "gpuready_deviceplugin_"), "gpuready_operator_")
		require.True(t, words[name] || words[own], "%s: a line in monitoring.md, and no such metric in the code", name)
	}
}
