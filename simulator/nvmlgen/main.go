// Command nvmlgen writes simulator/nvml/stubs.c: a body for every function that
// nvml.h declares and no other file there defines. go-nvml binds lazily, so a
// name that is missing from the library kills the process that calls it. The header
// is the one of the go-nvml module that go.mod names.
//
// Run it from the top of the tree, whenever a real body is added:
//
//	go run ./simulator/nvmlgen
package main

import (
	"flag"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
)

// stubs is the name of the file that is written.
const stubs = "stubs.c"

func main() {
	dir := flag.String("dir", "simulator/nvml", "folder of the library's C files")
	flag.Parse()
	header, err := findHeader()
	if err == nil {
		err = write(*dir, header)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nvmlgen: %v; run it from the top of the tree or set -dir\n", err)
		os.Exit(1)
	}
}

// findHeader returns the path of the nvml.h that go-nvml is compiled with: in the
// module cache, or in a vendor folder.
func findHeader() (string, error) {
	p, err := build.Import("github.com/NVIDIA/go-nvml/pkg/nvml", ".", build.FindOnly)
	if err != nil {
		return "", fmt.Errorf("find nvml.h in the go-nvml module: %w; run go mod download", err)
	}
	return filepath.Join(p.Dir, "nvml.h"), nil
}

func write(dir, header string) error {
	text, err := generate(dir, header)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, stubs), text, 0o644)
}

// generate returns the text of the stubs for the library in a folder.
func generate(dir, header string) ([]byte, error) {
	declared, err := readDeclared(header)
	if err != nil {
		return nil, err
	}
	defined, err := readDefined(dir)
	if err != nil {
		return nil, err
	}
	return render(declared, defined), nil
}
