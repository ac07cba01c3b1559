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
	"github.com/gpuready/gpuready/validator/workload/inside"
)

// A Role is what a pod is to prove. It is the pod's label and, with the Node's name, its
// name.
type Role string

// The roles.
const (
	// DevicePlugin requests a GPU, as a user's pod does.
	DevicePlugin Role = "nvidia-device-plugin-validation"
	// Driver requests nothing and is given all GPUs, as our agents are.
	Driver Role = "nvidia-driver-validation"
)

// who is a role's pod in messages.
func (r Role) who() string {
	if r == Driver {
		return "the pod " + string(Driver)
	}
	return "a pod that requests a GPU"
}

// What marks the pods, and what runs in them.
const (
	LabelApp  = "app"
	LabelName = "app.kubernetes.io/name"
	LabelBoot = "gpuready.io/boot"
	// PriorityClass makes them give way to whoever waits for a GPU.
	PriorityClass = "gpuready-validator-workload"
	container     = "vectoradd"
	program       = "/usr/bin/gpu-validator" // in the image, which has the sample beside it

	nobody = 65534

	// perUnit is the time that a GPU more may take.
	perUnit = 5 * time.Second
	// LongestNode leaves room for the longest role in a pod's name, in bytes: of a Node
	// with a longer one there is a hash. The admission policy counts the same.
	LongestNode = 253 - len(DevicePlugin) - 1
)

// name follows from role and Node alone: there is one at a time, and whoever starts
// finds what an earlier process left, of this boot or another.
func (c Config) name() string {
	if len(c.Node) > LongestNode {
		sum := sha256.Sum256([]byte(c.Node))
		return string(c.role) + "-" + hex.EncodeToString(sum[:16])
	}
	return string(c.role) + "-" + c.Node
}

// lasts is how long the pod may take, image pull included.
func (c Config) lasts(j job) time.Duration {
	if c.role == Driver {
		return c.Timeout + time.Duration(len(j.driver.Units()))*perUnit
	}
	return c.Timeout
}

// pod is that of the role. The device plugin's asks for one of the resource on this
// Node, through the scheduler, so that it is accounted for like everybody's.
func (c Config) pod(j job) *corev1.Pod {
	p := c.restricted(c.lasts(j))
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

// restricted is what the pods have in common: they can do less than any other.
func (c Config) restricted(lasts time.Duration) *corev1.Pod {
	no, yes := false, true
	user := int64(nobody)
	seconds := int64((lasts + time.Second - 1) / time.Second)
	moment := int64(1)
	quantity := func(s string) resource.Quantity { return resource.MustParse(s) }
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: c.name(),
			Labels: map[string]string{LabelApp: string(c.role), LabelName: string(c.role), LabelBoot: c.BootID},
		},
		Spec: corev1.PodSpec{
			PriorityClassName:             PriorityClass,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         &seconds,
			TerminationGracePeriodSeconds: &moment,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			// Not spec.nodeName, which would pass the scheduler by.
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
				Name: container, Image: c.Image, ImagePullPolicy: cmp.Or(c.PullPolicy, corev1.PullIfNotPresent), Command: []string{program, inside.Subcommand},
				// What it says itself, and where it could not say anything, its last lines.
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
