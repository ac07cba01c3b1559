// Package manifest finds manifests and checks them against the schemas of an API.
package manifest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/.ci/schema/openapi"
)

// Files returns the .yaml files at and below the paths.
func Files(paths ...string) ([]string, error) {
	var files []string
	for _, path := range paths {
		err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(p, ".yaml") {
				files = append(files, p)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no .yaml files at %s", strings.Join(paths, ", "))
	}
	slices.Sort(files)
	return files, nil
}

// Define adds the kinds of the CustomResourceDefinitions in files.
func Define(schemas *openapi.Schemas, files []string) error {
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := schemas.Define(data); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// Result is the result of a check.
type Result struct {
	Documents int      // number checked
	Wrong     []string // errors with file and line
}

// Check checks the documents of files.
func Check(schemas *openapi.Schemas, files []string) (Result, error) {
	var r Result
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return Result{}, err
		}
		documents, wrong := schemas.Check(data)
		r.Documents += documents
		for _, w := range wrong {
			r.Wrong = append(r.Wrong, fmt.Sprintf("%s:%d: %s", file, w.Line, w.Text))
		}
	}
	return r, nil
}
