// Package verdict runs the Operator Framework's validators on a bundle.
package verdict

import (
	"fmt"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
)

// validators are all validators except those that pull the images, and those that take
// an API group for another's.
var validators = interfaces.Validators{
	validation.ClusterServiceVersionValidator, validation.CustomResourceDefinitionValidator, validation.BundleValidator,
	validation.OperatorHubV2Validator, validation.StandardCapabilitiesValidator, validation.StandardCategoriesValidator,
	validation.ObjectValidator, validation.GoodPracticesValidator,
}

// Verdict is their result, one line for each finding.
type Verdict struct {
	Bundle   string // its name
	Wrong    []string
	Doubtful []string // their warnings
}

// On validates the bundle in a folder.
func On(dir string) (Verdict, error) {
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Bundle: bundle.Name}
	for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
		for _, e := range result.Errors {
			v.Wrong = append(v.Wrong, fmt.Sprintf("%s: %v", result.Name, e))
		}
		for _, w := range result.Warnings {
			v.Doubtful = append(v.Doubtful, fmt.Sprintf("%s: warning: %v", result.Name, w))
		}
	}
	return v, nil
}
