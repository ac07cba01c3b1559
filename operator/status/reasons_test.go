package status

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/contract"
)

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

func TestTheTableExplainsExactlyTheReasons(t *testing.T) {
	var explained []string
	for _, r := range contract.Reasons() {
		if r.By == contract.Operator {
			explained = append(explained, r.Reason)
		}
	}
	known := reasons(t)
	require.Greater(t, len(known), 50, "the constants are found")
	for reason, file := range known {
		require.Contains(t, explained, reason, "%s has it, and internal/contract does not: add what it means and what is next", file)
	}
	for _, reason := range explained {
		require.Contains(t, known, reason, "internal/contract has it, and no constant of the operator is it")
	}
	require.True(t, slices.Contains(explained, ReasonReconcile))
}
