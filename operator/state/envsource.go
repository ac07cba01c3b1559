package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// podField matches the fields of a pod that an environment variable may have.
var podField = regexp.MustCompile(`^(metadata\.(name|namespace|uid)|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?))$`)

// containerResources are the resources of its container that an environment variable may have, with
// the divisors that Kubernetes accepts.
var containerResources = map[string][]string{
	"cpu":               {"0", "1m", "1"},
	"memory":            {"0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"},
	"ephemeral-storage": {"0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"},
}

// envSource returns the source of an environment variable's value, nil if it has a plain value, or
// an error that describes why no container can have it.
func envSource(v v1.EnvVar) (*corev1.EnvVarSource, error) {
	if v.ValueFrom.IsEmpty() {
		return nil, nil
	}
	var s corev1.EnvVarSource
	err := checkDivisor(v.ValueFrom)
	if err == nil {
		err = v.ValueFrom.Decode(&s)
	}
	if err != nil {
		return nil, fmt.Errorf("valueFrom: %w", err)
	}
	sources := 0
	if r := s.ConfigMapKeyRef; r != nil {
		sources, err = sources+1, errors.Join(err, validKeyOf("ConfigMap", r.Name, r.Key))
	}
	if r := s.SecretKeyRef; r != nil {
		sources, err = sources+1, errors.Join(err, validKeyOf("Secret", r.Name, r.Key))
	}
	if r := s.FieldRef; r != nil {
		if sources++; !podField.MatchString(r.FieldPath) || r.APIVersion != "" && r.APIVersion != "v1" {
			err = errors.Join(err, fmt.Errorf("%q is no field of a pod that a variable can have", r.FieldPath))
		}
	}
	if r := s.ResourceFieldRef; r != nil {
		if sources++; !validResourceField(r) {
			err = errors.Join(err, fmt.Errorf("%q divided by %s is no resource of a container that a variable can have", r.Resource, r.Divisor.String()))
		}
	}
	switch {
	case s.FileKeyRef != nil:
		return nil, errors.New("valueFrom.fileKeyRef: the pods have no such volume")
	case sources != 1:
		return nil, errors.New("valueFrom has one source")
	case v.Value != "":
		return nil, errors.New("it has a value and valueFrom")
	}
	return &s, err
}

// checkDivisor returns an error for a divisor that decoding would parse for minutes; see v1.Amount.
func checkDivisor(source *v1.Object) error {
	var s struct{ ResourceFieldRef struct{ Divisor *v1.Amount } }
	text, err := source.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if divisor := s.ResourceFieldRef.Divisor; err == nil && divisor != nil {
		_, err = divisor.Quantity()
	}
	return err
}

func validKeyOf(kind, name, key string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsConfigMapKey(key)) > 0 {
		return fmt.Errorf("key %q of %s %q cannot exist", key, kind, name)
	}
	return nil
}

// validResourceField reports whether a reference is valid. It names no container: the operator
// chooses their names.
func validResourceField(r *corev1.ResourceFieldSelector) bool {
	for _, of := range []string{"limits.", "requests."} {
		for resource, divisors := range containerResources {
			if r.Resource == of+resource {
				return r.ContainerName == "" && slices.Contains(divisors, r.Divisor.String())
			}
		}
	}
	return false
}
