// Licences writes THIRD_PARTY.md: the Go modules that are linked into programs, with their
// versions and licences. It finds the licence of a module by its text in the module cache.
//
//	go run . ../.. ./operator ./toolkit
//
// The arguments are the repository's folder, and the programs. Exit code 1 means that a module
// has a licence that is not permitted or not known, 2 that a command failed.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// permitted are the SPDX identifiers of licences under which a linked module may be. Another
// one is a decision of the project, not of whoever adds the module.
var permitted = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

// certain is the percentage of a file that must be text of known licences.
const certain = 75

// errRefused means that licences are not permitted or not known; they were printed.
var errRefused = errors.New("licences are not permitted")

// module is a linked module; the standard library is one, too.
type module struct{ path, version, dir string }

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: go run . FOLDER PROGRAM...")
		os.Exit(2)
	}
	switch err := run(os.Args[1], os.Args[2:]); {
	case errors.Is(err, errRefused):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(2)
	}
}

func run(root string, programs []string) error {
	all, err := linked(root, programs)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(head)
	refused := false
	for _, m := range all {
		ids, err := licences(m.dir)
		if err != nil {
			fmt.Fprintf(os.Stderr, "licences: %s %s: %v\n", m.path, m.version, err)
			refused = true
			continue
		}
		for _, id := range ids {
			if !slices.Contains(permitted, id) {
				fmt.Fprintf(os.Stderr, "licences: %s %s has the licence %s, which is not permitted: do without it, or permit it in .ci/licences\n", m.path, m.version, id)
				refused = true
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", m.path, m.version, strings.Join(ids, " AND "))
	}
	if refused {
		return errRefused
	}
	return os.WriteFile(filepath.Join(root, "THIRD_PARTY.md"), b.Bytes(), 0o644)
}

const head = "# Third-party software\n\n" +
	"These Go modules are linked into the programs, on amd64 or arm64. Made by `make third-party`.\n\n" +
	"| Module | Version | Licence (SPDX) |\n|---|---|---|\n"

// linked returns the modules of the programs, in the order of their names, after Go's own
// standard library.
func linked(root string, programs []string) ([]module, error) {
	found := map[module]bool{}
	for _, arch := range []string{"amd64", "arm64"} {
		out, err := list(root, []string{"GOOS=linux", "GOARCH=" + arch, "CGO_ENABLED=1"}, append([]string{"list", "-tags=grpcnotrace", "-deps",
			"-f={{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}"}, programs...)...)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(bytes.NewReader(out))
		for lines.Scan() {
			if path, rest, is := strings.Cut(lines.Text(), "\t"); is {
				version, dir, _ := strings.Cut(rest, "\t")
				found[module{path, version, dir}] = true
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("go list finds no modules of %s", strings.Join(programs, ", "))
	}
	language, err := list(root, nil, "mod", "edit", "-print")
	if err != nil {
		return nil, err
	}
	goroot, err := list(root, nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std := module{path: "Go's standard library", version: "go" + string(goLine.FindSubmatch(language)[1]), dir: strings.TrimSpace(string(goroot))}
	return append([]module{std}, slices.SortedFunc(maps.Keys(found), func(a, b module) int { return strings.Compare(a.path, b.path) })...), nil
}

// goLine is the line of go.mod with the version of Go.
var goLine = regexp.MustCompile(`(?m)^go (\S+)$`)

// list runs the go command.
func list(root string, env []string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), env...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out, nil
}

// licenceFile matches the names of files with a licence. Documentation (LICENSE.docs) is not
// linked.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-.](txt|md|apache|mit|bsd|libyaml))?$`)

// licences returns the SPDX identifiers of the licences in a module's folder.
func licences(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		cover := licensecheck.Scan(text)
		if cover.Percent < certain {
			return nil, fmt.Errorf("%s: %.0f %% of the text are known licences: read it, and name its licence in .ci/licences", e.Name(), cover.Percent)
		}
		for _, m := range cover.Match {
			ids[m.ID] = true
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("no licence was found")
	}
	return slices.Sorted(maps.Keys(ids)), nil
}
