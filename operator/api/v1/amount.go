package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// ResourceRequirements holds the requests and limits of a container.
type ResourceRequirements struct {
	// The maximum amounts, by resource.
	// +kubebuilder:validation:MaxProperties=32
	Limits map[corev1.ResourceName]Amount `json:"limits,omitempty"`
	// The requested amounts, by resource; the limit by default.
	// +kubebuilder:validation:MaxProperties=32
	Requests map[corev1.ResourceName]Amount `json:"requests,omitempty"`
}

// Kubernetes converts r to the type of Kubernetes; nil has no requests and limits.
func (r *ResourceRequirements) Kubernetes() corev1.ResourceRequirements {
	if r == nil {
		return corev1.ResourceRequirements{}
	}
	return corev1.ResourceRequirements{Limits: list(r.Limits), Requests: list(r.Requests)}
}

func list(amounts map[corev1.ResourceName]Amount) corev1.ResourceList {
	if len(amounts) == 0 {
		return nil
	}
	l := corev1.ResourceList{}
	for name, amount := range amounts {
		l[name] = resource.Quantity(amount).DeepCopy()
	}
	return l
}

// Amount is a quantity of a resource: 2, "500m", "1Gi". The schema of Kubernetes' own
// quantities lets some pass that no program can read ("1e.5"), and an operator that
// cannot read its policy could not even say so.
//
// +kubebuilder:validation:XIntOrString
// +kubebuilder:validation:XValidation:rule="type(self) == string || (type(self) == int && self >= 0 && self <= 9007199254740992)",message="an amount is not negative, and at most 2^53"
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[0-9]{1,15}(\.[0-9]{1,9})?(m|k|[MGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?$`
type Amount resource.Quantity

// UnmarshalJSON decodes a number or a string.
func (a *Amount) UnmarshalJSON(b []byte) error { return (*resource.Quantity)(a).UnmarshalJSON(b) }

// MarshalJSON encodes a string.
func (a Amount) MarshalJSON() ([]byte, error) { return resource.Quantity(a).MarshalJSON() }

// DeepCopyInto copies a into out.
func (a *Amount) DeepCopyInto(out *Amount) { *out = Amount((*resource.Quantity)(a).DeepCopy()) }
