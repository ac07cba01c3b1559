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

// anchors returns the link anchors of a page's headings, as GitHub generates them.
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
			path, anchor, _ := strings.Cut(m[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			info, err := os.Stat(target)
			if err != nil {
				t.Errorf("%s: %s leads nowhere: %v", page, m[1], err)
				continue
			}
			if anchor != "" && (info.IsDir() || !anchors(read(t, target))[anchor]) {
				t.Errorf("%s: %s: no heading of that page has this anchor", page, m[1])
			}
		}
	}
	require.Greater(t, checked, 50, "the pages have links")
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	require.Equal(t, map[string]bool{
		"why-is-this-gpu-not-allocatable": true, "4-switch-one-node-then-the-others": true, "the-nodes-voice": true,
		"a-gpusim-serve": true, "a-gpusim-serve-1": true,
	}, anchors("# Why is this GPU not allocatable?\n## 4. Switch one node, then the others\n### The node's voice\n## A `gpusim serve`\n## A [gpusim serve](x.md)\n\n    # no heading\n"))
}

// A link to a decision must have the number of its file.
func TestDecisionsAreCalledByTheirNumbers(t *testing.T) {
	files, err := filepath.Glob("decisions/*.md")
	require.NoError(t, err)
	for i, file := range files {
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
