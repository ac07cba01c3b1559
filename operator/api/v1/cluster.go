package v1

import (
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// OperatorSpec configures the operator itself.
type OperatorSpec struct {
	// The runtime of nodes that do not report theirs. This operator reads each node's.
	// +kubebuilder:validation:Enum=docker;crio;containerd
	// +kubebuilder:default=docker
	DefaultRuntime string `json:"defaultRuntime,omitempty"`
	// Name of the RuntimeClass for containers with GPUs.
	// +kubebuilder:default=nvidia
	RuntimeClass string `json:"runtimeClass,omitempty"`
	// The image of init containers that need CUDA.
	InitContainer ImageSpec `json:"initContainer,omitempty"`
	// Labels for all operands' objects.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations for all operands' objects.
	Annotations map[string]string `json:"annotations,omitempty"`
	// On OpenShift, build the driver with its Driver Toolkit; true by default.
	UseOpenShiftDriverToolkit *bool `json:"use_ocp_driver_toolkit,omitempty"`
	// The metrics of NVIDIA's operator.
	Metrics *OperatorMetricsSpec `json:"metrics,omitempty"`
	// Replaced by the part validator of the policy.
	Validator *ImageSpec `json:"validator,omitempty"`
	// Replaced by gfd.enabled.
	DeployGFD *bool `json:"deployGFD,omitempty"`
}

// OperatorMetricsSpec configures the metrics of NVIDIA's operator.
type OperatorMetricsSpec struct {
	// Their ServiceMonitor for the prometheus-operator.
	ServiceMonitor *Object `json:"serviceMonitor,omitempty"`
}

// DriverToolkit reports whether drivers are built with OpenShift's Driver Toolkit if there is
// one.
func (o *OperatorSpec) DriverToolkit() bool { return valueOr(o.UseOpenShiftDriverToolkit, true) }

// DaemonsetsSpec holds the common fields of all DaemonSets.
type DaemonsetsSpec struct {
	// Labels of all DaemonSets' pods.
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations of all DaemonSets' pods.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Tolerations of all DaemonSets' pods.
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Priority of all DaemonSets' pods.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// How pods are replaced when their definition changes; the driver's follow
	// driver.upgradePolicy instead.
	// +kubebuilder:validation:Enum=RollingUpdate;OnDelete
	// +kubebuilder:default=RollingUpdate
	UpdateStrategy string `json:"updateStrategy,omitempty"`
	// Labels of the nodes that all DaemonSets run on, in addition to those that the operator requires.
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// The affinity of all DaemonSets' pods; what the operator requires is added.
	Affinity *Object `json:"affinity,omitempty"`
	// The security context of all DaemonSets' pods.
	PodSecurityContext *Object `json:"podSecurityContext,omitempty"`
	// How many pods are replaced at a time.
	RollingUpdate *RollingUpdateSpec `json:"rollingUpdate,omitempty"`
}

// RollingUpdateSpec limits how many pods of a DaemonSet are replaced at a time.
type RollingUpdateSpec struct {
	// A number of nodes ("1") or a percentage ("10%"); 1 by default.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) != int || self >= -2147483648 && self <= 2147483647",message="maxUnavailable is a number of nodes from 1 (1), or a percentage from 1% to 100% (10%)"
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
}

// unavailablePattern is the form of numbers of nodes from 1, and of percentages from 1% to 100%.
var unavailablePattern = regexp.MustCompile(`^([1-9][0-9]{0,6}|[1-9][0-9]?%|100%)$`)

// Unavailable returns MaxUnavailable in a DaemonSet's form: where a policy has "1", a DaemonSet
// has 1. ok is false if it is no number of nodes and no percentage; 1 is returned then.
func (r *RollingUpdateSpec) Unavailable() (unavailable intstr.IntOrString, ok bool) {
	if r == nil || r.MaxUnavailable == nil || *r.MaxUnavailable == intstr.FromString("") {
		return intstr.FromInt32(1), true
	}
	if text := r.MaxUnavailable.String(); unavailablePattern.MatchString(text) {
		return intstr.Parse(text), true
	}
	return intstr.FromInt32(1), false
}

// NodeSpec holds the settings of nodes as a whole.
type NodeSpec struct {
	// The taint that keeps pods off a GPU node until it is validated.
	StartupTaint StartupTaintSpec `json:"startupTaint,omitempty"`
}

// StartupTaintSpec is a taint that a node group sets on new nodes, and that is removed once all
// layers are proven.
type StartupTaintSpec struct {
	// The taint's key; a taint with it is removed whatever its value and effect. By default:
	// nvidia.com/gpu-not-ready and gpuready.io/not-ready.
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^(([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?)?$')",message="key is a taint's key: example.com/gpu-not-ready"
	Key string `json:"key,omitempty"`
	// Put the taint back, with NoSchedule, when a validation fails later.
	Manage *bool `json:"manage,omitempty"`
	// How long a validation must fail before that; "1m" by default.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches(r'^([0-9]{1,5}(\\.[0-9]{1,3})?(ms|s|m|h))+$')",message="settle is a duration: 90s, 1m30s"
	Settle *metav1.Duration `json:"settle,omitempty"`
}

// Managed reports whether the taint is put back.
func (t *StartupTaintSpec) Managed() bool { return valueOr(t.Manage, false) }

// SettleTime returns how long a layer must fail before the taint is put back.
func (t *StartupTaintSpec) SettleTime() time.Duration {
	return valueOr(t.Settle, metav1.Duration{Duration: time.Minute}).Duration
}

// HostPath is an absolute path on the host, without "..". The operator reports any other.
type HostPath string

// HostPathsSpec holds directories of the hosts.
type HostPathsSpec struct {
	// The host's root directory; "/" by default.
	RootFS HostPath `json:"rootFS,omitempty"`
	// The driver's root directory; "/run/nvidia/driver" by default.
	DriverInstallDir HostPath `json:"driverInstallDir,omitempty"`
	// The kubelet's root directory; "/var/lib/kubelet" by default.
	KubeletRootDir HostPath `json:"kubeletRootDir,omitempty"`
}

// CDIConfigSpec configures the use of the Container Device Interface.
type CDIConfigSpec struct {
	// The schema has no default: those of NVIDIA's releases differ.

	// Give containers their GPUs by CDI; true by default.
	Enabled *bool `json:"enabled,omitempty"`
	// No longer used by NVIDIA's operator.
	// +kubebuilder:default=false
	Default *bool `json:"default,omitempty"`
	// Give node agents their GPUs by NRI.
	// +kubebuilder:default=false
	NRIPluginEnabled *bool `json:"nriPluginEnabled,omitempty"`
}

// IsEnabled reports whether containers get GPUs by CDI.
func (c *CDIConfigSpec) IsEnabled() bool { return valueOr(c.Enabled, true) }

// MIGSpec configures how GPUs that are split by MIG are advertised.
type MIGSpec struct {
	// none: MIG is ignored; single: MIG devices are nvidia.com/gpu; mixed: nvidia.com/mig-1g.10gb and the like.
	// +kubebuilder:validation:Enum=none;single;mixed
	Strategy string `json:"strategy,omitempty"`
}
