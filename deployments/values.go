// The values of NVIDIA's chart that the chart accepts, and what becomes of them.

package deployments

import (
	_ "embed"
	"fmt"

	"sigs.k8s.io/yaml"
)

//go:embed helm/gpuready/files/nvidia-values.yaml
var foreignValues []byte

// ForeignValue is a value of NVIDIA's chart, or of a chart made from it, that is neither a value
// of the chart nor a field of ClusterPolicy. The chart accepts it.
type ForeignValue struct {
	Key    string   `json:"key"`              // its path, "operator.cleanupCRD"; it includes all values below it
	As     string   `json:"as,omitempty"`     // the path of the value that it sets; "": none
	By     string   `json:"by,omitempty"`     // the template that follows it, "nvidiadriver.yaml"; "": none
	Is     []any    `json:"is,omitempty"`     // only of these values is Why said; none: of all that are not empty
	Unless []any    `json:"unless,omitempty"` // not said of these values
	When   []string `json:"when,omitempty"`   // paths of values; said only if all of them are true
	Why    string   `json:"why,omitempty"`    // what becomes of the value, for people; "": it is followed
	Do     string   `json:"do,omitempty"`     // what they can do
}

// ForeignValues returns the values in helm/gpuready/files/nvidia-values.yaml.
func ForeignValues() ([]ForeignValue, error) {
	var all []ForeignValue
	if err := yaml.UnmarshalStrict(foreignValues, &all); err != nil {
		return nil, fmt.Errorf("helm/gpuready/files/nvidia-values.yaml: %w", err)
	}
	return all, nil
}

// ignoredFields returns helm/gpuready/files/ignored-fields.yaml.
func ignoredFields(fields []ForeignValue) (string, error) {
	text, err := yaml.Marshal(fields)
	return "# The fields of ClusterPolicy that have no effect, as in nvidia-values.yaml.\n# Made of operator/api/v1 by `make generate`.\n" + string(text), err
}
