package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// unreleased is the folder of the entries that no release has yet.
const unreleased = "unreleased"

// releaseFile describes the release of a folder.
const releaseFile = "RELEASE.yaml"

// section is a release, or what will be in the next one.
type section struct {
	Version string `json:"-"`       // "v0.2.0", or unreleased
	Date    string `json:"date"`    // "2026-11-27"; empty for unreleased
	Summary string `json:"summary"` // one paragraph
	entries []entry
}

var versionFolder = regexp.MustCompile(`^v(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$`)

// readAll reads all sections, the newest first. It returns all problems of all files.
func readAll(dir string) ([]section, error) {
	folders, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []section
	var errs []error
	for _, f := range folders {
		path := filepath.Join(dir, f.Name())
		if !f.IsDir() || f.Name() != unreleased && !versionFolder.MatchString(f.Name()) {
			errs = append(errs, fmt.Errorf("%s: neither the folder of a version, as v1.2.3, nor of unreleased changes", path))
			continue
		}
		s, err := readSection(path)
		errs = append(errs, err)
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b section) int { return compareVersions(b.Version, a.Version) })
	return all, errors.Join(errs...)
}

func readSection(path string) (section, error) {
	s := section{Version: filepath.Base(path)}
	var errs []error
	if s.Version != unreleased {
		file := filepath.Join(path, releaseFile)
		if err := readStrict(file, &s); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
		if _, err := time.Parse(time.DateOnly, s.Date); err != nil {
			errs = append(errs, fmt.Errorf("%s: date: %.20q is not a day as 2026-11-27", file, s.Date))
		}
		s.Summary = strings.TrimSpace(s.Summary)
		if err := checkPlain(s.Summary); err != nil || s.Summary == "" || len(s.Summary) > maxText {
			errs = append(errs, fmt.Errorf("%s: summary: 1 to %d characters of plain text are required: %w", file, maxText, cmp.Or(err, errors.New("it is empty or too long"))))
		}
	} else if _, err := os.Lstat(filepath.Join(path, releaseFile)); err == nil {
		errs = append(errs, fmt.Errorf("%s: unreleased changes have no release; run: go run . cut VERSION", filepath.Join(path, releaseFile)))
	}
	var err error
	s.entries, err = readFolder(path)
	return s, errors.Join(append(errs, err)...)
}

// compareVersions orders versions by their numbers. What is unreleased comes after all.
func compareVersions(a, b string) int {
	numbers := func(v string) (all []int) {
		if v == unreleased {
			return []int{1 << 30}
		}
		for part := range strings.SplitSeq(strings.TrimPrefix(v, "v"), ".") {
			n, _ := strconv.Atoi(part) // versionFolder bounds it
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(numbers(a), numbers(b))
}

// preRelease matches a version before a release. It has no section: its entries are the unreleased ones,
// which the release will have.
var preRelease = regexp.MustCompile(`^v[0-9]{1,6}\.[0-9]{1,6}\.[0-9]{1,6}-[0-9A-Za-z.-]{1,100}$`)

// requireSection checks that a version has a section with entries, and a pre-release unreleased entries.
func requireSection(all []section, version string) error {
	if preRelease.MatchString(version) {
		if s := all[:min(len(all), 1)]; len(s) == 0 || s[0].Version != unreleased || len(s[0].entries) == 0 {
			return fmt.Errorf("changelog/%s: no entries, which %.40s needs", unreleased, version)
		}
		return nil
	}
	for _, s := range all {
		if s.Version == version && len(s.entries) > 0 {
			return nil
		}
	}
	return fmt.Errorf("changelog/%.40s: no entries of the version that this tree builds; run, in .ci/changelog: go run . cut %.40s", version, version)
}

// render returns the text of CHANGELOG.md.
func render(all []section) []byte {
	var b bytes.Buffer
	b.WriteString("# Changelog\n\nWhat changed for users, by release. " +
		"Made from the files in [changelog/](changelog) by `make changelog`; do not edit.\n")
	for _, s := range all {
		if len(s.entries) == 0 {
			continue
		}
		if s.Version == unreleased {
			b.WriteString("\n## Unreleased\n")
		} else {
			fmt.Fprintf(&b, "\n## %s (%s)\n\n%s\n", s.Version, s.Date, s.Summary)
		}
		s.write(&b, "###")
	}
	return b.Bytes()
}

// notes returns the notes of one release.
func notes(all []section, version string) (string, error) {
	if preRelease.MatchString(version) {
		if err := requireSection(all, version); err != nil {
			return "", err
		}
		b := bytes.NewBufferString("A pre-release, for tests: what it has may still change.\n")
		all[0].write(b, "##")
		return b.String(), nil
	}
	for _, s := range all {
		if s.Version != version {
			continue
		}
		if version == unreleased {
			return "", errors.New("unreleased changes have no notes yet; run: go run . cut VERSION")
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "%s\n", s.Summary)
		s.write(&b, "##")
		return b.String(), nil
	}
	return "", fmt.Errorf("changelog/%.40s: no such release", version)
}

// write writes the entries of a section by kind and component.
func (s section) write(b *bytes.Buffer, heading string) {
	for _, k := range kinds {
		first := true
		for _, component := range components {
			for _, e := range s.entries {
				if e.Kind != k.name || e.Component != component {
					continue
				}
				if first {
					fmt.Fprintf(b, "\n%s %s%s\n\n", heading, strings.ToUpper(k.name[:1]), k.name[1:])
					first = false
				}
				fmt.Fprintf(b, "- **%s: %s.** %s\n", e.Component, e.Title, flatten(e.Text))
				if e.Action != "" {
					fmt.Fprintf(b, "  *What to do:* %s\n", flatten(e.Action))
				}
			}
		}
	}
}

// flatten joins the lines of a text.
func flatten(text string) string { return strings.Join(strings.Fields(text), " ") }

// cut makes a section of the unreleased entries.
func cut(dir, version string, today time.Time) error {
	if !versionFolder.MatchString(version) {
		return fmt.Errorf("%.40q is not a version as v1.2.3", version)
	}
	from, to := filepath.Join(dir, unreleased), filepath.Join(dir, version)
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s exists", to)
	}
	found, err := readFolder(from)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("%s: no entries", from)
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	text := fmt.Sprintf("date: %q\nsummary: >-\n  # one paragraph for users\n", today.Format(time.DateOnly))
	if err := os.WriteFile(filepath.Join(to, releaseFile), []byte(text), 0o644); err != nil {
		return err
	}
	fmt.Printf("Write the summary in %s, then run make changelog.\n", filepath.Join(to, releaseFile))
	return nil
}
