package state

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"maps"
	"slices"
	"sync"
	"text/template"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

//go:embed parts
var parts embed.FS

// templates parses the templates in parts, once.
var templates = sync.OnceValues(func() (*template.Template, error) {
	return template.ParseFS(parts, "parts/*.yaml")
})

const operandDriver = "driver"

// drivers adds the pools' DaemonSets. A pool that keeps its driver adds none: its DaemonSet
// stays as it was applied.
func (r *renderer) drivers() error {
	if !r.spec.Driver.IsEnabled() {
		return nil
	}
	byID := map[string]driver.Choice{}
	for _, c := range r.in.Drivers {
		keepsDriver := c.Problem != nil && c.Problem.Keep
		if c.Variant != driver.None && c.ID != "" && !keepsDriver {
			if have, ok := byID[c.ID]; !ok || lessPool(c.Pool, have.Pool) {
				byID[c.ID] = c
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		if err := r.driverOf(byID[id]); err != nil {
			return err
		}
	}
	return nil
}

// driverOf adds the DaemonSet of a choice from the spec of its NVIDIADriver or of the policy.
func (r *renderer) driverOf(c driver.Choice) error {
	name := c.Pool.NVIDIADriver()
	spec, is := r.in.Specs[name]
	if !is {
		return r.driver(c)
	}
	policy, problems := r.spec, r.problems
	r.problems = nil
	err := r.sanitize(spec)
	if err == nil {
		err = r.driver(c)
	}
	own := r.problems
	r.spec, r.problems = policy, problems
	for _, p := range own {
		p.NVIDIADriver, p.Message = name, driver.FieldsOf(name, p.Message)
		r.problems = append(r.problems, p)
	}
	return err
}

func (r *renderer) driver(c driver.Choice) error {
	var d *appsv1.DaemonSet
	var err error
	switch {
	case c.Variant == driver.Simulated:
		d, err = r.simulatedDriver(c)
	case c.Ours:
		d, err = r.ownDriver(c)
	default:
		d, err = r.nvidiaDriver(c)
	}
	if d == nil || err != nil {
		return err
	}
	d.Name = c.Name
	for _, labels := range []map[string]string{d.Labels, d.Spec.Template.Labels, d.Spec.Selector.MatchLabels} {
		labels[label.Driver] = c.ID
	}
	d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	pod := &d.Spec.Template.Spec
	pod.InitContainers = append([]corev1.Container{r.hostDriver()}, pod.InitContainers...)
	pod.Volumes = append(pod.Volumes, r.hostVolume())
	selector := maps.Clone(c.Selector)
	if selector == nil {
		selector = map[string]string{}
	}
	selector[label.Driver] = c.ID
	r.setPlacement(d, operandDriver, selector)
	avoidOtherDrivers(pod)
	r.applyPodFields(progress.Driver, d, podFields{"driver", &r.spec.Driver.PodSpec})
	digest, err := driverDigest(d)
	if err != nil {
		return err
	}
	d.Spec.Template.Labels[label.DriverDigest] = digest
	return r.add(progress.Driver, d)
}

// driverDigest returns the digest of the fields that define a driver. It excludes where its pods
// may run and what runs before the driver, which are not worth an upgrade of a node.
func driverDigest(d *appsv1.DaemonSet) (string, error) {
	pod := d.Spec.Template.Spec.DeepCopy()
	pod.InitContainers, pod.NodeSelector, pod.Affinity, pod.Tolerations = nil, nil, nil, nil
	pod.ImagePullSecrets, pod.PriorityClassName = nil, ""
	digest, err := digestOf(pod)
	if err != nil {
		return "", err
	}
	return digest[:32], nil // a label's value has at most 63 characters
}

// avoidOtherDrivers keeps a second driver off a node while one is replaced by the next. This
// includes NVIDIA's operator's, whose pods have the same label in another namespace.
func avoidOtherDrivers(pod *corev1.PodSpec) {
	if pod.Affinity == nil {
		pod.Affinity = &corev1.Affinity{}
	}
	pod.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": label.DriverApp}},
			NamespaceSelector: &metav1.LabelSelector{}, // every one
			TopologyKey:       corev1.LabelHostname,
		}},
	}
}

// simulatedDriver returns the simulated driver's DaemonSet: that of the static manifests, with
// the machine from the policy.
func (r *renderer) simulatedDriver(c driver.Choice) (*appsv1.DaemonSet, error) {
	data, err := deployments.DriverSimulator.Render(deployments.AgentData{Namespace: r.in.Cluster.Namespace, Image: c.Image})
	if err != nil {
		return nil, err
	}
	d, err := decode(data)
	if err != nil {
		return nil, err
	}
	var spec v1.SimulatedSpec
	if r.spec.Driver.Simulated != nil {
		spec = *r.spec.Driver.Simulated
	}
	profile := spec.Profile
	if profile == "" {
		profile = "h100-sxm"
	}
	d.Spec.Template.Labels[label.DriverContainer] = label.Product
	ctr := container(d, "driver")
	ctr.EnvFrom = nil
	setEnv(ctr, v1.EnvVar{Name: "GPUSIM_PROFILE", Value: profile})
	r.overlay("driver.simulated", ctr, spec.ContainerSpec)
	d.Spec.Template.Spec.ImagePullSecrets = r.secrets(spec.ImageSpec, r.spec.Validator.ImageSpec)
	return d, nil
}

