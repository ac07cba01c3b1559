package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/contract"
	"github.com/gpuready/gpuready/test/lab/golden"
)

// sources calls visit for each Go file below a folder, except tests.
func sources(t *testing.T, folder string, visit func(path string, f *ast.File)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			visit(path, f)
		}
		return err
	}))
}

// literal returns the value of a string literal.
func literal(e ast.Expr) (string, bool) {
	l, is := e.(*ast.BasicLit)
	if !is || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

// isReason reports whether a type is gpu.Reason.
func isReason(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "Reason"
	case *ast.SelectorExpr:
		return e.Sel.Name == "Reason"
	}
	return false
}

// reasonsOf returns all reasons in a file: constants of the type Reason, values of fields
// named Reason, results of functions that return a Reason, and log attributes.
func reasonsOf(f *ast.File) map[string]bool {
	all := map[string]bool{}
	add := func(e ast.Expr) {
		if s, is := literal(e); is && s != "" {
			all[s] = true
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if n.Type != nil && isReason(n.Type) {
				for _, v := range n.Values {
					add(v)
				}
			}
		case *ast.KeyValueExpr:
			if key, is := n.Key.(*ast.Ident); is && key.Name == "Reason" {
				add(n.Value)
			}
		case *ast.FuncDecl:
			if r := n.Type.Results; r == nil || n.Body == nil || !slices.ContainsFunc(r.List, func(f *ast.Field) bool { return isReason(f.Type) }) {
				return true
			}
			ast.Inspect(n.Body, func(n ast.Node) bool {
				if r, is := n.(*ast.ReturnStmt); is {
					for _, v := range r.Results {
						if s, is := literal(v); is && camel.MatchString(s) {
							add(v)
						}
					}
				}
				return true
			})
		case *ast.CallExpr:
			for i := 1; i < len(n.Args); i++ {
				if s, is := literal(n.Args[i-1]); is && s == "reason" {
					add(n.Args[i])
				}
			}
		}
		return true
	})
	return all
}

var camel = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

// named returns the values of constants whose names start with Reason or reason, of any type.
func named(f *ast.File) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(strings.ToLower(spec.Names[0].Name), "reason") {
			return true
		}
		for _, v := range spec.Values {
			if s, is := literal(v); is {
				all[s] = true
			}
		}
		return true
	})
	return all
}

// collectReasons returns the reasons in the code of some folders, or of single files.
func collectReasons(t *testing.T, paths ...string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, path := range paths {
		sources(t, path, func(_ string, f *ast.File) { maps.Copy(all, reasonsOf(f)) })
	}
	return all
}

// explained returns the reasons of a component in the table of internal/contract.
func explained(by contract.Component) map[string]bool {
	all := map[string]bool{}
	for _, r := range contract.Reasons() {
		if r.By == by {
			all[r.Reason] = true
		}
	}
	return all
}

// requireAgreement fails unless a component's reasons are in the table, and no others. least is a number
// of reasons that the code surely has.
func requireAgreement(t *testing.T, by contract.Component, least int, reasons map[string]bool) {
	t.Helper()
	require.Greater(t, len(reasons), least, "the code has reasons")
	rows := explained(by)
	for reason := range reasons {
		if !rows[reason] {
			t.Errorf("%s: a reason of the %s without a row in internal/contract", reason, by)
		}
	}
	for reason := range rows {
		if !reasons[reason] {
			t.Errorf("%s: a row of the %s in internal/contract, and no such reason in the code", reason, by)
		}
	}
}

func TestEveryReasonOfTheDevicePluginIsExplained(t *testing.T) {
	reasons := collectReasons(t, "../deviceplugin", "../internal/gpu", "../internal/injection", "../internal/nodestate")
	requireAgreement(t, contract.DevicePlugin, 40, reasons)
}

func TestEveryReasonOfTheToolkitIsExplained(t *testing.T) {
	requireAgreement(t, contract.Toolkit, 15, collectReasons(t, "../toolkit", "../internal/nodestate"))
}

func TestEveryReasonOfTheDriverIsExplained(t *testing.T) {
	requireAgreement(t, contract.Driver, 10, collectReasons(t, "../driver"))
}

func TestEveryReasonOfTheDRADriverIsExplained(t *testing.T) {
	requireAgreement(t, contract.DRADriver, 3, collectReasons(t, "../dra"))
}

