package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpuready/gpuready/internal/injection"
)

// A Role is the purpose of a validation pod. It is the pod's label and, with the Node's
// name, its name.
type Role string

// The roles.
const (
	// DevicePlugin requests a GPU, as a user's pod does.
	DevicePlugin Role = "nvidia-device-plugin-validation"
	// Driver requests nothing and gets all GPUs, as our agents do.
	Driver Role = "nvidia-driver-validation"
)

// describe returns a noun phrase for the role's pod in messages.
func (r Role) describe() string {
	if r == Driver {
		return "the pod " + string(Driver)
	}
	return "a pod that requests a GPU"
}

// Labels, container and program of the pods.
const (
	LabelApp  = "app"
	LabelName = "app.kubernetes.io/name"
	LabelBoot = "gpuready.io/boot"
	// PriorityClass lets any pod that waits for a GPU preempt them.
	PriorityClass = "gpuready-validator-workload"
	containerName = "vectoradd"
	program       = "/usr/bin/gpu-validator" // in the image, beside the sample

	nobody = 65534

	// perUnit is the additional time for each GPU.
	perUnit = 5 * time.Second
	// LongestNode is the longest Node name, in bytes, that fits in a pod's name after the
	// longest role. A longer one is hashed. The admission policy counts the same.
	LongestNode = 253 - len(DevicePlugin) - 1
)

// podName returns the pod's name, derived from role and Node alone. So there is one pod at a
// time, and a new process finds the one that an earlier process left, of any boot.
func (c Config) podName() string { return PodName(c.role, c.Node) }

// PodName returns the name of a role's pod on a Node.
func PodName(role Role, node string) string {
	if len(node) > LongestNode {
		sum := sha256.Sum256([]byte(node))
		return string(role) + "-" + hex.EncodeToString(sum[:16])
	}
	return string(role) + "-" + node
}

// podTimeout returns the time limit of the pod, image pull included.
func (c Config) podTimeout(j job) time.Duration {
	if c.role == Driver {
		return c.Timeout + time.Duration(len(j.driver.Units()))*perUnit
	}
	return c.Timeout
}

// buildPod builds the role's pod. The device plugin's requests one of the resource on this
// Node, through the scheduler, so that it is accounted for like any other.
func (c Config) buildPod(j job) *corev1.Pod {
	p := c.restrictedPod(c.podTimeout(j))
	main := &p.Spec.Containers[0]
	if c.role == DevicePlugin {
		main.Resources.Limits[corev1.ResourceName(j.resource)] = resource.MustParse("1")
		return p
	}
	p.Annotations = map[string]string{injection.Annotation: "true"}
	main.Env = []corev1.EnvVar{{Name: injection.Variable, Value: injection.Expected}}
	for _, u := range j.driver.Units() {
		main.Command = append(main.Command, string(u.UUID)+"="+u.Name)
	}
	return p
}

// restrictedPod builds the common part of the pods, with as few privileges as possible.
func (c Config) restrictedPod(timeout time.Duration) *corev1.Pod {
	no, yes := false, true
	user := int64(nobody)
	seconds := int64((timeout + time.Second - 1) / time.Second)
	moment := int64(1)
	quantity := func(s string) resource.Quantity { return resource.MustParse(s) }
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: c.podName(),
			Labels: map[string]string{LabelApp: string(c.role), LabelName: string(c.role), LabelBoot: c.BootID},
		},
		Spec: corev1.PodSpec{
			PriorityClassName:             PriorityClass,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         &seconds,
			TerminationGracePeriodSeconds: &moment,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			// Not spec.nodeName, which would bypass the scheduler.
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{c.Node}},
				}}},
			}}},
			// A node that is cordoned, or still has its startup taint, is proven too.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: containerName, Image: c.Image, ImagePullPolicy: cmp.Or(c.PullPolicy, corev1.PullIfNotPresent), Command: []string{program, PodCommand},
				// Its own message, or else its last lines.
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("10m"), corev1.ResourceMemory: quantity("64Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: quantity("2Gi")},
				},
			}},
		},
	}
	if c.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &c.RuntimeClass
	}
	for _, secret := range c.PullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if c.OwnerName != "" && c.OwnerUID != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: c.OwnerName, UID: types.UID(c.OwnerUID)}}
	}
	return p
}
