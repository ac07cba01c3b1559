// Olm generates the bundle for the Operator Lifecycle Manager from the static manifests, and
// checks it with the Operator Framework's own validators.
//
//	go run . generate      writes bin/bundle; generate OPERATOR.yaml DIR makes a release's bundle of
//	                       its manifest
//	go run . validate      checks bin/bundle, or validate DIR another one
//	go run . definition    prints the lifecycle manager's definition of ClusterServiceVersion,
//	                       for a cluster without it
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

	"github.com/operator-framework/api/crds"
)

const root = "../.."

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
	deployments, dir := filepath.Join(root, "deployments"), filepath.Join(root, "bin/bundle")
	operator := filepath.Join(deployments, operatorManifest)
	switch {
	case len(args) == 3 && args[0] == "generate":
		operator, dir = args[1], args[2]
	case len(args) == 2 && args[0] == "validate":
		dir = args[1]
	case len(args) != 1:
		return fmt.Errorf("usage: go run . generate [OPERATOR.yaml DIR]|validate [DIR]|definition")
	}
	switch args[0] {
	case "generate":
		return write(deployments, operator, dir)
	case "validate":
		return validate(dir)
	case "definition":
		return json.NewEncoder(os.Stdout).Encode(crds.ClusterServiceVersion())
	}
	return fmt.Errorf("%q is not generate, validate or definition", args[0])
}
