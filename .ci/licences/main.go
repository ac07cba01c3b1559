// Licences writes THIRD_PARTY.md: the Go modules that are linked into programs, with their
// versions and licences, the charts of others, and the notice of nvml.h. It finds the licence of a
// module by its text in the module cache.
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
	others, err := charts(root)
	if err != nil {
		return err
	}
	b.WriteString(others)
	header, err := nvmlNotice(all)
	if err != nil {
		return err
	}
	b.WriteString(header)
	return os.WriteFile(filepath.Join(root, "THIRD_PARTY.md"), b.Bytes(), 0o644)
}

// nvmlHeader is the header in go-nvml that has a notice of its own, beside the module's licence.
const nvmlHeader = "pkg/nvml/nvml.h"

// nvmlNotice returns the section with the notice of nvml.h, word by word, as the notice itself requires
// of the documentation of programs that use the file.
func nvmlNotice(all []module) (string, error) {
	i := slices.IndexFunc(all, func(m module) bool { return m.path == "github.com/NVIDIA/go-nvml" })
	if i < 0 {
		return "", errors.New("github.com/NVIDIA/go-nvml is not linked: remove the notice of nvml.h from .ci/licences")
	}
	text, err := os.ReadFile(filepath.Join(all[i].dir, nvmlHeader))
	if err != nil {
		return "", err
	}
	notice, err := noticeOf(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", nvmlHeader, err)
	}
	return nvmlHead + "\n" + notice, nil
}

const nvmlHead = `
## nvml.h

The header ` + "`nvml.h`" + ` of the module go-nvml has a notice of its own. It is compiled into the programs that use cgo
(` + "`gpu-device-plugin`, `gpu-toolkit`, `gpu-validator`, `gpusim`" + `) and into the simulator's ` + "`libnvidia-ml`" + ` and ` + "`nvidia-smi`" + `.
The entries of that library, ` + "`simulator/nvml/entry.c`" + ` and ` + "`names.h`" + `, are generated from it. The file itself is not in this repository.
`

// noticeOf returns the first comment with a copyright line, indented for Markdown.
func noticeOf(header string) (string, error) {
	for _, comment := range strings.Split(header, "/*")[1:] {
		comment, _, closed := strings.Cut(comment, "*/")
		if !closed || !strings.Contains(comment, "Copyright") {
			continue
		}
		var b strings.Builder
		for line := range strings.Lines(strings.Trim(comment, "\n ")) {
			line = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(line), "*"), " ")
			b.WriteString(strings.TrimRight("    "+line, " ") + "\n")
		}
		return b.String(), nil
	}
	return "", errors.New("no comment has a copyright line: read the file, and correct .ci/licences")
}

const head = "# Third-party software\n\n" +
	"These Go modules are linked into the programs, on amd64 or arm64. Made by `make third-party`.\n\n" +
	"| Module | Version | Licence (SPDX) |\n|---|---|---|\n"
