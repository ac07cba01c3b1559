package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const good = "kind: added\ncomponent: driver\ntitle: A title of an entry\ntext: >-\n  What a user sees,\n  with `--flag`.\n"

// write makes a folder of sections, by path.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		full := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(text), 0o600))
	}
	return dir
}

func TestWrongEntriesAreRefusedByFileAndField(t *testing.T) {
	for name, test := range map[string]struct{ path, text, want string }{
		"unknown key":           {"a.yaml", good + "issue: 7\n", `unknown field "issue"`},
		"repeated key":          {"a.yaml", good + "kind: fixed\n", `key "kind" already set`},
		"unknown kind":          {"a.yaml", strings.Replace(good, "added", "better", 1), `kind: "better"`},
		"unknown component":     {"a.yaml", strings.Replace(good, "driver", "gpu", 1), `component: "gpu"`},
		"nothing to do is said": {"a.yaml", strings.Replace(good, "added", "changed", 1), "action: empty"},
		"short title":           {"a.yaml", strings.Replace(good, "A title of an entry", "New", 1), "title: 3 characters"},
		"title as a sentence":   {"a.yaml", strings.Replace(good, "of an entry", "of an entry.", 1), "without a full stop"},
		"title in lower case":   {"a.yaml", strings.Replace(good, "A title", "a title", 1), "small letter"},
		"no text":               {"a.yaml", "kind: added\ncomponent: driver\ntitle: A title of an entry\n", "text: 0 characters"},
		"long text":             {"a.yaml", strings.Replace(good, "user", strings.Repeat("u", maxText), 1), "text: 9"},
		"long file":             {"a.yaml", good + strings.Repeat("# \n", maxBytes), "at most 4096 bytes"},
		"HTML":                  {"a.yaml", strings.Replace(good, "user", "<b>user</b>", 1), `text: "<b" is markup`},
		"link":                  {"a.yaml", strings.Replace(good, "user", "[user](x)", 1), "is markup"},
		"open backtick":         {"a.yaml", strings.Replace(good, "`--flag`", "`--flag", 1), "backtick"},
		"control character":     {"a.yaml", strings.Replace(good, "A title of an entry", `"A title \e[31m of an entry"`, 1), "U+001B"},
		"name":                  {"A.yml", good, "not the name of an entry"},
		"release":               {releaseFile, good, "unreleased changes have no release"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"unreleased/" + test.path: test.text})
			_, err := readAll(dir)
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, filepath.Join(unreleased, test.path))
		})
	}
}

func TestCodeBeforeASignIsNoHeading(t *testing.T) {
	dir := write(t, map[string]string{"unreleased/a.yaml": strings.Replace(good, "with `--flag`", "with `--flag` # of GPUs", 1)})
	_, err := readAll(dir)
	require.NoError(t, err)
}

func TestSectionsAndKindsAreInOrder(t *testing.T) {
	release := "date: \"2026-11-27\"\nsummary: What is new.\n"
	dir := write(t, map[string]string{
		"v0.9.0/RELEASE.yaml": release, "v0.9.0/a.yaml": good,
		"v0.10.0/RELEASE.yaml": release, "v0.10.0/b.yaml": good,
		"v0.10.0/c.yaml":    strings.Replace(good, "added", "removed", 1) + "action: Nothing.\n",
		"unreleased/d.yaml": strings.Replace(good, "component: driver", "component: release", 1), "unreleased/e.yaml": good,
	})
	all, err := readAll(dir)
	require.NoError(t, err)
	require.Equal(t, `# Changelog

What changed for users, by release. Made from the files in [changelog/](changelog) by `+"`make changelog`"+`; do not edit.

## Unreleased

### Added

- **release: A title of an entry.** What a user sees, with `+"`--flag`"+`.
- **driver: A title of an entry.** What a user sees, with `+"`--flag`"+`.

## v0.10.0 (2026-11-27)

What is new.

### Removed

- **driver: A title of an entry.** What a user sees, with `+"`--flag`"+`.
  *What to do:* Nothing.

### Added

- **driver: A title of an entry.** What a user sees, with `+"`--flag`"+`.

## v0.9.0 (2026-11-27)

What is new.

### Added

- **driver: A title of an entry.** What a user sees, with `+"`--flag`"+`.
`, string(render(all)))

	text, err := notes(all, "v0.9.0")
	require.NoError(t, err)
	require.Equal(t, "What is new.\n\n## Added\n\n- **driver: A title of an entry.** What a user sees, with `--flag`.\n", text)
	_, err = notes(all, "v0.8.0")
	require.ErrorContains(t, err, "no such release")
}

func TestAVersionNeedsItsSection(t *testing.T) {
	all := []section{{Version: "v0.1.0", entries: []entry{{}}}, {Version: "v0.2.0"}}
	require.NoError(t, requireSection(all, "v0.1.0"))
	require.ErrorContains(t, requireSection(all, "v0.2.0"), "go run . cut v0.2.0")
	require.ErrorContains(t, requireSection(all, "v0.3.0"), "changelog/v0.3.0")
}

func TestAPreReleaseHasTheUnreleasedEntries(t *testing.T) {
	const about = "date: \"2026-12-01\"\nsummary: New.\n"
	all, err := readAll(write(t, map[string]string{"unreleased/a.yaml": good, "v0.1.0/b.yaml": good, "v0.1.0/RELEASE.yaml": about}))
	require.NoError(t, err)
	require.NoError(t, requireSection(all, "v0.2.0-rc1"))
	text, err := notes(all, "v0.2.0-rc1")
	require.NoError(t, err)
	require.Contains(t, text, "pre-release")
	require.Contains(t, text, "- **driver: A title of an entry.**")

	all, err = readAll(write(t, map[string]string{"v0.1.0/b.yaml": good, "v0.1.0/RELEASE.yaml": about}))
	require.NoError(t, err)
	require.ErrorContains(t, requireSection(all, "v0.2.0-rc1"), "changelog/unreleased: no entries")
	_, err = notes(all, "v0.2.0-rc1")
	require.ErrorContains(t, err, "changelog/unreleased: no entries")
	require.Error(t, requireSection(nil, "v0.2.0-rc1"))
}

func TestCutMakesASectionOfUnreleasedEntries(t *testing.T) {
	dir := write(t, map[string]string{"unreleased/a.yaml": good})
	require.ErrorContains(t, cut(dir, "0.2", time.Now()), "not a version")
	require.NoError(t, cut(dir, "v0.2.0", time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)))
	require.ErrorContains(t, cut(dir, "v0.2.0", time.Now()), "exists")
	_, err := readAll(dir)
	require.ErrorContains(t, err, "summary", "a person has to write it")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "v0.2.0", releaseFile), []byte("date: \"2026-12-01\"\nsummary: New.\n"), 0o600))
	all, err := readAll(dir)
	require.NoError(t, err)
	require.Equal(t, "v0.2.0", all[0].Version)
	require.Len(t, all[0].entries, 1)
}

// FuzzEntry checks that no entry breaks the layout of CHANGELOG.md: an entry is one line, and a
// second one for what to do.
func FuzzEntry(f *testing.F) {
	f.Add(good)
	f.Add(good + "action: |\n  one\n\n  ## two\n")
	f.Fuzz(func(t *testing.T, text string) {
		dir := write(t, map[string]string{"unreleased/a.yaml": text})
		all, err := readAll(dir)
		if err != nil {
			return
		}
		lines := strings.Split(strings.TrimSpace(string(render(all))), "\n")
		if len(lines) > 10 || !strings.HasPrefix(lines[8], "- **") {
			t.Fatalf("%q", lines)
		}
	})
}
