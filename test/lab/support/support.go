// Package support keeps what the support matrix in docs/support.md may claim. A scenario that passed
// writes a record of the environment it ran in to docs/support, and the tables are made of these records:
// a cell is tested if a record matches it. docs/support/matrix.yaml has the rows, and what is known
// about those that no record matches.
package support

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Schema is the schema of records.
const Schema = "gpuready.io/support/v1"

// maxRecord bounds the size of a record.
const maxRecord = 64 << 10

// Record describes a test that passed, and its environment.
type Record struct {
	Schema      string            `json:"schema"`
	Test        string            `json:"test"`    // "TestKubernetesVersion"
	Command     string            `json:"command"` // "make e2e-versions"
	Date        string            `json:"date"`    // "2026-11-27"
	Version     string            `json:"version"` // of gpuready
	Commit      string            `json:"commit"`
	Seconds     int               `json:"seconds"`
	Scenarios   []string          `json:"scenarios,omitempty"` // names of subtests that passed
	Environment map[string]string `json:"environment"`         // by axis, such as "kubelet": "v1.37.1"
}

// axes are the keys of an environment.
var axes = []string{"kubernetes", "kubelet", "gates", "runtime", "os", "kernel", "architecture", "gpu", "driver"}

var (
	date = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
	name = regexp.MustCompile(`[^a-z0-9.]+`)
)

// Write writes a record to a folder. It replaces the record of the same test with the same kubelet and
// runtime.
func Write(dir string, r Record) error {
	r.Schema = Schema
	if err := r.check(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	file := strings.ToLower(strings.Join([]string{strings.TrimPrefix(r.Test, "Test"), r.Environment["kubelet"], r.Environment["runtime"], r.Environment["gates"]}, " "))
	return os.WriteFile(filepath.Join(dir, strings.Trim(name.ReplaceAllString(file, "-"), "-")+".json"), append(data, '\n'), 0o644)
}

// check returns an error that names the first wrong field.
func (r Record) check() error {
	switch {
	case r.Schema != Schema:
		return fmt.Errorf("schema is %q, not %s", r.Schema, Schema)
	case r.Test == "" || r.Command == "" || r.Version == "":
		return errors.New("test, command and version are required")
	case !date.MatchString(r.Date):
		return fmt.Errorf("date is %q; it must be like 2026-11-27", r.Date)
	case len(r.Environment) == 0:
		return errors.New("environment is empty")
	case r.Commit == "" || strings.HasSuffix(r.Commit, "-dirty"):
		return fmt.Errorf("commit is %q: commit the changes first, so that others can repeat the test", r.Commit)
	}
	for axis := range r.Environment {
		if !slices.Contains(axes, axis) {
			return fmt.Errorf("environment.%s: there are %s", axis, strings.Join(axes, ", "))
		}
	}
	return nil
}

// Read reads all records of a folder.
func Read(dir string) ([]Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Record
	for _, file := range files {
		r, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func read(file string) (r Record, err error) {
	f, err := os.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return r, err
	}
	if len(data) > maxRecord {
		return r, fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	return r, r.check()
}

// Matrix has the rows of the page.
type Matrix struct {
	Tables []Table `json:"tables"`
}

// Table is the table of one subject.
type Table struct {
	Title string `json:"title"`
	About string `json:"about,omitempty"`
	Rows  []Row  `json:"rows"`
}

// Row is a claim. If no record matches it, it is documented or not supported, as the row says.
type Row struct {
	Name string `json:"name"`
	// Match has a prefix of the value for some axes of an environment; a record matches if all are.
	// Empty: no record matches.
	Match map[string]string `json:"match,omitempty"`
	// Measured is a file that a test wrote, relative to docs, and Contains a text in it.
	Measured string `json:"measured,omitempty"`
	Contains string `json:"contains,omitempty"`
	Command  string `json:"command,omitempty"` // which wrote it

	Documented   string `json:"documented,omitempty"`   // a page
	NotSupported string `json:"notSupported,omitempty"` // why
	Note         string `json:"note,omitempty"`
}

// ReadMatrix reads matrix.yaml.
func ReadMatrix(file string) (m Matrix, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	if err := yaml.UnmarshalStrict(data, &m); err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	for _, table := range m.Tables {
		for _, r := range table.Rows {
			if (r.Documented == "") == (r.NotSupported == "") {
				return m, fmt.Errorf("%s: %s: %s: exactly one of documented and notSupported is required, for when no record matches", file, table.Title, r.Name)
			}
			for axis := range r.Match {
				if !slices.Contains(axes, axis) {
					return m, fmt.Errorf("%s: %s: %s: match.%s: there are %s", file, table.Title, r.Name, axis, strings.Join(axes, ", "))
				}
			}
		}
	}
	return m, nil
}

// Section returns the tables in Markdown. docs is the folder with the files that rows name.
func Section(m Matrix, records []Record, docs string) (string, error) {
	var b strings.Builder
	for _, table := range m.Tables {
		fmt.Fprintf(&b, "\n### %s\n\n", table.Title)
		if table.About != "" {
			fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(table.About))
		}
		b.WriteString("| | claim | by | note |\n|---|---|---|---|\n")
		for _, r := range table.Rows {
			claim, by, err := r.claim(records, docs)
			if err != nil {
				return "", fmt.Errorf("%s: %s: %w", table.Title, r.Name, err)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Name, claim, by, cmp.Or(r.Note, "–"))
		}
	}
	return b.String() + "\n", nil
}

// claim returns what may be said about a row.
func (r Row) claim(records []Record, docs string) (claim, by string, err error) {
	var tested []string
	for _, record := range records {
		if r.matches(record) {
			tested = append(tested, fmt.Sprintf("`%s` (%s, %s, %s)", record.Command, record.Test, record.Version, record.Date))
		}
	}
	if r.Measured != "" {
		text, err := os.ReadFile(filepath.Join(docs, r.Measured))
		if err != nil {
			return "", "", err
		}
		if !bytes.Contains(text, []byte(r.Contains)) || r.Contains == "" {
			return "", "", fmt.Errorf("%s does not contain %q", r.Measured, r.Contains)
		}
		tested = append(tested, fmt.Sprintf("`%s` ([measured](%s))", r.Command, r.Measured))
	}
	switch {
	case len(tested) > 0:
		slices.Sort(tested)
		return "**tested here**", strings.Join(slices.Compact(tested), ", "), nil
	case r.NotSupported != "":
		return "not supported", r.NotSupported, nil
	}
	return "documented", "[" + strings.TrimSuffix(filepath.Base(strings.Split(r.Documented, "#")[0]), ".md") + "](" + r.Documented + ")", nil
}

func (r Row) matches(record Record) bool {
	for axis, prefix := range r.Match {
		if !strings.HasPrefix(record.Environment[axis], prefix) {
			return false
		}
	}
	return len(r.Match) > 0
}
