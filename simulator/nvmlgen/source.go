package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

var (
	comment     = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	declaration = regexp.MustCompile(`\bDECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(`)
	// A real body begins in column 0 with API, or is made by a macro of internal.h.
	body = regexp.MustCompile(`(?m)^(?:API [^\n(]*\b|GET_\w+\()(nvml\w+)[(,]`)
)

// readDeclared returns the functions that the header declares, sorted.
func readDeclared(header string) ([]string, error) {
	text, err := os.ReadFile(header)
	if err != nil {
		return nil, err
	}
	declared := names(declaration, comment.ReplaceAll(text, nil))
	if len(declared) == 0 {
		return nil, fmt.Errorf("%s declares nothing", header)
	}
	return declared, nil
}

// readDefined returns the functions that C files other than the stubs define.
func readDefined(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.c"))
	if err != nil {
		return nil, err
	}
	var defined []string
	for _, file := range files {
		if filepath.Base(file) == stubs {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		defined = append(defined, names(body, text)...)
	}
	return defined, nil
}

// names returns the distinct matches of the expression's first group, sorted.
func names(expression *regexp.Regexp, text []byte) []string {
	var found []string
	for _, match := range expression.FindAllSubmatch(text, -1) {
		found = append(found, string(match[1]))
	}
	slices.Sort(found)
	return slices.Compact(found)
}
