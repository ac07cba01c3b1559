// Licences writes THIRD_PARTY.md: the Go modules that are linked into programs, with their
// versions and licences. It finds the licence of a module by its text in the module cache.
//
//	go run . ../.. ./operator ./toolkit
//
// The arguments are the repository's folder, and the programs. Exit code 1 means that a module
// has a licence that is not permitted or not known, 2 that a command failed.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// permitted are the SPDX identifiers of licences under which a linked module may be. Another
// one is a decision of the project, not of whoever adds the module.
var permitted = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0"}

// errRefused means that licences are not permitted or not known; they were printed.
var errRefused = errors.New("licences are not permitted")

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
