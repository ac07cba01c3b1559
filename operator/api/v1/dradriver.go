package v1

import "k8s.io/apimachinery/pkg/util/intstr"

// Serve is the way in which pods get a node's GPUs.
type Serve string

// The ways.
const (
	ServePlugin Serve = "plugin" // as resources of the device plugin
	ServeDRA    Serve = "dra"    // by ResourceClaims
)

// DRADriverSpec configures the driver for Dynamic Resource Allocation.
type DRADriverSpec struct {
	// Whether the operator deploys it; false by default.
	Enabled *bool `json:"enabled,omitempty"`

	ContainerSpec `json:",inline"`
	PodSpec       `json:",inline"`

	// How pods get the GPUs: plugin, as resources of the device plugin; dra, by ResourceClaims. A node
	// whose label nvidia.com/gpu.serve was set by a person follows the label. By default: plugin.
	// +kubebuilder:validation:Enum=plugin;dra;""
	Serve Serve `json:"serve,omitempty"`
	// How nodes change from one to the other.
	ServePolicy *ServePolicySpec `json:"servePolicy,omitempty"`
}

// ServePolicySpec limits how many nodes change at a time between the device plugin and the DRA driver.
type ServePolicySpec struct {
	// How many nodes may be on the way at a time: a number, or a percentage of all; "25%" by default.
	// Nodes that are cordoned or not ready count, too.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 9999999 : string(self).matches('^([0-9]{1,7}|[0-9]{1,2}%|100%)$')",message="maxUnavailable is a number of nodes (2) or a percentage from 0% to 100% (25%)"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// IsEnabled reports whether the operator deploys the driver.
func (d *DRADriverSpec) IsEnabled() bool { return valueOr(d.Enabled, false) }

// ServesDRA reports whether nodes shall serve their GPUs by ResourceClaims.
func (d *DRADriverSpec) ServesDRA() bool { return d.IsEnabled() && d.Serve == ServeDRA }

// Unavailable returns how many nodes may be on the way at a time; a percentage has Type String and
// ends in "%".
func (d *DRADriverSpec) Unavailable() intstr.IntOrString {
	if d.ServePolicy == nil {
		return intstr.FromString("25%")
	}
	m := valueOr(d.ServePolicy.MaxUnavailable, intstr.FromString("25%"))
	return intstr.Parse(m.String())
}
