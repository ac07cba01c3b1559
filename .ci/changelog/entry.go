package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// entry describes one change, for users.
type entry struct {
	Kind      string `json:"kind"`      // one of kinds
	Component string `json:"component"` // one of components
	Title     string `json:"title"`     // one sentence without a full stop
	Text      string `json:"text"`      // what a user sees of it
	Action    string `json:"action"`    // what a user does about it; kinds says when it is required
}

// kinds are the kinds of changes in the order of CHANGELOG.md. action says whether an entry of this kind
// must tell users what to do, even if that is nothing.
var kinds = []struct {
	name   string
	action bool
}{
	{"security", true}, {"removed", true}, {"deprecated", true}, {"changed", true}, {"added", false}, {"fixed", false},
}

// components lists the parts by the names that users know, in the order of CHANGELOG.md.
var components = []string{
	"release", "driver", "toolkit", "device-plugin", "dra-driver", "validator", "operator", "kubectl-gpu",
	"provision", "cuda-samples", "simulator", "monitoring", "docs",
}

// Bounds of entries. Those of title, text and action are in characters.
const (
	maxBytes  = 4096 // of a file
	maxFiles  = 500  // in a folder
	minTitle  = 15
	maxTitle  = 90
	maxText   = 900
	maxAction = 500
)

var fileName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*\.yaml$`)

// readFolder reads the entries of a folder, except for the file that describes its release.
func readFolder(dir string) ([]entry, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%s: %d files; at most %d", dir, len(files), maxFiles)
	}
	var all []entry
	var errs []error
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if f.Name() == releaseFile {
			continue
		}
		if !fileName.MatchString(f.Name()) {
			errs = append(errs, fmt.Errorf("%s: not the name of an entry: lower-case words joined by hyphens, and .yaml", path))
			continue
		}
		var e entry
		err := readStrict(path, &e)
		if err == nil {
			err = e.check()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
		all = append(all, e)
	}
	return all, errors.Join(errs...)
}

// readStrict decodes a YAML file and refuses unknown and repeated keys.
func readStrict(path string, into any) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBytes {
		return fmt.Errorf("a regular file of at most %d bytes is required", maxBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return yaml.UnmarshalStrict(data, into)
}

// check trims the texts of an entry and returns all its problems.
func (e *entry) check() error {
	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	e.Title, e.Text, e.Action = strings.TrimSpace(e.Title), strings.TrimSpace(e.Text), strings.TrimSpace(e.Action)
	kind := slices.IndexFunc(kinds, func(k struct {
		name   string
		action bool
	}) bool {
		return k.name == e.Kind
	})
	switch {
	case kind < 0:
		problem("kind: %.40q; one of security, removed, deprecated, changed, added, fixed is required", e.Kind)
	case kinds[kind].action && e.Action == "":
		problem("action: empty; say what a user does about a change of kind %q, or that nothing is to be done", e.Kind)
	}
	if !slices.Contains(components, e.Component) {
		problem("component: %.40q; one of %s is required", e.Component, strings.Join(components, ", "))
	}
	if n := utf8.RuneCountInString(e.Title); n < minTitle || n > maxTitle {
		problem("title: %d characters; %d to %d are required", n, minTitle, maxTitle)
	}
	if first, _ := utf8.DecodeRuneInString(e.Title); strings.HasSuffix(e.Title, ".") || strings.Contains(e.Title, "\n") || unicode.IsLower(first) {
		problem("title: one line that does not begin with a small letter, without a full stop, is required")
	}
	if n := utf8.RuneCountInString(e.Text); n == 0 || n > maxText {
		problem("text: %d characters; 1 to %d are required", n, maxText)
	}
	if n := utf8.RuneCountInString(e.Action); n > maxAction {
		problem("action: %d characters; at most %d", n, maxAction)
	}
	for _, field := range []struct{ name, text string }{{"title", e.Title}, {"text", e.Text}, {"action", e.Action}} {
		if err := checkPlain(field.text); err != nil {
			problem("%s: %w", field.name, err)
		}
	}
	return errors.Join(errs...)
}

// checkPlain refuses what is not plain text: control characters, and HTML, images, headings, bold text
// and links of Markdown. Code in backticks is plain, since a terminal shows it as well.
func checkPlain(text string) error {
	for _, r := range text {
		if r != '\n' && !unicode.IsGraphic(r) || r == utf8.RuneError {
			return fmt.Errorf("the character %U is not plain text", r)
		}
	}
	if strings.Count(text, "`")%2 != 0 {
		return errors.New("a backtick without its other one")
	}
	parts := strings.Split(text, "`")
	for i := 1; i < len(parts); i += 2 {
		parts[i] = "code"
	}
	if found := markup.FindString(strings.Join(parts, "")); found != "" {
		return fmt.Errorf("%q is markup; plain text and code in backticks are required", strings.TrimSpace(found))
	}
	return nil
}

var markup = regexp.MustCompile(`<[A-Za-z/!]|\]\(|!\[|(?m:^\s*#+ )|\*\*|__`)
