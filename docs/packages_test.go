package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// section returns the text of a page below a heading, up to the next one.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n"+heading+"\n")
	require.True(t, found, heading)
	text, _, _ := strings.Cut(rest, "\n#")
	return text
}

// folders returns the folders in dir, without testdata.
func folders(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var found []string
	for _, e := range entries {
		if e.IsDir() && e.Name() != "testdata" {
			found = append(found, e.Name())
		}
	}
	require.NotEmpty(t, found)
	return found
}

var folderName = regexp.MustCompile("`([a-z][a-z0-9]*)[`/]")

func TestArchitectureNamesTheFoldersOfEachComponent(t *testing.T) {
	page := read(t, "architecture.md")
	for _, c := range []struct {
		dir, heading string
	}{
		{"driver", "### The driver's packages"},
		{"deviceplugin", "### The device plugin's packages"},
		{"dra", "### The DRA driver's packages"},
		{"toolkit", "### The toolkit's packages"},
		{"validator", "### The validator's packages"},
		{"operator", "### The operator's packages"},
		{"provision", "### The provision packages"},
	} {
		t.Run(c.dir, func(t *testing.T) {
			var named []string
			for _, m := range folderName.FindAllStringSubmatch(section(t, page, c.heading), -1) {
				named = append(named, m[1])
			}
			have := folders(t, filepath.Join("..", c.dir))
			for _, dir := range have {
				require.Contains(t, named, dir, "docs/architecture.md does not name %s/%s", c.dir, dir)
			}
			for _, name := range named {
				require.True(t, slices.Contains(have, name), "docs/architecture.md names %s/%s, which does not exist", c.dir, name)
			}
		})
	}
}

var sequential = regexp.MustCompile(`(?m)^SEQUENTIAL := ((?:.*\\\n)*.*)$`)

// The Makefile runs the tests of some packages without the race detector.
func TestPackagesWithoutTheRaceDetectorStartNoGoroutine(t *testing.T) {
	found := sequential.FindStringSubmatch(read(t, "../Makefile"))
	require.NotNil(t, found)
	packages := strings.Fields(strings.ReplaceAll(found[1], "\\\n", " "))
	require.NotEmpty(t, packages)
	files := token.NewFileSet()
	for _, dir := range packages {
		names, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, names, dir)
		for _, name := range names {
			file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine", files.Position(n.Pos()))
				case *ast.CallExpr:
					if f, ok := n.Fun.(*ast.SelectorExpr); ok {
						on, _ := f.X.(*ast.Ident)
						starts := slices.Contains([]string{"Go", "TryGo", "AfterFunc", "RunParallel", "NewServer", "Serve"}, f.Sel.Name)
						if starts || f.Sel.Name == "Parallel" && on != nil && on.Name == "t" {
							t.Errorf("%s: a call of %s", files.Position(n.Pos()), f.Sel.Name)
						}
					}
				}
				return true
			})
		}
	}
}
