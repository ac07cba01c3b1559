package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// vague lists verbs that name no action. A search for one of them finds every package.
var vague = strings.Fields(`
	look looks looked see sees saw seen hear hears heard tell tells told say says said
	turn turns turned pass passes passed wake wakes woke have had come came go went
	let give gives given gave take takes took taken ask asks asked mind minds know knows
	known keep keeps kept answer answers answered bring brings brought doubt doubts happen
	happens lacking matter matters meet meets met news stand stands stood`)

// riddle matches the start of a doc comment that has no verb or article.
var riddle = regexp.MustCompile(`^(\w+ (is|are) (what|one that|one of those|that|those|how|where|who|whether|when)\b|\w+ (says?|tells?) whether\b|(Those|What) that\b)`)

// TestNames fails for a function named by one vague verb, and for a doc comment that
// starts as a riddle. docs/development.md has the rules.
func TestNames(t *testing.T) {
	t.Parallel()
	isVague := map[string]bool{}
	for _, v := range vague {
		isVague[v] = true
	}
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	list, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z", "*.go").Output()
	require.NoError(t, err, "it needs a checkout")
	fset := token.NewFileSet()
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed, but not committed yet
		}
		require.NoError(t, err)
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		if ast.IsGenerated(file) {
			continue
		}
		check := func(doc *ast.CommentGroup) {
			if doc != nil && riddle.MatchString(doc.Text()) {
				first, _, _ := strings.Cut(doc.Text(), "\n")
				t.Errorf("%s: %q: start with the name and a verb, or with an article", fset.Position(doc.Pos()), first)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.File:
				check(n.Doc)
			case *ast.FuncDecl:
				check(n.Doc)
				if name := n.Name.Name; isVague[strings.ToLower(name)] {
					t.Errorf("%s: %s: name it by a verb and an object", fset.Position(n.Pos()), name)
				}
			case *ast.GenDecl:
				check(n.Doc)
			case *ast.TypeSpec:
				check(n.Doc)
			case *ast.ValueSpec:
				check(n.Doc)
			case *ast.Field:
				check(n.Doc)
			}
			return true
		})
	}
}
