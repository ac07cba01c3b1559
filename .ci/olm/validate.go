package main

import (
	"fmt"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
)

// validators are the Operator Framework's validators, without those that pull the images and
// those that take an API group for another's.
var validators = interfaces.Validators{
	validation.ClusterServiceVersionValidator, validation.CustomResourceDefinitionValidator, validation.BundleValidator,
	validation.OperatorHubV2Validator, validation.StandardCapabilitiesValidator, validation.StandardCategoriesValidator,
	validation.ObjectValidator, validation.GoodPracticesValidator,
}

// validate prints the findings in the bundle in a folder, warnings last. It returns errWrong if
// there are errors.
func validate(dir string) error {
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		return err
	}
	wrong := false
	var warnings []string
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, e := range result.Errors {
			fmt.Printf("%s: %v\n", result.Name, e)
			wrong = true
		}
		for _, w := range result.Warnings {
			warnings = append(warnings, fmt.Sprintf("%s: warning: %v", result.Name, w))
		}
	}
	for _, line := range warnings {
		fmt.Println(line)
	}
	if wrong {
		return errWrong
	}
	fmt.Printf("olm: the bundle %s is valid\n", bundle.Name)
	return nil
}