// Reasons that the validator passes on unchanged are those of the toolkit and the device plugin.
func TestEveryReasonOfTheValidatorIsExplained(t *testing.T) {
	reasons := collectReasons(t, "../internal/nodestate")
	sources(t, "../validator", func(path string, f *ast.File) {
		if !strings.Contains(filepath.ToSlash(path), "/preflight/") {
			maps.Copy(reasons, reasonsOf(f))
		}
	})
	requireAgreement(t, contract.Validator, 60, reasons)
}

// Preflight has reasons of its own, and those of faults of a GPU that one run can find.
func TestEveryReasonOfPreflightIsExplained(t *testing.T) {
	reasons := collectReasons(t, "../validator/preflight")
	require.Greater(t, len(reasons), 8, "the code has reasons")
	for reason := range collectReasons(t, "../internal/gpu/gpu.go") {
		if reason != "Missing" && reason != "Unwatched" {
			reasons[reason] = true
		}
	}
	requireAgreement(t, contract.Preflight, 15, reasons)
}

func TestEveryReasonOfTheOperatorIsExplained(t *testing.T) {
	reasons := map[string]bool{}
	sources(t, "../operator", func(_ string, f *ast.File) {
		maps.Copy(reasons, reasonsOf(f))
		maps.Copy(reasons, named(f))
	})
	requireAgreement(t, contract.Operator, 50, reasons)
}

var (
	reasonsBegin = "<!-- Reasons: made by go generate ./internal/contract -->\n"
	reasonsEnd   = "<!-- end of Reasons -->\n"
	pageName     = regexp.MustCompile(`docs/([a-z0-9-]+\.md)`)
)

func TestThePageOfReasonsIsMadeOfTheTable(t *testing.T) {
	golden.RequireSection(t, "reasons.md", reasonsBegin, reasonsEnd, renderReasons(contract.Reasons()))
}

// renderReasons renders the tables of docs/reasons.md: one for each component, or for each of what has a
// reason within it. The address of a reason is its word in lower case. Where a component before has the
// same, the component's name comes first: device-plugin-nogpu.
func renderReasons(all []contract.Reason) string {
	index, tables := &strings.Builder{}, &strings.Builder{}
	taken, last := map[string]bool{}, contract.Reason{}
	for i, r := range all {
		component := strings.ToUpper(string(r.By)[:1]) + string(r.By)[1:]
		slug := strings.ReplaceAll(strings.ToLower(string(r.By)), " ", "-")
		if r.By != last.By {
			if i > 0 {
				index.WriteString("\n")
			}
			fmt.Fprintf(index, "- [%s](#%s):", component, slug)
			fmt.Fprintf(tables, "\n## %s\n", component)
		}
		if r.By != last.By || r.Of != last.Of {
			if r.Of != "" {
				fmt.Fprintf(tables, "\n### Of %s\n", r.Of)
			}
			tables.WriteString("\n| reason | meaning | next |\n|---|---|---|\n")
		}
		anchor := strings.ToLower(r.Reason)
		if taken[anchor] {
			anchor = slug + "-" + anchor
		}
		taken[anchor] = true
		fmt.Fprintf(index, " [`%s`](#%s)", r.Reason, anchor)
		fmt.Fprintf(tables, "| <a id=%q></a>`%s` | %s | %s |\n", anchor, r.Reason, linkPages(r.Meaning), linkPages(r.Next))
		last = r
	}
	return "\n" + index.String() + "\n" + tables.String() + "\n"
}

// linkPages makes links of the pages that a text names.
func linkPages(text string) string { return pageName.ReplaceAllString(text, "[$1]($1)") }

func TestReasonsHaveAddresses(t *testing.T) {
	page := renderReasons([]contract.Reason{
		{Reason: "NoGPU", By: contract.Toolkit, Meaning: "none", Next: "see docs/toolkit.md"},
		{Reason: "NoGPU", By: contract.DevicePlugin, Of: "the plugin", Meaning: "none", Next: "nothing"},
	})
	require.Contains(t, page, "| <a id=\"nogpu\"></a>`NoGPU` | none | see [toolkit.md](toolkit.md) |\n")
	require.Contains(t, page, "\n## Device plugin\n\n### Of the plugin\n")
	for _, want := range []string{"toolkit", "nogpu", "device-plugin", "of-the-plugin", "device-plugin-nogpu"} {
		require.Contains(t, anchors(page), want)
	}
}