// nvidiaDriver returns the DaemonSet of NVIDIA's driver container, or nil if a configuration
// that the policy names does not exist.
func (r *renderer) nvidiaDriver(c driver.Choice) (*appsv1.DaemonSet, error) {
	r.reportIgnoredFields(c)
	spec := &r.spec.Driver
	d, err := r.template("driver", struct {
		driver.Choice
		RDMA, HostMOFED, Topology bool
	}{c, spec.GPUDirectRDMA.IsEnabled(), hostMOFED(spec), spec.VirtualTopology != nil && spec.VirtualTopology.Config != ""})
	if err != nil {
		return nil, err
	}
	ctr := container(d, "nvidia-driver-ctr")
	r.setModules(ctr)
	r.overlay("driver", ctr, spec.ContainerSpec)
	overlayProbes(ctr, spec)
	r.setResources("driver", container(d, "openshift-driver-toolkit-ctr"), spec.Resources)
	container(d, "nvidia-peermem-ctr").ImagePullPolicy = spec.PullPolicy()
	d.Spec.Template.Spec.ImagePullSecrets = r.secrets(spec.ImageSpec, r.spec.Validator.ImageSpec)
	if !r.configure(d, ctr, c) {
		return nil, nil
	}
	return d, nil
}

// template decodes a DaemonSet from the templates in parts.
func (r *renderer) template(name string, data any) (*appsv1.DaemonSet, error) {
	all, err := templates()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := all.ExecuteTemplate(&b, name+".yaml", data); err != nil {
		return nil, err
	}
	d, err := decode(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.Namespace = r.in.Cluster.Namespace
	return d, nil
}

// setModules sets which kernel modules are wanted, and whether they work with the network's.
func (r *renderer) setModules(c *corev1.Container) {
	spec := &r.spec.Driver
	set := func(name, value string) { setEnv(c, v1.EnvVar{Name: name, Value: value}) }
	// Older definitions of NVIDIA's have neither the field nor its default, and replacing the
	// definition must not make the driver another one.
	set("KERNEL_MODULE_TYPE", cmp.Or(spec.KernelModuleType, "auto"))
	if spec.KernelModuleType == "open" {
		set("OPEN_KERNEL_MODULES_ENABLED", "true") // read by older driver containers
	}
	if !spec.GPUDirectRDMA.IsEnabled() {
		return
	}
	set("GPU_DIRECT_RDMA_ENABLED", "true")
	if hostMOFED(spec) {
		set("USE_HOST_MOFED", "true")
	}
}

// hostMOFED reports whether the network's driver is the host's own.
func hostMOFED(spec *v1.DriverSpec) bool {
	rdma := spec.GPUDirectRDMA
	return rdma.IsEnabled() && rdma.UseHostMOFED != nil && *rdma.UseHostMOFED
}

// overlayProbes overlays the policy's probes on the template's. Readiness and liveness probes
// default to the startup probe's command.
func overlayProbes(c *corev1.Container, spec *v1.DriverSpec) {
	over := func(p *corev1.Probe, s *v1.ContainerProbeSpec) *corev1.Probe {
		if s == nil {
			return p
		}
		if p == nil {
			p = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
				Command: []string{"sh", "-c", "nvidia-smi >/dev/null"},
			}}}
		}
		for _, f := range []struct {
			have *int32
			want int32
		}{
			{&p.InitialDelaySeconds, s.InitialDelaySeconds}, {&p.TimeoutSeconds, s.TimeoutSeconds},
			{&p.PeriodSeconds, s.PeriodSeconds}, {&p.FailureThreshold, s.FailureThreshold},
		} {
			if f.want > 0 {
				*f.have = f.want
			}
		}
		return p
	}
	c.StartupProbe = over(c.StartupProbe, spec.StartupProbe)
	c.LivenessProbe = over(c.LivenessProbe, spec.LivenessProbe)
	c.ReadinessProbe = over(c.ReadinessProbe, spec.ReadinessProbe)
	if s := spec.ReadinessProbe; s != nil && s.SuccessThreshold > 1 {
		c.ReadinessProbe.SuccessThreshold = s.SuccessThreshold // it must be 1 for the others
	}
}

// hostDriver returns the init container that fails if the host has a driver of its own. The
// operator then excludes the node from the DaemonSet.
func (r *renderer) hostDriver() corev1.Container {
	// The user is nobody: the volume's read-only flag covers the host's root file system but
	// not what is mounted below it, where root could write without any capability.
	nobody, yes, no := int64(65534), true, false
	c := corev1.Container{
		Name: "host-driver", Image: r.validatorImage(), Args: []string{"host-driver"},
		ImagePullPolicy: r.spec.Validator.PullPolicy(),
		Env:             []corev1.EnvVar{{Name: "HOST_ROOT", Value: "/host"}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{"memory": resource.MustParse("256Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &nobody, RunAsGroup: &nobody, RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			SELinuxOptions: &corev1.SELinuxOptions{Type: "spc_t"},
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	propagation := corev1.MountPropagationHostToContainer
	c.VolumeMounts = []corev1.VolumeMount{{Name: hostRoot, MountPath: "/host", ReadOnly: true, MountPropagation: &propagation}}
	return c
}

const hostRoot = "host"

func (r *renderer) hostVolume() corev1.Volume {
	root, kind := r.path("hostPaths.rootFS", r.spec.HostPaths.RootFS), corev1.HostPathDirectory
	if root == "" {
		root = "/"
	}
	return corev1.Volume{Name: hostRoot, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: root, Type: &kind}}}
}

// lessPool orders pools, to choose deterministically among several with one driver.
func lessPool(a, b fleet.Pool) bool {
	return cmp.Or(cmp.Compare(a.OS, b.OS), cmp.Compare(a.RHCOS, b.RHCOS), cmp.Compare(a.Kernel, b.Kernel), cmp.Compare(a.Arch, b.Arch)) < 0
}
