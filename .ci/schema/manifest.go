package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/.ci/schema/openapi"
)

// findManifests returns the .yaml files at and below the paths.
func findManifests(paths ...string) ([]string, error) {
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

// define adds the kinds of the CustomResourceDefinitions in files.
func define(schemas *openapi.Schemas, files []string) error {
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

// result is the result of a check.
type result struct {
	documents int      // number checked
	wrong     []string // errors with file and line
}

// checkManifests checks the documents of files.
func checkManifests(schemas *openapi.Schemas, files []string) (result, error) {
	var r result
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return result{}, err
		}
		documents, wrong := schemas.Check(data)
		r.documents += documents
		for _, w := range wrong {
			r.wrong = append(r.wrong, fmt.Sprintf("%s:%d: %s", file, w.Line, w.Text))
		}
	}
	return r, nil
}
