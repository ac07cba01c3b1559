package driver

import (
	"regexp"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
)

// Annotations of Jobs that describe what they build.
const (
	annotationKernel  = label.Prebuild + ".kernel"
	annotationOSTag   = label.Prebuild + ".os-tag"
	annotationKind    = label.Prebuild + ".kind"
	annotationVersion = label.Prebuild + ".version"
	annotationImage   = label.Prebuild + ".image"
)

// moduleSources holds the directories of the modules' sources, by kind.
var moduleSources = map[string]string{"open": "kernel-open", "proprietary": "kernel"}

// moduleList names all modules that a node may load: those that every driver needs, and those for
// spec.driver.rdma and displays.
const moduleList = "nvidia,nvidia-uvm,nvidia-modeset,nvidia-drm,nvidia-peermem"

// ModuleKinds returns the valid values of BuildSpec.Kind.
func ModuleKinds() []string { return []string{"open", "proprietary"} }

// Arches returns the valid values of BuildSpec.Arch.
func Arches() []string { return []string{"amd64", "arm64"} }

// archPattern matches the architecture in a kernel's release: "5.14.0-427.50.1.el9_4.x86_64",
// "5.14.0-427.50.1.el9_4.x86_64+rt", "6.1.0-50-cloud-amd64".
var archPattern = regexp.MustCompile(`[.-](?:(x86_64|amd64)|(aarch64|arm64))(?:[+].*)?$`)

// KernelArch returns the architecture that a kernel's release names, or "".
func KernelArch(kernel string) string {
	switch m := archPattern.FindStringSubmatch(kernel); {
	case m == nil:
		return ""
	case m[1] != "":
		return "amd64"
	}
	return "arm64"
}

const (
	shared          = "/shared"
	nobody          = int64(65534)
	ttlSeconds      = int32(30 * 24 * 3600) // an ended Job is kept as a record
	deadlineSeconds = int64(3 * 3600)       // a build takes minutes
	retries         = int32(3)
	exitUsage       = int32(2) // of gpu-driver
	exitReason      = int32(3) // of gpu-driver, with a reason that a retry does not change
)

// BuildSpec describes what a Job builds.
type BuildSpec struct {
	Policy    *v1.ClusterPolicy // with the target repository and the signing key
	Namespace string
	Image     string // a driver container of gpuready with the driver's sources
	Toolkit   string // image with the kernel's headers and the compiler that built it
	Version   string // of the driver
	Kernel    string // release
	OSTag     string // "rhcos4.18"
	Arch      string // of the kernel, as Kubernetes names it: "amd64", "arm64"
	Kind      string // one of ModuleKinds
	// OpenShift is true if OpenShift assigns the pods' users; otherwise they run as nobody.
	OpenShift bool
}

// Job returns the Job that builds and pushes. Its pod needs no GPU, no permission, and no shell
// in any container.
func (s BuildSpec) Job() (*batchv1.Job, error) {
	driver := &s.Policy.Spec.Driver
	image, err := prebuiltImage(driver.PrebuildRepository(), s.Version, s.Kernel, s.OSTag)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{"app": "gpuready-prebuild", label.PartOf: label.Product, label.Prebuild: "true"}
	job := &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "gpuready-prebuild-", Namespace: s.Namespace, Labels: labels,
			Annotations: map[string]string{annotationKernel: s.Kernel, annotationOSTag: s.OSTag, annotationKind: s.Kind, annotationVersion: s.Version, annotationImage: image},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1.GroupVersion().String(), Kind: v1.Kind, Name: s.Policy.Name, UID: s.Policy.UID,
			}},
		},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(retries), ActiveDeadlineSeconds: new(deadlineSeconds), TTLSecondsAfterFinished: new(ttlSeconds),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionFailJob,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
					Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{exitUsage, exitReason},
				},
			}}},
		},
	}
	job.Spec.Template.Labels, job.Spec.Template.Spec = labels, s.pod()
	job.Spec.Template.Annotations = map[string]string{label.DefaultContainer: job.Spec.Template.Spec.Containers[0].Name}
	return job, nil
}

func (s BuildSpec) pod() corev1.PodSpec {
	driver := &s.Policy.Spec.Driver
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		// The node needs the kernel's architecture, which the image's compiler has, too.
		NodeSelector:    map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: s.Arch},
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Volumes:         []corev1.Volume{emptyDir("shared", "4Gi"), emptyDir("tmp", "8Gi")},
	}
	if !s.OpenShift {
		user := pod.SecurityContext
		user.RunAsUser, user.RunAsGroup, user.FSGroup = new(nobody), new(nobody), new(nobody)
	}
	for _, name := range driver.ImagePullSecrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	prepare := container("prepare", s.Image, "share", "--to", shared)
	prepare.ImagePullPolicy = driver.PullPolicy()
	build := container("build", s.Toolkit, "build", "--source", shared+"/sources/"+moduleSources[s.Kind], "--kernel", s.Kernel,
		"--headers-root", "/", "--driver-version", s.Version, "--modules", moduleList, "--out", shared+"/built")
	build.Command = []string{shared + "/ocp_dtk_entrypoint"}
	build.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	push := container("push", s.Image, "push", "--modules", shared+"/built/lib/modules/"+s.Kernel, "--kernel", s.Kernel, "--output", "json")
	push.ImagePullPolicy = driver.PullPolicy()
	push.Env = append(push.Env, corev1.EnvVar{Name: envImage, Value: s.Image}, corev1.EnvVar{Name: EnvVersion, Value: s.Version}, corev1.EnvVar{Name: EnvOSTag, Value: s.OSTag})
	for _, o := range []PodParts{RepositoryParts(driver), SigningParts(driver)} {
		for _, e := range o.Env {
			push.Env = append(push.Env, corev1.EnvVar{Name: e.Name, Value: e.Value})
		}
		push.VolumeMounts = append(push.VolumeMounts, o.Mounts...)
		pod.Volumes = append(pod.Volumes, o.Volumes...)
	}
	// The proxy settings of the driver's pods apply here, too.
	for _, e := range driver.Env {
		if name := strings.ToUpper(e.Name); name == "HTTPS_PROXY" || name == "HTTP_PROXY" || name == "NO_PROXY" {
			push.Env = append(push.Env, corev1.EnvVar{Name: e.Name, Value: e.Value})
		}
	}
	pod.InitContainers, pod.Containers = []corev1.Container{prepare, build}, []corev1.Container{push}
	return pod
}

func emptyDir(name, limit string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse(limit))}}}
}

func container(name, image string, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent, Args: args,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("128Mi")}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts:             []corev1.VolumeMount{{Name: "shared", MountPath: shared}, {Name: "tmp", MountPath: "/tmp"}},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}
