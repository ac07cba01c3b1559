// Command record adds the fields of a release of NVIDIA's GPU Operator to the history that this
// product's schema is tested with:
//
//	go run ./operator/api/v1/history/record v25.10.0 ~/src/gpu-operator
//	go run ./operator/api/v1/history/record v25.10.0 nvidia.com_clusterpolicies.yaml
//
// The source is a checkout, the CustomResourceDefinition itself, or a list of fields, one a line,
// whose name ends in ".txt".
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/operator/api/v1/history"
)

const file = "operator/api/v1/history/fields.txt"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 || !strings.HasPrefix(args[0], "v") {
		return errors.New("usage, in the repository's root: record RELEASE SOURCE, as in record v25.10.0 ~/src/gpu-operator")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	h, err := history.Parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	paths, err := read(args[1])
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	h.Add(args[0], paths)
	fmt.Printf("%s: %d fields\n", args[0], len(paths))
	return os.WriteFile(file, []byte(h.String()), 0o644)
}

// read returns the fields of a checkout, a definition or a list.
func read(source string) ([]string, error) {
	info, err := os.Stat(source)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		if source, err = find(source); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(source, ".txt") {
		return strings.Fields(string(text)), nil
	}
	return history.Paths(text)
}

// find returns the definition in a checkout.
func find(dir string) (found string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := filepath.Base(path)
		if err == nil && !d.IsDir() && strings.HasPrefix(name, "nvidia.com_clusterpolicies") && strings.HasSuffix(name, ".yaml") && !strings.Contains(path, "vendor") {
			found = path
			return filepath.SkipAll
		}
		return err
	})
	if err == nil && found == "" {
		err = errors.New("there is no file nvidia.com_clusterpolicies*.yaml in it")
	}
	return found, err
}
