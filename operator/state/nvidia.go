package state

import (
	"fmt"
	"maps"
	"path"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// nvidiaOperand is an operand with NVIDIA's image. It is deployed as NVIDIA's operator deploys
// it, except for how it gets its GPUs.
type nvidiaOperand struct {
	state     progress.State
	field     string
	template  string
	container string
	spec      v1.OperandSpec
}

func (r *renderer) nvidiaOperands() []nvidiaOperand {
	return []nvidiaOperand{
		{progress.DCGM, "dcgm", "dcgm", "nvidia-dcgm-ctr", r.spec.DCGM.OperandSpec},
		{progress.DCGMExporter, "dcgmExporter", "dcgm-exporter", "nvidia-dcgm-exporter", r.spec.DCGMExporter.OperandSpec},
		{progress.MIGManager, "migManager", "mig-manager", "nvidia-mig-manager", r.spec.MIGManager.OperandSpec},
	}
}

// wanted reports whether the policy enables the operand. One that the policy does not mention is
// not wanted, whatever its default is.
func (n nvidiaOperand) wanted() bool {
	return n.spec.IsEnabled() && (n.spec.Enabled != nil || n.spec.Image != "")
}

// wantsNVIDIA reports whether any of NVIDIA's operands is deployed: programs of NVIDIA's images, such as DCGM.
func (r *renderer) wantsNVIDIA() bool {
	for _, n := range r.nvidiaOperands() {
		if n.wanted() {
			return true
		}
	}
	return false
}

func (r *renderer) nvidiaDaemonSets() error {
	for _, n := range r.nvidiaOperands() {
		if !n.wanted() {
			continue
		}
		image := r.nvidiaImage(n.field, n.spec.ImageSpec)
		for _, i := range r.injections {
			if err := r.addNVIDIA(n, image, i); err != nil {
				return err
			}
		}
		if err := r.addService(n); err != nil {
			return err
		}
		if n.state == progress.DCGMExporter {
			if err := r.addServiceMonitor(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *renderer) addNVIDIA(n nvidiaOperand, image string, i fleet.Injection) error {
	d, err := r.template(n.template, struct {
		Namespace, Image, Validator string
		NRI                         bool
	}{r.in.Cluster.Namespace, image, r.validatorImage(), i == fleet.NRI})
	if err != nil {
		return err
	}
	r.setInjection(d, i)
	if i != fleet.NRI {
		class := r.operandClass()
		d.Spec.Template.Spec.RuntimeClassName = &class
	}
	c := container(d, n.container)
	switch n.state {
	case progress.DCGMExporter:
		r.configureExporter(d, c)
	case progress.MIGManager:
		r.configureMIGManager(d, c)
	}
	r.overlay(n.field, c, n.spec.ContainerSpec)
	r.setSecurity(n.field+".securityContext", c, n.spec.SecurityContext)
	return r.finish(n.state, d, n.template, i, podFields{n.field, &n.spec.PodSpec}, r.spec.Validator.ImageSpec, n.spec.ImageSpec)
}

// configureExporter applies the exporter's own fields of the policy.
func (r *renderer) configureExporter(d *appsv1.DaemonSet, c *corev1.Container) {
	spec, pod := &r.spec.DCGMExporter, &d.Spec.Template
	labels := r.labels("dcgmExporter.podLabels", spec.PodLabels)
	maps.Copy(labels, pod.Labels)
	pod.Labels = labels
	annotations := r.annotations("dcgmExporter.podAnnotations", spec.PodAnnotations)
	maps.Copy(annotations, pod.Annotations)
	pod.Annotations = annotations
	pod.Spec.HostPID = spec.HostPID != nil && *spec.HostPID
	set := func(name, value string) { setEnv(c, v1.EnvVar{Name: name, Value: value}) }
	if dcgm := r.nvidiaOperands()[0]; dcgm.wanted() {
		set("DCGM_REMOTE_HOSTENGINE_INFO", fmt.Sprintf("nvidia-dcgm:%d", dcgmPort))
	}
	if m := spec.MetricsConfig; m != nil && m.Name != "" {
		const file, volume = "dcgm-metrics.csv", "metrics-config"
		set("DCGM_EXPORTER_COLLECTORS", "/etc/dcgm-exporter/"+file)
		mountFile(c, "/etc/dcgm-exporter/"+file, volume, file)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: configMapSource(m.Name, file)})
	}
	if spec.HPCJobMapping.IsEnabled() {
		dir := r.path("dcgmExporter.hpcJobMapping.directory", spec.HPCJobMapping.Directory)
		if dir == "" || dir == "/" || !mountVolume(d, c, dir, true, hostDirectory("job-mapping", dir)) {
			dir = "/var/lib/dcgm-exporter/job-mapping"
			mountVolume(d, c, dir, true, hostDirectory("job-mapping", dir))
		}
		set("DCGM_HPC_JOB_MAPPING_DIR", dir)
	}
	if root := r.path("hostPaths.kubeletRootDir", r.spec.HostPaths.KubeletRootDir); root != "" {
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.Name == "pod-gpu-resources" {
				v.HostPath.Path = path.Join(root, "pod-resources")
			}
		}
	}
	r.describePods(pod, c)
}

// describePods has the exporter add what the API server knows of the pods that use a GPU to its
// metrics. Only then does it need its token; the chart gives its account the rights.
func (r *renderer) describePods(pod *corev1.PodTemplateSpec, c *corev1.Container) {
	spec, yes := &r.spec.DCGMExporter, true
	for _, option := range []struct {
		enabled *bool
		name    string
	}{
		{spec.EnablePodLabels, "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"}, {spec.EnablePodUID, "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"},
	} {
		if option.enabled != nil && *option.enabled {
			setEnv(c, v1.EnvVar{Name: option.name, Value: "true"})
			pod.Spec.AutomountServiceAccountToken = &yes
		}
	}
	if patterns := spec.PodLabelAllowlistRegex; len(patterns) > 0 {
		setEnv(c, v1.EnvVar{Name: "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", Value: strings.Join(patterns, ",")})
	}
}

// configureMIGManager applies the MIG manager's own fields of the policy. Without a ConfigMap's
// name, the configuration of its image counts.
func (r *renderer) configureMIGManager(d *appsv1.DaemonSet, c *corev1.Container) {
	spec, pod := &r.spec.MIGManager, &d.Spec.Template.Spec
	if s := spec.Config; s != nil && s.Name != "" && s.Name != "default-mig-parted-config" {
		setEnv(c, v1.EnvVar{Name: "CONFIG_FILE", Value: "/mig-parted-config/config.yaml"})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "mig-parted-config", MountPath: "/mig-parted-config", ReadOnly: true})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "mig-parted-config", VolumeSource: configMapSource(s.Name)})
	}
	if s := spec.Config; s != nil && s.Default != "" {
		setEnv(c, v1.EnvVar{Name: "MIG_CONFIG_DEFAULT", Value: s.Default})
	}
	if s := spec.GPUClientsConfig; s != nil && s.Name != "" {
		setEnv(c, v1.EnvVar{Name: "GPU_CLIENTS_FILE", Value: "/gpu-clients/clients.yaml"})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "gpu-clients", MountPath: "/gpu-clients", ReadOnly: true})
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "gpu-clients", VolumeSource: configMapSource(s.Name)})
	}
}

