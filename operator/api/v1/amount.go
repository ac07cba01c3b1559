package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// ResourceRequirements holds the requests and limits of a container.
type ResourceRequirements struct {
	// The maximum amounts, by resource.
	Limits map[corev1.ResourceName]Amount `json:"limits,omitempty"`
	// The requested amounts, by resource; the limit by default.
	Requests map[corev1.ResourceName]Amount `json:"requests,omitempty"`
}

// Kubernetes converts r to the type of Kubernetes; nil has no requests and limits. It returns an
// error that names the amounts that cannot be parsed.
func (r *ResourceRequirements) Kubernetes() (corev1.ResourceRequirements, error) {
	if r == nil {
		return corev1.ResourceRequirements{}, nil
	}
	limits, wrong := parseAmounts(r.Limits)
	requests, also := parseAmounts(r.Requests)
	if wrong = append(wrong, also...); len(wrong) > 0 {
		return corev1.ResourceRequirements{}, errors.New(strings.Join(wrong, " and "))
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: requests}, nil
}

// parsable matches the amounts that are parsed. Kubernetes' parser takes minutes for an exponent
// of nine digits, which the schema accepts.
var parsable = regexp.MustCompile(`^[+-]?([0-9]{1,18}(\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)

// parseAmounts returns the amounts as quantities, and those that cannot be parsed.
func parseAmounts(amounts map[corev1.ResourceName]Amount) (list corev1.ResourceList, wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		q, err := amounts[name].Quantity()
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("an amount of %q of %s", amounts[name], name))
			continue
		}
		if list == nil {
			list = corev1.ResourceList{}
		}
		list[name] = q
	}
	return list, wrong
}

// Amount is a quantity of a resource: 2, "500m", "1Gi". It keeps the policy's text, since the
// schema of Kubernetes' quantities accepts some that cannot be parsed ("1e.5"): an operator that
// cannot decode its policy could not even report so.
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:Pattern=`^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`
type Amount string

// UnmarshalJSON decodes a number or a string.
func (a *Amount) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(a))
	}
	var n json.Number
	err := json.Unmarshal(b, &n)
	*a = Amount(n)
	return err
}

// MarshalJSON encodes a string.
func (a Amount) MarshalJSON() ([]byte, error) { return json.Marshal(string(a)) }

// Quantity parses an amount. Those beyond 18 digits or with an exponent beyond two are an error.
func (a Amount) Quantity() (resource.Quantity, error) {
	if !parsable.MatchString(string(a)) {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	return resource.ParseQuantity(string(a))
}
