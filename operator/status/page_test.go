package status

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const page = "../../docs/operator-troubleshooting.md"

// reasons returns the operator's constants that are reasons by name or type, with the file that
// declares each.
func reasons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	files := token.NewFileSet()
	require.NoError(t, filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if group, is := decl.(*ast.GenDecl); is && group.Tok == token.CONST {
				for _, spec := range group.Specs {
					declared(spec.(*ast.ValueSpec), func(value string) { found[value] = name })
				}
			}
		}
		return nil
	}))
	return found
}

func declared(spec *ast.ValueSpec, reason func(string)) {
	kind := ""
	switch x := spec.Type.(type) {
	case *ast.Ident:
		kind = x.Name
	case *ast.SelectorExpr:
		kind = x.Sel.Name
	}
	for i, name := range spec.Names {
		if kind != "Reason" && !strings.HasPrefix(strings.ToLower(name.Name), "reason") || i >= len(spec.Values) {
			continue
		}
		if text, is := spec.Values[i].(*ast.BasicLit); is && text.Kind == token.STRING {
			if value, err := strconv.Unquote(text.Value); err == nil {
				reason(value)
			}
		}
	}
}

var documentedRow = regexp.MustCompile("^\\| `([A-Za-z]+)` \\| (.*) \\| (.*) \\|$")

func TestPageDocumentsExactlyTheReasons(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, tables, ok := strings.Cut(string(text), "\n## Reasons\n")
	require.True(t, ok)
	var documented []string
	for line := range strings.Lines(tables) {
		m := documentedRow.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			require.False(t, strings.HasPrefix(line, "| `"), "a row has a reason, what it means, and what is next: %s", line)
			continue
		}
		require.NotEmpty(t, strings.TrimSpace(m[2]), "what %s means", m[1])
		require.NotEmpty(t, strings.TrimSpace(m[3]), "what is next after %s", m[1])
		documented = append(documented, m[1])
	}
	known := reasons(t)
	require.Greater(t, len(known), 50, "the constants are found")
	for reason, file := range known {
		require.Contains(t, documented, reason, "%s has it and %s does not: add what it means and what is next", file, page)
	}
	for i, reason := range documented {
		require.Contains(t, known, reason, "%s has it, and no constant of the operator is it", page)
		require.NotContains(t, documented[:i], reason, "it is documented twice")
	}
	require.True(t, slices.Contains(documented, ReasonReconcile))
}
