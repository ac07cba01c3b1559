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
)

// What marks the pod, and what runs in it.
const (
	NamePrefix = "gpu-validator-workload-"
	LabelName  = "app.kubernetes.io/name"
	Label      = "gpu-validator-workload"
	LabelBoot  = "gpuready.io/boot"
	// PriorityClass makes it give way to whoever waits for a GPU.
	PriorityClass = "gpuready-validator-workload"
	container     = "vectoradd"

	nobody = 65534
)

// Command is what the image of the pod is asked to run: this program, which runs
// the sample beside it.
var Command = []string{"/usr/bin/gpu-validator", Subcommand}

// name follows from the Node alone: there is one at a time, and whoever starts
// finds what an earlier process left, of this boot or another.
func (c Config) name() string {
	const longest = 253 - len(NamePrefix)
	if len(c.Node) > longest {
		sum := sha256.Sum256([]byte(c.Node))
		return NamePrefix + hex.EncodeToString(sum[:16])
	}
	return NamePrefix + c.Node
}

// pod asks for one of the resource on this Node, through the scheduler, so that
// it is accounted for like everybody's.
func (c Config) pod(resourceName string) *corev1.Pod {
	no, yes := false, true
	user := int64(nobody)
	seconds := int64((c.Timeout + time.Second - 1) / time.Second)
	moment := int64(1)
	quantity := func(s string) resource.Quantity { return resource.MustParse(s) }
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: c.name(),
			Labels: map[string]string{LabelName: Label, LabelBoot: c.BootID},
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
				Name: container, Image: c.Image, ImagePullPolicy: cmp.Or(c.PullPolicy, corev1.PullIfNotPresent), Command: Command,
				// What it says itself, and where it could not say anything, its last lines.
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: quantity("10m"), corev1.ResourceMemory: quantity("64Mi")},
					Limits: corev1.ResourceList{
						corev1.ResourceMemory: quantity("2Gi"), corev1.ResourceName(resourceName): quantity("1"),
					},
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
