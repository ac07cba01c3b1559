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

// certain is the percentage of a file that must be text of known licences.
const certain = 75

// module is a linked module; the standard library is one, too.
type module struct{ path, version, dir string }

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
