package v1

import (
	"bytes"
	"encoding/json"

	kjson "sigs.k8s.io/json"
)

// Object is an object of Kubernetes' own schema: an affinity, a security context. The API server
// accepts any object in its place, so that the policy's definition stays small; Decode finds what
// is wrong with it.
//
// +kubebuilder:validation:Type=object
// +kubebuilder:validation:XPreserveUnknownFields
type Object struct {
	raw []byte
}

// UnmarshalJSON keeps the text.
func (o *Object) UnmarshalJSON(b []byte) error {
	o.raw = bytes.Clone(b)
	return nil
}

// MarshalJSON returns the text.
func (o Object) MarshalJSON() ([]byte, error) {
	if len(o.raw) == 0 {
		return []byte("null"), nil
	}
	return o.raw, nil
}

// DeepCopyInto copies o into out.
func (o *Object) DeepCopyInto(out *Object) { out.raw = bytes.Clone(o.raw) }

// Decode decodes o into a struct of Kubernetes. It returns an error if o has a field that the
// struct lacks, or one of another type.
func (o *Object) Decode(into any) error {
	if o == nil || len(o.raw) == 0 {
		return nil
	}
	wrong, err := kjson.UnmarshalStrict(o.raw, into)
	if err == nil && len(wrong) > 0 {
		err = wrong[0]
	}
	return err
}

// IsEmpty reports whether o has no field.
func (o *Object) IsEmpty() bool {
	if o == nil {
		return true
	}
	var fields map[string]any
	return json.Unmarshal(o.raw, &fields) == nil && len(fields) == 0
}
