// Olm makes the bundle for the Operator Lifecycle Manager, deployments/olm, of what the
// chart has, and checks it with the Operator Framework's own validators. It prints the
// lifecycle manager's own definition of what the bundle has, for a cluster without one.
//
//	go run . generate
//	go run . validate
//	go run . definition
//
// It is run in .ci/olm. Exit code 1 says that the bundle is wrong, 2 that something could
// not be done.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/operator-framework/api/crds"

	"github.com/gpuready/gpuready/.ci/olm/bundle"
	"github.com/gpuready/gpuready/.ci/olm/verdict"
)

const root = "../../deployments"

// errWrong says that the bundle is wrong: how has been told.
var errWrong = errors.New("the bundle is wrong")

func main() {
	switch err := run(os.Args[1:]); {
	case errors.Is(err, errWrong):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "olm:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: go run . generate|validate|definition")
	}
	dir := filepath.Join(root, "olm")
	switch args[0] {
	case "generate":
		return bundle.Write(root, dir)
	case "validate":
		return validate(dir)
	case "definition":
		return json.NewEncoder(os.Stdout).Encode(crds.ClusterServiceVersion())
	}
	return fmt.Errorf("%q is none of generate, validate and definition", args[0])
}

func validate(dir string) error {
	v, err := verdict.On(dir)
	if err != nil {
		return err
	}
	for _, line := range slices.Concat(v.Wrong, v.Doubtful) {
		fmt.Println(line)
	}
	if len(v.Wrong) > 0 {
		return errWrong
	}
	fmt.Printf("olm: the bundle %s is one\n", v.Bundle)
	return nil
}
