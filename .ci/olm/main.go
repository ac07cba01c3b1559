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
	"fmt"
	"os"
	"path/filepath"

	"github.com/operator-framework/api/crds"
	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"

	"github.com/gpuready/gpuready/.ci/olm/bundle"
)

const (
	root = "../../deployments"
	dir  = root + "/olm"
)

// validators are all but those that pull the images, and those that take an API group for
// another's.
var validators = interfaces.Validators{
	validation.ClusterServiceVersionValidator, validation.CustomResourceDefinitionValidator, validation.BundleValidator,
	validation.OperatorHubV2Validator, validation.StandardCapabilitiesValidator, validation.StandardCategoriesValidator,
	validation.ObjectValidator, validation.GoodPracticesValidator,
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var err error
	wrong := 0
	switch {
	case len(args) == 1 && args[0] == "generate":
		err = generate()
	case len(args) == 1 && args[0] == "validate":
		wrong, err = validate()
	case len(args) == 1 && args[0] == "definition":
		err = json.NewEncoder(os.Stdout).Encode(crds.ClusterServiceVersion())
	default:
		err = fmt.Errorf("usage: go run . generate|validate|definition")
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "olm:", err)
		return 2
	case wrong > 0:
		return 1
	}
	return 0
}

func generate() error {
	files, err := bundle.Make(root)
	if err != nil {
		return err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// validate prints what is wrong with the bundle, and how much it is.
func validate() (wrong int, err error) {
	b, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		return 0, err
	}
	for _, result := range validators.Validate(b.ObjectsToValidate()...) {
		for _, e := range result.Errors {
			fmt.Printf("%s: %v\n", result.Name, e)
			wrong++
		}
		for _, w := range result.Warnings {
			fmt.Printf("%s: warning: %v\n", result.Name, w)
		}
	}
	if wrong == 0 {
		fmt.Printf("olm: the bundle %s is one\n", b.Name)
	}
	return wrong, nil
}
