package docs

import (
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

// deviceReasons returns the reasons of the device plugin and of internal/gpu.
func deviceReasons(t *testing.T) map[string]bool {
	all := map[string]bool{}
	for _, folder := range []string{"../deviceplugin", "../internal/gpu", "../internal/injection", "../internal/nodestate"} {
		sources(t, folder, func(_ string, f *ast.File) { maps.Copy(all, reasonsOf(f)) })
	}
	return all
}

var code = regexp.MustCompile("`([^`]+)`")

// documented returns the reasons in a page's section "Reasons"; with first, only those in
// the first column of its tables.
func documented(t *testing.T, page string, first bool) map[string]bool {
	t.Helper()
	_, text, found := strings.Cut(read(t, page), "\n## Reasons\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n## ")
	written := map[string]bool{}
	for line := range strings.Lines(text) {
		if first {
			line, _, _ = strings.Cut(strings.TrimPrefix(line, "|"), "|")
		}
		for _, m := range code.FindAllStringSubmatch(line, -1) {
			if camel.MatchString(m[1]) {
				written[m[1]] = true
			}
		}
	}
	return written
}

func agree(t *testing.T, page string, reasons, written map[string]bool) {
	t.Helper()
	for reason := range reasons {
		if !written[reason] {
			t.Errorf("%s: a reason without a line in %s", reason, page)
		}
	}
	for word := range written {
		if !reasons[word] {
			t.Errorf("%s: a line in %s, and no such reason in the code", word, page)
		}
	}
}

func TestEveryReasonOfTheDevicePluginIsDocumented(t *testing.T) {
	reasons := deviceReasons(t)
	require.Greater(t, len(reasons), 40, "the code has reasons")
	agree(t, "device-plugin.md", reasons, documented(t, "device-plugin.md", false))
}

func TestEveryReasonOfTheToolkitIsDocumented(t *testing.T) {
	reasons := map[string]bool{}
	for _, folder := range []string{"../toolkit/setup", "../toolkit/configure", "../toolkit/runtime", "../toolkit/daemon", "../internal/nodestate"} {
		sources(t, folder, func(_ string, f *ast.File) { maps.Copy(reasons, reasonsOf(f)) })
	}
	require.Greater(t, len(reasons), 15, "the code has reasons")
	agree(t, "toolkit.md", reasons, documented(t, "toolkit.md", true))
}

func TestEveryReasonOfTheDriverIsDocumented(t *testing.T) {
	reasons := map[string]bool{}
	sources(t, "../driver", func(_ string, f *ast.File) { maps.Copy(reasons, reasonsOf(f)) })
	require.Greater(t, len(reasons), 10, "the code has reasons")
	agree(t, "driver.md", reasons, documented(t, "driver.md", true))
}

func TestEveryReasonOfTheDRADriverIsDocumented(t *testing.T) {
	reasons := map[string]bool{}
	sources(t, "../dra", func(_ string, f *ast.File) { maps.Copy(reasons, reasonsOf(f)) })
	require.Greater(t, len(reasons), 3, "the code has reasons")
	agree(t, "dra.md", reasons, documented(t, "dra.md", true))
}

// A reason of the validator has a row of three columns: the reason, its meaning, and the
// next action. Reasons of other components are on their own pages.
func TestEveryReasonOfTheValidatorIsDocumented(t *testing.T) {
	reasons, preflight := map[string]bool{}, map[string]bool{}
	sources(t, "../validator", func(path string, f *ast.File) {
		if strings.Contains(filepath.ToSlash(path), "/preflight/") {
			maps.Copy(preflight, reasonsOf(f))
		} else {
			maps.Copy(reasons, reasonsOf(f))
		}
	})
	sources(t, "../internal/nodestate", func(_ string, f *ast.File) { maps.Copy(reasons, reasonsOf(f)) })
	require.Greater(t, len(reasons), 60, "the code has reasons")
	require.Greater(t, len(preflight), 8, "the code has reasons")
	agree(t, "validator.md", reasons, documented(t, "validator.md", true))
	for reason := range preflight {
		require.True(t, documented(t, "preflight.md", false)[reason] || reasons[reason], "%s: a reason without a line in preflight.md", reason)
	}
	_, text, _ := strings.Cut(read(t, "validator.md"), "\n## Reasons\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| `") {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
			require.Len(t, cells, 3, line)
			require.NotEmpty(t, strings.TrimSpace(cells[1]), line)
			require.NotEmpty(t, strings.TrimSpace(cells[2]), line)
		}
	}
}

// named returns the values of constants whose names start with Reason, of any type.
func named(f *ast.File) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
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

// A reason of the operator, and of kubectl gpu, has a row of three columns, like the
// validator's.
func TestEveryReasonOfTheOperatorIsDocumented(t *testing.T) {
	reasons := map[string]bool{}
	sources(t, "../operator", func(_ string, f *ast.File) {
		maps.Copy(reasons, reasonsOf(f))
		maps.Copy(reasons, named(f))
	})
	require.Greater(t, len(reasons), 50, "the code has reasons")
	agree(t, "operator-troubleshooting.md", reasons, documented(t, "operator-troubleshooting.md", true))
	_, text, _ := strings.Cut(read(t, "operator-troubleshooting.md"), "\n## Reasons\n")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| `") {
			cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
			require.Len(t, cells, 3, line)
			require.NotEmpty(t, strings.TrimSpace(cells[1]), line)
			require.NotEmpty(t, strings.TrimSpace(cells[2]), line)
		}
	}
}

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
