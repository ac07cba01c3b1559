// Schema checks manifests against the API that they are written for: the OpenAPI
// files in the source of Kubernetes, of the version that test/cluster runs, and what
// deployments/crds and Node Feature Discovery define. It is run in .ci/schema.
//
//	go run . ../../deployments/static
//
// Unknown fields, wrong types, missing fields, keys that are given twice and
// words that YAML 1.1 takes for a boolean are told with file and line. Exit code 1
// says that something was found, 2 that nothing could be checked.
package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/.ci/schema/kubernetes"
	"github.com/gpuready/gpuready/.ci/schema/openapi"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(paths []string) int {
	if len(paths) == 0 {
		fmt.Fprintln(os.Stderr, "usage: schema FILE|FOLDER...")
		return 2
	}
	files, err := manifests(paths)
	if err != nil {
		return fail(err)
	}
	dir, version, err := kubernetes.Source(context.Background())
	if err != nil {
		return fail(err)
	}
	schemas, err := openapi.Load(filepath.Join(dir, "api/openapi-spec/v3"))
	if err != nil {
		return fail(err)
	}
	nfd, _, err := kubernetes.Module(context.Background(), "test/cluster/binaries/nfd", "sigs.k8s.io/node-feature-discovery")
	if err != nil {
		return fail(err)
	}
	if err := define(schemas, "../../deployments/crds", filepath.Join(nfd, "deployment/base/nfd-crds/nfd-api-crds.yaml")); err != nil {
		return fail(err)
	}
	found, documents := 0, 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fail(err)
		}
		n, wrong := schemas.Check(data)
		documents += n
		for _, w := range wrong {
			fmt.Printf("%s:%d: %s\n", file, w.Line, w.Text)
		}
		found += len(wrong)
	}
	if found > 0 {
		return 1
	}
	fmt.Printf("schema: %d documents in %d files agree with Kubernetes %s\n", documents, len(files), version)
	return 0
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "schema:", err)
	return 2
}

// define adds the kinds that CustomResourceDefinitions bring.
func define(schemas *openapi.Schemas, paths ...string) error {
	files, err := manifests(paths)
	if err != nil {
		return err
	}
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

// manifests are the .yaml files at and below the paths.
func manifests(paths []string) ([]string, error) {
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
