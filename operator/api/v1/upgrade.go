package v1

import "k8s.io/apimachinery/pkg/util/intstr"

// DriverUpgradePolicySpec configures how a driver change rolls from node to node.
type DriverUpgradePolicySpec struct {
	// Replace drivers when their definition changes. Otherwise a node gets the new driver when
	// somebody deletes its driver pod.
	// +kubebuilder:default=false
	AutoUpgrade bool `json:"autoUpgrade,omitempty"`
	// How many nodes are upgraded at a time; 0: as many as maxUnavailable allows.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	MaxParallelUpgrades *int `json:"maxParallelUpgrades,omitempty"`
	// How many GPU nodes may be cordoned or not ready meanwhile: a number, or a percentage of all.
	// +kubebuilder:default="25%"
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 9999999 : string(self).matches('^([0-9]{1,7}|[0-9]{1,2}%|100%)$')",message="maxUnavailable is a number of nodes (2) or a percentage from 0% to 100% (25%)"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// How pods with GPUs are evicted.
	PodDeletion *PodDeletionSpec `json:"podDeletion,omitempty"`
	// The pods to wait for first.
	WaitForCompletion *WaitForCompletionSpec `json:"waitForCompletion,omitempty"`
	// Whether and how all pods are evicted.
	DrainSpec *DrainSpec `json:"drain,omitempty"`
}

// Parallel returns how many nodes are upgraded at a time; 0 means no limit.
func (u *DriverUpgradePolicySpec) Parallel() int { return valueOr(u.MaxParallelUpgrades, 1) }

// Unavailable returns how many nodes may be unavailable; a percentage has Type String and ends in "%".
func (u *DriverUpgradePolicySpec) Unavailable() intstr.IntOrString {
	m := valueOr(u.MaxUnavailable, intstr.FromString("25%"))
	return intstr.Parse(m.String())
}

// WaitForCompletionSpec selects the pods to wait for before a node is upgraded.
type WaitForCompletionSpec struct {
	// A label selector; "" selects no pod.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^ *((! *([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?( *(==|=|!=) *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?| +(in|notin) +\\( *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?( *, *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)* *\\))?)( *, *(! *([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?( *(==|=|!=) *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?| +(in|notin) +\\( *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?( *, *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)* *\\))?))*)? *$')",message="podSelector is a label selector: app=train,tier in (a, b)"
	PodSelector string `json:"podSelector,omitempty"`
	// The timeout in seconds; 0: none.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TimeoutSecond int `json:"timeoutSeconds,omitempty"`
}

// PodDeletionSpec configures how pods with GPUs are evicted.
type PodDeletionSpec struct {
	// A label selector of pods to evict in addition to those that requested GPUs.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^ *((! *([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?( *(==|=|!=) *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?| +(in|notin) +\\( *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?( *, *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)* *\\))?)( *, *(! *([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?( *(==|=|!=) *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?| +(in|notin) +\\( *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?( *, *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)* *\\))?))*)? *$')",message="podSelector is a label selector: app=train,tier in (a, b)"
	PodSelector string `json:"podSelector,omitempty"`
	// Also evict pods that no controller recreates.
	// +kubebuilder:default=false
	Force bool `json:"force,omitempty"`
	// Seconds until the upgrade of the node counts as failed; 0: never.
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TimeoutSecond *int `json:"timeoutSeconds,omitempty"`
	// Also evict pods that lose the data of an emptyDir.
	// +kubebuilder:default=false
	DeleteEmptyDir bool `json:"deleteEmptyDir,omitempty"`
}

// Timeout returns the timeout in seconds; 0 means none.
func (p *PodDeletionSpec) Timeout() int { return valueOr(p.TimeoutSecond, 300) }

// DrainSpec configures whether and how all pods are evicted.
type DrainSpec struct {
	// Evict all pods of the node.
	// +kubebuilder:default=false
	Enable bool `json:"enable,omitempty"`
	// Also evict pods that no controller recreates.
	// +kubebuilder:default=false
	Force bool `json:"force,omitempty"`
	// A label selector of the pods to evict; "" selects all.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^ *((! *([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?( *(==|=|!=) *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?| +(in|notin) +\\( *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?( *, *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)* *\\))?)( *, *(! *([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?|([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?( *(==|=|!=) *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?| +(in|notin) +\\( *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?( *, *([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?)* *\\))?))*)? *$')",message="podSelector is a label selector: app=train,tier in (a, b)"
	PodSelector string `json:"podSelector,omitempty"`
	// Seconds until the upgrade of the node counts as failed; 0: never.
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TimeoutSecond *int `json:"timeoutSeconds,omitempty"`
	// Also evict pods that lose the data of an emptyDir.
	// +kubebuilder:default=false
	DeleteEmptyDir bool `json:"deleteEmptyDir,omitempty"`
}

// Timeout returns the timeout in seconds; 0 means none.
func (d *DrainSpec) Timeout() int { return valueOr(d.TimeoutSecond, 300) }
