// Package docs tests the documentation against the code. Tests of a single page may also
// be in the package that the page describes.
package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages returns the paths of all pages, relative to this folder.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../*.md", "*.md", "decisions/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found)
		all = append(all, found...)
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

var (
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
	inline  = regexp.MustCompile("`[^`\n]*`")
	linked  = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	label   = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	unslug  = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// prose returns a page without its examples.
func prose(text string) string {
	var kept []string
	for line := range strings.Lines(fenced.ReplaceAllString(text, "")) {
		if !strings.HasPrefix(line, "    ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// anchors returns the link anchors of a page: those of its headings, as GitHub generates them, and those of
// its elements <a id="…">, which generated tables have.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(prose(text), -1) {
		title := strings.ReplaceAll(linked.ReplaceAllStringFunc(m[1], func(link string) string {
			return link[1:strings.Index(link, "]")]
		}), "`", "")
		slug := strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for i := 1; all[slug]; i++ {
			slug = fmt.Sprintf("%s-%d", strings.TrimSuffix(slug, fmt.Sprintf("-%d", i-1)), i)
		}
		all[slug] = true
	}
	for _, m := range label.FindAllStringSubmatch(prose(text), -1) {
		all[m[1]] = true
	}
	return all
}

func TestEveryLinkLeadsSomewhere(t *testing.T) {
	checked := 0
	for _, page := range pages(t) {
		for _, m := range linked.FindAllStringSubmatch(inline.ReplaceAllString(prose(read(t, page)), "code"), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			checked++
			path, fragment, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			info, err := os.Stat(target)
			if err != nil {
				t.Errorf("%s: %s leads nowhere: %v", page, m[1], err)
				continue
			}
			if fragment != "" && (info.IsDir() || !anchors(read(t, target))[fragment]) {
				t.Errorf("%s: %s: no heading and no row of that page has this anchor", page, m[1])
			}
		}
	}
	require.Greater(t, checked, 50, "the pages have links")
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	require.Equal(t, map[string]bool{
		"why-is-this-gpu-not-allocatable": true, "4-switch-one-node-then-the-others": true, "the-nodes-voice": true,
		"a-gpusim-serve": true, "a-gpusim-serve-1": true, "xid-79": true,
	}, anchors("# Why is this GPU not allocatable?\n## 4. Switch one node, then the others\n### The node's voice\n## A `gpusim serve`\n## A [gpusim serve](x.md)\n\n| <a id=\"xid-79\"></a>79 |\n\n    # no heading\n"))
}

// decisions returns the paths of the decisions, in the order of their numbers.
func decisions(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("decisions/0*.md")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// A link to a decision must have the number of its file.
func TestDecisionsAreCalledByTheirNumbers(t *testing.T) {
	for i, file := range decisions(t) {
		require.Truef(t, strings.HasPrefix(filepath.Base(file), fmt.Sprintf("%04d-", i+1)), "%s: want number %d", file, i+1)
		require.Truef(t, strings.HasPrefix(read(t, file), fmt.Sprintf("# %d. ", i+1)), "%s: want the title to begin with %d", file, i+1)
	}
	byNumber := regexp.MustCompile(`\[decision (\d+)\]\([^)]*?(\d{4})-[^)]*\)`)
	for _, page := range pages(t) {
		for _, m := range byNumber.FindAllStringSubmatch(read(t, page), -1) {
			require.Equal(t, fmt.Sprintf("%04s", m[1]), m[2], "%s: %s", page, m[0])
		}
	}
}

// The index has a line for each decision, with its title and status. A file is named after its title.
func TestDecisionsAreListedByTitleAndStatus(t *testing.T) {
	head := regexp.MustCompile(`\A# (\d+)\. ([^\n]+)\n\nStatus: (accepted|superseded|no longer holds)([^\n]*)\n\n`)
	var rows []string
	for _, file := range decisions(t) {
		m := head.FindStringSubmatch(read(t, file))
		require.NotNilf(t, m, "%s: want a title, and below it a line that begins with Status:", file)
		name := strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(m[2]), ""), " ", "-") + ".md"
		require.Equal(t, name, filepath.Base(file)[len("0000-"):], "the title of decision %s", m[1])
		rows = append(rows, fmt.Sprintf("| [%s](%s) | %s | %s%s |", m[1], filepath.Base(file), m[2], m[3], m[4]))
	}
	_, table, found := strings.Cut(read(t, "decisions/README.md"), "\n|---|---|---|\n")
	require.True(t, found)
	require.Equal(t, rows, strings.Split(strings.TrimSpace(table), "\n"))
}