const (
	dcgmPort     = 5555
	exporterPort = 9400
)

// addService adds DCGM's Service, by which an exporter finds DCGM on its own node, or the
// exporter's, for Prometheus.
func (r *renderer) addService(n nvidiaOperand) error {
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	switch n.state {
	case progress.DCGM:
		local := corev1.ServiceInternalTrafficPolicyLocal
		service.ObjectMeta = r.objectMeta("nvidia-dcgm", "nvidia-dcgm")
		service.Spec.InternalTrafficPolicy = &local
		service.Spec.Ports = []corev1.ServicePort{port("dcgm", dcgmPort)}
	case progress.DCGMExporter:
		service.ObjectMeta = r.objectMeta("nvidia-dcgm-exporter", "nvidia-dcgm-exporter")
		service.Annotations = map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": fmt.Sprint(exporterPort)}
		service.Spec.Ports = []corev1.ServicePort{port(scrapePort, exporterPort)}
		if s := r.spec.DCGMExporter.ServiceSpec; s != nil {
			service.Spec.InternalTrafficPolicy = s.InternalTrafficPolicy
			if s.Type == corev1.ServiceTypeExternalName {
				r.reportInvalid("dcgmExporter.service.type", string(s.Type)+" without a name", "ClusterIP is used")
			} else {
				service.Spec.Type = s.Type
			}
		}
	default:
		return nil
	}
	service.Spec.Selector = map[string]string{"app": service.Name, label.PartOf: label.Product}
	return r.add(n.state, service)
}

func port(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromInt32(number), Protocol: corev1.ProtocolTCP}
}
