// Command nvmlgen writes simulator/nvml/stubs.c: a body for every function that
// nvml.h declares and no other file there defines. go-nvml binds lazily, so a
// name that is missing from the library kills the process that calls it.
//
// Run it from the top of the tree, whenever a real body is added:
//
//	go run ./simulator/nvmlgen
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// stubs is the name of the file that is written.
const stubs = "stubs.c"

func main() {
	dir := flag.String("dir", "simulator/nvml", "folder of nvml.h and of the library's C files")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintf(os.Stderr, "nvmlgen: %v; run it from the top of the tree or set -dir\n", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	text, err := generate(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, stubs), text, 0o644)
}

// generate is the text of the stubs for the library in a folder.
func generate(dir string) ([]byte, error) {
	declared, err := readDeclared(dir)
	if err != nil {
		return nil, err
	}
	defined, err := readDefined(dir)
	if err != nil {
		return nil, err
	}
	return render(declared, defined), nil
}
