package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bounds of what people keep by hand: whoever adds a page or a part, cuts elsewhere.
const (
	maxPages = 28
	maxWords = 60_000
)

// generated matches a generated part of a page, between its markers.
var generated = regexp.MustCompile(`(?s)<!-- [^:>]+: made by [^>]*-->.*?<!-- end of [^>]+ -->`)

var begins = regexp.MustCompile(`<!-- [^:>]+: made by `)

// countWords returns the number of words of a page that were written by hand.
func countWords(text string) int {
	return len(strings.Fields(generated.ReplaceAllString(text, "")))
}

func TestPagesAreFewAndShort(t *testing.T) {
	found, err := filepath.Glob("*.md")
	require.NoError(t, err)
	words := 0
	for _, page := range found {
		text := read(t, page)
		n := countWords(text)
		words += n
		t.Logf("%5d of %5d  %s", n, len(strings.Fields(text)), page)
		require.Len(t, generated.FindAllString(text, -1), len(begins.FindAllString(text, -1)), "%s: a generated part without an end", page)
	}
	require.LessOrEqual(t, len(found), maxPages, "pages in docs")
	require.LessOrEqual(t, words, maxWords, "words in docs by hand")
}

func TestWordsByHandAreCounted(t *testing.T) {
	page := "one two\n<!-- fields: made by go generate ./x -->\nthree four\n<!-- end of fields -->\nthree\n\n    $ four\n"
	require.Equal(t, 5, countWords(page))
}

func TestTheIndexListsEveryPage(t *testing.T) {
	found, err := filepath.Glob("*.md")
	require.NoError(t, err)
	index := read(t, "README.md")
	for _, page := range found {
		if page != "README.md" {
			require.Equal(t, 1, strings.Count(index, "]("+page+")"), "docs/README.md lists %s once", page)
		}
	}
}
