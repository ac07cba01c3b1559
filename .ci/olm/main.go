// Olm generates the bundle for the Operator Lifecycle Manager, deployments/olm, from
// the chart, and checks it with the Operator Framework's own validators. It can also
// print the lifecycle manager's definition of ClusterServiceVersion, for a cluster
// without it.
//
// go run . generate go run . validate go run . definition
//
// Run it in .ci/olm. Exit code 1 means that the bundle has errors, 2 that a command
// failed.
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

// errWrong means that the bundle has errors, which were printed.
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
	return fmt.Errorf("%q is not generate, validate or definition", args[0])
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
	fmt.Printf("olm: the bundle %s is valid\n", v.Bundle)
	return nil
}
